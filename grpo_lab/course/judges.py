"""Checks that many exercises share: a chosen letter, a prediction, a written text."""

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.course.compare import shown
from grpo_lab.course.exercises import Finding, Prediction, Values


def choice(right: str, wrong: Mapping[str, str], name: str = "answer") -> Values:
    """A check that accepts one letter; `wrong` gives a reason for each other one, without naming the right one."""
    letters = ", ".join(sorted([right, *wrong]))

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        got = values[name]
        why = wrong.get(got) if isinstance(got, str) else None
        expected = "another letter" if why else f"one of {letters}{'' if got == right else ', in quotes'}"
        yield Finding(got == right, "the letter chosen", shown(got), expected, why or "This is none of them.")

    return Values((name,), judge)


def prediction(letters: str, outcome: str, runs: int = 1, name: str = "answer") -> Prediction:
    """A check that accepts any of the letters. `outcome` is shown beside it after so many runs."""

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        got = values[name]
        made = isinstance(got, str) and len(got) == 1 and got in letters
        why = "A prediction is one of the letters; it need not come true."
        yield Finding(made, "your prediction", shown(got), f"one of {', '.join(letters)}, in quotes", why)

    return Prediction((name,), judge, outcome, runs)


def text(words: int = 5, name: str = "answer") -> Values:
    """A check that accepts a text of at least so many words; a person marks its content."""

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        got = values[name]
        count = len(got.split()) if isinstance(got, str) else 0
        why = "Write it in your own words; a person reads it."
        yield Finding(count >= words, "your words", f"{count} words", f"{words} words or more", why)

    return Values((name,), judge)
