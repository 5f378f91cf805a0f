"""Checks that many exercises share: a letter chosen, a prediction made, a text written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.course.compare import shown
from grpo_lab.course.exercises import Finding, Values


def choice(right: str, wrong: Mapping[str, str], name: str = "answer") -> Values:
    """One letter is right; `wrong` says for each of the others why it is not, without naming the right one."""

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        got = values[name]
        letters = ", ".join(sorted([right, *wrong]))
        if got == right:
            yield Finding(True, "the letter chosen", shown(got), f"one of {letters}", "")
        else:
            why = wrong.get(got) if isinstance(got, str) else None
            expected = "another letter" if why else f"one of {letters}, in quotes"
            yield Finding(False, "the letter chosen", shown(got), expected, why or "This is none of them.")

    return Values((name,), judge)


def prediction(letters: str, name: str = "answer") -> Values:
    """Any of the letters will do: what counts is that it was given before the run."""

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        got = values[name]
        made = isinstance(got, str) and len(got) == 1 and got in letters
        why = "" if made else "A prediction is one of the letters; it need not come true."
        yield Finding(made, "your prediction", shown(got), f"one of {', '.join(letters)}, in quotes", why)

    return Values((name,), judge)


def text(words: int = 5, name: str = "answer") -> Values:
    """At least a few words; whether they are right is for a person to say."""

    def judge(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
        got = values[name]
        count = len(got.split()) if isinstance(got, str) else 0
        why = "" if count >= words else "Write it in your own words; a person reads it."
        yield Finding(count >= words, "your words", f"{count} words", f"{words} words or more", why)

    return Values((name,), judge)
