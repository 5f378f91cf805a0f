"""Answers to the labs' exercises, wrong ones and right ones written another way, each the source of a module.

The tables WRONG and ANOTHER_WAY of lab_<name>.py hold them by exercise and name. An answer is the text of a whole cell,
or changes of the reference solution: {what stands there once: what stands there then}.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from grpo_lab.course import registry
from grpo_lab.course.compare import Span
from grpo_lab.course.exercises import Function, call

INSTRUCTOR = Path(__file__).parents[3] / "labs" / "instructor"
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
HARD_CODED = "the public answers, one after another"


class Mutant(NamedTuple):
    """An answer as it would stand in the cell of its exercise, below the line that names it."""

    lab: str
    exercise: str
    name: str
    source: str

    def __str__(self) -> str:
        return f"{self.lab}/{self.exercise}/{self.name}"

    @property
    def trains(self) -> bool:
        """Whether its check trains, unless the answer is refused at once."""
        return f"{self.lab}/{self.exercise}" in TRAINED


def all() -> list[Mutant]:
    """Every wrong answer."""
    return [*_of_tables("WRONG"), *hard_coded()]


def another_way() -> list[Mutant]:
    """Right answers that are not the reference."""
    return _of_tables("ANOTHER_WAY")


def references() -> list[Mutant]:
    """The reference solution of every exercise."""
    exercises = [(lab, exercise) for lab in registry.LABS for exercise in registry.lab_page(lab).exercises]
    return [Mutant(lab, exercise, "reference", solution(lab, exercise)) for lab, exercise in exercises]


@functools.cache
def solution(lab: str, exercise: str) -> str:
    """The reference solution: the instructor's cell without the line that names the exercise."""
    return _cells(lab)[f"{lab}-{exercise}"].partition("\n")[2]


@functools.cache
def _cells(lab: str) -> dict[str, str]:
    notebook = json.loads((INSTRUCTOR / f"{lab}.ipynb").read_text(encoding="utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}


def _of_tables(table: str) -> list[Mutant]:
    rows = ((lab, getattr(importlib.import_module(f"{__name__}.lab_{lab}"), table)) for lab in registry.LABS)
    return [
        Mutant(lab, exercise, name, answer if isinstance(answer, str) else changed(solution(lab, exercise), answer))
        for lab, by_exercise in rows
        for exercise, by_name in by_exercise.items()
        for name, answer in by_name.items()
    ]


def changed(source: str, changes: Mapping[str, str]) -> str:
    """The source with each of these texts, which stand in it once, replaced by another, all at the same time.

    >>> changed("a - b", {"a": "b", "b": "a"})
    'b - a'
    """
    for old, new in changes.items():
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in:\n{source}"
        assert old != new, f"{old!r} is changed into itself"
    found, count = re.subn("|".join(map(re.escape, changes)), lambda match: changes[match[0]], source)
    assert count == len(changes), f"{list(changes)} overlap in:\n{source}"
    return found


def hard_coded() -> Iterator[Mutant]:
    """For each function that is judged by what it returns: what it must return for the cases that learners see."""
    for lab in registry.LABS:
        for name, exercise in registry.lab_page(lab).exercises.items():
            check = exercise.check
            if isinstance(check, Function) and check.probe is call and f"{lab}/{name}" not in TRAINED:
                expected = ", ".join(_written(case.expected) for case in check.cases(0))
                yield Mutant(lab, name, HARD_CODED, _RECITES.format(name=check.name, expected=expected))


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
