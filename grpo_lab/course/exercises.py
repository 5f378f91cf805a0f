"""What an exercise is. A learner's answer is a small Python module; what is judged of it is data.

A function is judged by what it returns for inputs it is handed (`Function`), any other answer by what it names
(`Values`): guards, settings, a letter. So a grader may run the answer somewhere else, draw fresh inputs, and compare
outside.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """One thing that was looked at: whether it is right, in the learner's words and ours."""

    right: bool
    what: str
    """The case: the inputs in words, or the property asked for."""
    got: str
    expected: str
    why: str
    """What a wrong answer here means, and where to look; never the solution."""


class Case(NamedTuple):
    """Inputs of one call and what the right answer gives for them."""

    what: str
    inputs: Mapping[str, Any]
    """Keyword arguments: tensors, numbers, texts."""
    expected: Any
    """Tensors and numbers are compared within a tolerance; NaN equals NaN."""
    why: str


Probe = Callable[[Callable[..., Any], Mapping[str, Any]], Any]
Relation = Callable[[Case, random.Random], Case]
"""Makes another case of one, whose right answer follows from the first one's."""


def call(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """The plain probe: what the function returns."""
    return function(**inputs)


@dataclass(frozen=True)
class Function:
    """Judged by calls of one function of the answer."""

    name: str
    cases: Callable[[int], Sequence[Case]]
    """Cases drawn from a seed. Seed 0 gives those that a learner sees."""
    probe: Probe = call
    """How it is called, where what counts is not what it returns but, say, the gradient of that. One of probes.py."""
    relations: tuple[Relation, ...] = ()
    """What must hold between two calls, for cases that nobody asked the right answer of. Most are from relations.py."""


@dataclass(frozen=True)
class Values:
    """Judged by plain values that the answer names: texts, numbers, and tuples, lists and dictionaries of them."""

    names: tuple[str, ...]
    judge: Callable[[Mapping[str, Any], int], Iterable[Finding]]
    """(values by name, seed) -> findings. It may train, with fresh seeds drawn from `seed`."""


KINDS = ("prediction", "code", "configuration", "choice", "text")


@dataclass(frozen=True)
class Exercise:
    """One task of a lab."""

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
    """From a nudge to nearly the answer; Markdown."""
    check: Function | Values

    def __post_init__(self) -> None:
        assert self.kind in KINDS and self.difficulty in (1, 2, 3) and len(self.hints) == 3, self.name


@dataclass(frozen=True)
class Question:
    """A self-check: asked, answered and explained on the spot, never graded."""

    text: str
    options: tuple[tuple[str, str], ...]
    """(option, what to say to who chose it), in the order shown."""
    right: int
    """Index of the right one."""


@dataclass(frozen=True)
class LabPage:
    """One notebook: what its cover says, its exercises in order, and three questions."""

    name: str
    """As its files are called: 02_explosion."""
    title: str
    minutes: int
    difficulty: int
    summary: str
    """What the learner can do at the end, in a sentence."""
    exercises: Mapping[str, Exercise] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()

    def cell_id(self, exercise: str) -> str:
        """What the cell of an exercise is called in every edition, and found by again."""
        return f"{self.name}-{exercise}"
