"""Exercises, their checks and the findings of a check.

A learner's answer is a small Python module. A check looks at data alone: a function is judged by its return values for
given inputs (`Function`), any other answer by the values it names (`Values`), such as guards, settings or a letter. So
a grader can run the answer in another process, draw fresh inputs, and compare outside.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from grpo_lab.errors import DataError


class Finding(NamedTuple):
    """The result of one comparison, in words for the learner."""

    right: bool
    what: str
    """The test input in words, or the property asked for."""
    got: str
    expected: str
    why: str
    """The meaning of a wrong answer here and the place to look; never the solution."""


class Case(NamedTuple):
    """A test input and its expected value."""

    what: str
    inputs: Mapping[str, Any]
    """Keyword arguments: tensors, numbers, texts."""
    expected: Any
    """Tensors and numbers are compared within a tolerance; NaN equals NaN."""
    why: str
    """What is expected of this test input, and why. It stands beside every wrong value, so it accuses of no mistake."""


Probe = Callable[[Callable[..., Any], Mapping[str, Any]], Any]
Relation = Callable[[Case, random.Random], Case]
"""Derives another case, whose expected value follows from that of the first."""


def call(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """The plain probe: the return value of the function."""
    return function(**inputs)


def cases_by(
    reference: Callable[..., Any], rows: Iterable[tuple[str, Mapping[str, Any], str]], probe: Probe = call
) -> list[Case]:
    """Cases of rows (what, inputs, why); the expected values are those of a reference solution.

    >>> cases_by(abs, [], call), cases_by(lambda x: 2 * x, [("two", {"x": 2}, "Twice.")])[0].expected
    ([], 4)
    """
    return [Case(what, inputs, probe(reference, inputs), why) for what, inputs, why in rows]


class Mistake(NamedTuple):
    """A known wrong answer, and the reason for every answer that gives its results."""

    why: str
    module: ModuleType


@dataclass(frozen=True)
class Function:
    """A check that calls one function of the answer."""

    name: str
    cases: Callable[[int], Sequence[Case]]
    """Cases drawn from a seed. Seed 0 gives the cases that a learner sees."""
    probe: Probe = call
    """Calls the function and returns the data to compare, for example a gradient. One of probes.py."""
    relations: tuple[Relation, ...] = ()
    """Derive further cases without another call of the reference solution. Most are from relations.py."""
    mistakes: Callable[[], Sequence[Mistake]] = tuple
    """Of answers.toml. The first with all of an answer's values gives the reason, in place of those of the cases."""


@dataclass(frozen=True)
class Values:
    """A check of plain values that the answer names: texts, numbers, and tuples, lists and dictionaries of them."""

    names: tuple[str, ...]
    judge: Callable[[Mapping[str, Any], int], Iterable[Finding]]
    """(values by name, seed) -> findings. A judge may train, with fresh seeds drawn from `seed`."""
    scoreboard: bool = field(default=False, kw_only=True)
    """Whether a learner's tries are kept in the scoreboard of the lab; its only value is then a set of guards."""


@dataclass(frozen=True)
class Prediction(Values):
    """A check that accepts any of the options: the learner has to predict before the run, rightly or not."""

    outcome: str = ""
    """The option that came true when the lab was written."""
    runs: int = 1
    """The number of runs after which it is known."""


@dataclass(frozen=True)
class Naming(Values):
    """A check of a dictionary that gives each of several recorded runs, by its number from 1, one of the names.

    A notebook shows their curves and menus, which begin with the answer to an earlier exercise.
    """

    runs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    earlier: str = ""


Check = Function | Values
KINDS = ("prediction", "code", "configuration", "choice", "text")


@dataclass(frozen=True)
class Exercise:
    """One task of a lab. Raises DataError for another kind, difficulty or number of hints, and for no points."""

    name: str
    """A word, unique in its lab. Its cell has the id <lab>-<name> and begins with the line `%%exercise <name>`."""
    title: str
    kind: str
    """`prediction` (locked when first given), `code`, `configuration`, `choice`, or `text`, which a person marks."""
    minutes: int
    difficulty: int
    """1 to 3."""
    points: int
    hints: tuple[str, str, str]
    """From a first push to nearly the answer; Markdown."""
    check: Check

    def __post_init__(self) -> None:
        _require(self.kind in KINDS, f"exercise {self.name!r}: kind = {self.kind!r}: one of {', '.join(KINDS)}")
        _require(self.difficulty in (1, 2, 3), f"exercise {self.name!r}: difficulty = {self.difficulty}: 1, 2 or 3")
        _require(self.points > 0, f"exercise {self.name!r}: points = {self.points}: 1 or more")
        texts = len(self.hints) == 3 and all(isinstance(hint, str) for hint in self.hints)
        _require(texts, f"exercise {self.name!r}: hints = {self.hints!r}: write three texts")


@dataclass(frozen=True)
class Question:
    """A self-check: answered and explained on the spot, never graded. Raises DataError for a wrong index."""

    text: str
    options: tuple[tuple[str, str], ...]
    """(option, reply to a learner who chose it), in the order shown."""
    right: int
    """Index of the right option, from 0."""

    def __post_init__(self) -> None:
        fits = 0 <= self.right < len(self.options)
        _require(fits, f"question {self.text!r}: right = {self.right}: 0 to {len(self.options) - 1}")


def _require(fits: bool, otherwise: str) -> None:
    """Raise DataError with this text unless the condition holds."""
    if not fits:
        raise DataError(otherwise)


@dataclass(frozen=True)
class LabPage:
    """One notebook: its cover, its exercises in order, and three questions."""

    name: str
    """The stem of its files: 02_explosion."""
    title: str
    minutes: int
    difficulty: int
    summary: str
    """The skills that the learner has at the end, in a sentence."""
    exercises: Mapping[str, Exercise] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()
    folder: Path = field(default=Path(), compare=False)

    def cell_id(self, exercise: str) -> str:
        """The id of an exercise's cell, the same in every edition."""
        return f"{self.name}-{exercise}"
