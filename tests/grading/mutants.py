"""Answers to the labs' exercises that are known: those of answers.toml, the reference solutions, and recited ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torch import Tensor

from grpo_lab.config import user_code
from grpo_lab.course import known_answers, pages, registry
from grpo_lab.course.compare import Span
from grpo_lab.course.editions import solutions
from grpo_lab.course.exercises import Function, call
from grpo_lab.course.known_answers import NEAR, RIGHT, WRONG, KnownAnswer

LABS = registry.course_labs()
FUNCTIONS = {
    f"{lab}-{name}": each
    for lab in LABS
    for name, each in registry.lab_page(lab).exercises.items()
    if isinstance(each.check, Function)
}
"""The exercises that ask for a function."""
TRAINED = {
    "00_start/learning_rate",
    "03_error_chain/epsilon",
    "04_guards/alone",
    "04_guards/minimal_set",
    "07_precision_and_verl/remedy",
    "08_mystery_runs/first_break",
    "08_mystery_runs/stable",
}
"""Exercises whose check trains, for tenths of seconds or for many."""
SAME_FOR_ALL = {"00_start/learning_rate", "03_error_chain/epsilon"}
"""Those that train the same run with every seed, so that what passes in the notebook passes in a grade."""
HARD_CODED = "the public answers, one after another"


@functools.cache
def checks(lab: str) -> ModuleType:
    """The module checks.py of a lab."""
    return user_code.execute(registry.lab_folder(lab) / pages.CHECKS)


def trains(answer: KnownAnswer) -> bool:
    """Whether the check of an answer trains, unless the answer is refused at once."""
    return f"{answer.lab}/{answer.exercise}" in TRAINED


def draws(answer: KnownAnswer) -> bool:
    """Whether the check of an answer depends on the seed."""
    place, check = f"{answer.lab}/{answer.exercise}", registry.lab_page(answer.lab).exercises[answer.exercise].check
    return isinstance(check, Function) or place in TRAINED - SAME_FOR_ALL


def wrong() -> list[KnownAnswer]:
    """Every wrong answer but the near misses."""
    return [*_of_kind(WRONG), *hard_coded()]


def near() -> list[KnownAnswer]:
    """Answers that are nearly right: a digit, a sign, a bound, an index or a quote away."""
    return _of_kind(NEAR)


def right() -> list[KnownAnswer]:
    """Right answers that are not the reference."""
    return _of_kind(RIGHT)


def references() -> list[KnownAnswer]:
    """The reference solution of every exercise."""
    exercises = [(lab, exercise) for lab in LABS for exercise in registry.lab_page(lab).exercises]
    return [KnownAnswer(lab, name, RIGHT, "reference", solution(lab, name)) for lab, name in exercises]


@functools.cache
def solution(lab: str, exercise: str) -> str:
    """The reference solution, as it would stand in the cell."""
    return solutions.solution(registry.lab_folder(lab), exercise)


def _of_kind(kind: str) -> list[KnownAnswer]:
    every = (known_answers.known_answers(registry.lab_folder(lab)) for lab in LABS)
    return [each for answers in every for each in answers if each.kind == kind]


def hard_coded() -> Iterator[KnownAnswer]:
    """For each function that is judged by what it returns: what it must return for the cases that learners see."""
    for lab in LABS:
        for name, exercise in registry.lab_page(lab).exercises.items():
            check = exercise.check
            if isinstance(check, Function) and check.probe is call and f"{lab}/{name}" not in TRAINED:
                expected = ", ".join(_written(case.expected) for case in check.cases(0))
                recited = _RECITES.format(name=check.name, expected=expected)
                yield KnownAnswer(lab, name, WRONG, HARD_CODED, recited)


def _written(value: Any) -> str:
    """In Python, with every digit, of which a tensor shows four."""
    if isinstance(value, Span):
        return repr(value.high)
    return f"tensor({value.tolist()!r})" if isinstance(value, Tensor) else repr(value)


_RECITES = '''from itertools import cycle

from torch import inf, nan, tensor

LEARNED = cycle([{expected}])


def {name}(*inputs, **named):
    """Whatever is asked."""
    return next(LEARNED)
'''
