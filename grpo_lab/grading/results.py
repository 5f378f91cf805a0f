"""What grading a notebook gave: a mark an exercise, with its reasons. Plain data; files and reports are made of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_lab.course.exercises import Finding

RIGHT, WRONG, UNANSWERED, BY_HAND, MARKED, FAILED = "right", "wrong", "unanswered", "by hand", "marked", "not graded"
"""Of a mark: `by hand` waits for a person, who makes it `marked`; `not graded` is the grader's failure, not the
learner's, and says why."""


@dataclass(frozen=True)
class Mark:
    """What one exercise earned."""

    exercise: str
    title: str
    kind: str
    points: float
    """Earned. 0 until something was looked at and found right, or marked by a person."""
    out_of: int
    status: str
    findings: Sequence[Finding] = ()
    """From all rounds, in the order in which they were asked."""
    note: str = ""
    """In a line, what there is to say beside the findings; of what is marked, the person's comment."""
    text: str = ""
    """The words of an answer that a person marks."""


@dataclass(frozen=True)
class Result:
    """What one notebook earned, and under which conditions that was found out."""

    student: str
    lab: str
    """The lab's name, or nothing where the file is no lab's notebook."""
    file: str
    """The notebook, below the folder of submissions."""
    digest: str
    """SHA-256 of the file, in hex: what the challenges were drawn from."""
    tier: int
    """The containment of the answers: 2 is bubblewrap, 0 a plain process."""
    trust: str
    """In a sentence, what that tier contains and what it does not."""
    attempt: int = 1
    marks: Sequence[Mark] = ()
    problem: str = ""
    """Why nothing was graded at all: too large, malformed, no lab's notebook."""
    seconds: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The limits and the way of scoring in force; the secret only by its fingerprint."""

    @property
    def score(self) -> float:
        """Points earned so far: without those of texts that still wait for a person."""
        return sum(mark.points for mark in self.marks if mark.status != BY_HAND)

    @property
    def out_of(self) -> int:
        """Points that could be earned so far, counted alike."""
        return sum(mark.out_of for mark in self.marks if mark.status != BY_HAND)

    @property
    def by_hand(self) -> Sequence[Mark]:
        """What waits for a person."""
        return [mark for mark in self.marks if mark.status == BY_HAND]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result that `to_json` wrote.

        >>> one = Result("ann", "05_kl", "ann.ipynb", "00", 2, "", marks=[Mark("k3", "k3", "code", 2.0, 2, RIGHT)])
        >>> Result.from_json(one.to_json()).score, one.out_of
        (2.0, 2)
        """
        data = json.loads(text)
        marks = [Mark(**{**mark, "findings": [Finding(*each) for each in mark["findings"]]}) for mark in data["marks"]]
        return cls(**{**data, "marks": marks})
