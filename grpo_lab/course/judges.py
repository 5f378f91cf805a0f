"""Checks that many exercises share: a chosen letter, a prediction, a written text, a run that a guard saved."""

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.course.compare import is_number, other_kind, shown
from grpo_lab.course.exercises import Finding, Prediction, Values
from grpo_lab.errors import Sentence


def letter(given: Any) -> Any:
    """The answer with a small letter for a capital one; anything but a text as it is.

    >>> letter("C"), letter(3)
    ('c', 3)
    """
    return given.lower() if isinstance(given, str) else given


def choice(right: str, wrong: Mapping[str, str]) -> Values:
    """A check that accepts one letter; `wrong` gives a reason for each other one, without naming the right one."""
    letters = ", ".join(sorted([right, *wrong]))

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        got = letter(values["answer"])
        why = wrong.get(got) if isinstance(got, str) else None
        expected = "another letter" if why else Sentence("one of {}", letters)
        if not why and got != right:
            expected = Sentence("one of {}, in quotes", letters)
        why = other_kind(got, "a text") or why or "This is none of them."
        yield Finding(got == right, "the letter chosen", shown(got), expected, why)

    return Values(("answer",), judge)


def prediction(letters: str, outcome: str, runs: int = 1) -> Prediction:
    """A check that accepts any of the letters. `outcome` is shown beside it after so many runs."""

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        got = letter(values["answer"])
        made = isinstance(got, str) and len(got) == 1 and got in letters
        why = other_kind(got, "a text") or "A prediction is one of the letters; it need not come true."
        yield Finding(made, "your prediction", shown(got), Sentence("one of {}, in quotes", ", ".join(letters)), why)

    return Prediction(("answer",), judge, outcome=outcome, runs=runs)


def text(words: int = 5) -> Values:
    """A check that accepts a text of at least so many words; a person marks its content."""

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        got = values["answer"]
        count = len(got.split()) if isinstance(got, str) else 0
        why = other_kind(got, "a text") or "Write it in your own words; a person reads it."
        got, expected = Sentence("{} words", count), Sentence("{} words or more", words)
        yield Finding(count >= words, "your words", got, expected, why)

    return Values(("answer",), judge)


LEAST_SAVED = 0.5
"""The least held-out reward of a run of `plain` over 60 steps that a guard saved. On five seeds it is 0.58 to 0.66."""


def saved_run(guard: str, step: int) -> Values:
    """A check of four readings of the learner's run: its end, the guard that acted, in which step, the last reward."""

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        def about(name: str, kind: str, right: bool, expected: str, why: str) -> Finding:
            return Finding(right, name, shown(values[name]), expected, other_kind(values[name], kind) or why)

        ended, held_out = values["ended"], values["held_out"]
        crashed = "This run crashed: start again and switch the guard on earlier."
        why = crashed if ended == "crashed" else "Copy the word of the printed summary."
        yield about("ended", "a text", ended == "done", "the end of a run that lives", why)
        why = "It is the guard that you switched on; the panel and the record name each guard that acted."
        yield about("guard", "a text", values["guard"] == guard, "a guard by its name, in quotes", why)
        why = "A guard acts when the fault does: look for the mark on the curves. Steps are counted from 0."
        yield about("acted", "a number", values["acted"] == step, "the step that the guard saved", why)
        percentage = "It is a share, from 0 to 1, and not a percentage."
        too_large = is_number(held_out) and held_out > 1
        why = percentage if too_large else "The second diamond in the plot, and `after` in the summary."
        expected = Sentence("the reward after the run, at least {:g}", LEAST_SAVED)
        yield about("held_out", "a number", is_number(held_out) and LEAST_SAVED <= held_out <= 1, expected, why)

    return Values(("ended", "guard", "acted", "held_out"), judge)
