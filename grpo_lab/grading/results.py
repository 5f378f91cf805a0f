"""Results of grading a notebook: plain data, from which files and reports are made."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_lab.course.exercises import Exercise, Finding
from grpo_lab.errors import Sentence

RIGHT, WRONG, UNANSWERED, BY_HAND, MARKED, FAILED = "right", "wrong", "unanswered", "by hand", "marked", "not graded"
"""The statuses of a mark.

`by hand` waits for a person, whose points make it `marked`. `not graded` is for a person to look at: the grader
failed, or several cells can be the answer; the note gives the reason.
"""
FAULT = "the grader failed: {}"
"""Every problem that the grader caused."""
NOT_REACHED = "not reached: the grade worker was lost before this exercise"
"""The note of an exercise that was not looked at yet."""


@dataclass(frozen=True)
class Mark:
    """The points of one exercise, with the reasons."""

    exercise: str
    title: str
    kind: str
    points: float
    """Points earned: 0 until an answer was found right, or marked by a person."""
    out_of: int
    status: str
    findings: Sequence[Finding] = ()
    """The findings of all rounds, in order."""
    note: str = ""
    """One line beside the findings; for a marked text, the person's comment."""
    text: str = ""
    """The words of an answer that a person marks."""

    @classmethod
    def unearned(cls, exercise: Exercise, status: str, note: str = "") -> Mark:
        """The mark of an exercise that earned nothing."""
        return cls(exercise.name, exercise.title, exercise.kind, 0.0, exercise.points, status, note=note)


@dataclass(frozen=True)
class Result:
    """The marks of one notebook, and the conditions under which it was graded."""

    student: str
    lab: str
    """The lab's name, by the notebook or else by the file's path; empty where neither names one."""
    file: str
    """The notebook's path below the folder of submissions."""
    digest: str
    """SHA-256 of the file, in hex: the challenges are drawn from it."""
    tier: int
    """The containment of the answers: 2 is bubblewrap, 0 a plain process."""
    trust: str
    """The limits of that tier and the remaining risks."""
    attempt: int = 1
    marks: Sequence[Mark] = ()
    problem: str = ""
    """The reason why nothing was graded: too large, malformed, not a notebook of a lab."""
    warnings: Sequence[str] = ()
    """Lines for a person to look at: another notebook of the same student, a mark that does not count."""
    seconds: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The limits and the scoring in force; of the secret, only the fingerprint."""
    identity: str = ""
    """The student's number in the file's name, or an empty text."""
    late: bool = False
    """Whether the file's name says that it was handed in late."""

    @property
    def score(self) -> float:
        """Points earned so far, without the texts that still wait for a person."""
        return sum(mark.points for mark in self.marks if mark.status != BY_HAND)

    @property
    def out_of(self) -> int:
        """The maximum of `score`, without the texts that still wait for a person."""
        return sum(mark.out_of for mark in self.marks if mark.status != BY_HAND)

    @property
    def notebook(self) -> bool:
        """Whether the file is a notebook, or a zip, which may hold one."""
        return self.file.lower().endswith((".ipynb", ".zip"))

    @property
    def left_out(self) -> bool:
        """Whether the rules leave the lab out."""
        labs = self.settings.get("labs")
        return bool(self.lab and labs and self.lab not in labs)

    @property
    def by_hand(self) -> Sequence[Mark]:
        """The marks that wait for a person."""
        return [mark for mark in self.marks if mark.status == BY_HAND]

    @property
    def incomplete(self) -> bool:
        """Whether something was not graded, so that a person has to look."""
        return self.problem.startswith(FAULT.partition("{}")[0]) or self.not_graded > 0

    @property
    def not_graded(self) -> int:
        """Number of exercises that were not graded."""
        return sum(mark.status == FAILED for mark in self.marks)

    @property
    def ungraded(self) -> bool:
        """Whether it is a notebook that could not be graded, or not in full. Labs that the rules leave out are none."""
        return not self.left_out and (self.incomplete or (self.notebook and bool(self.problem)))

    @property
    def pending(self) -> Sequence[Mark]:
        """The marks of exercises that were not looked at yet."""
        return [mark for mark in self.marks if (mark.status, mark.note) == (FAILED, NOT_REACHED)]

    def marked(self, mark: Mark) -> Result:
        """The same result with this mark in the place of its exercise's."""
        marks = [mark if each.exercise == mark.exercise else each for each in self.marks]
        return dataclasses.replace(self, marks=marks)

    def warned(self, *warnings: str) -> Result:
        """The same result with more warnings."""
        return dataclasses.replace(self, warnings=[*self.warnings, *warnings]) if warnings else self

    def to_json(self) -> str:
        """The result as one line of JSON, with the parts of each sentence beside its English text."""
        return json.dumps(_with_parts(dataclasses.asdict(self)), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result that `to_json` wrote. Raises ValueError, KeyError or TypeError for any other text.

        >>> one = Result("ann", "05_kl", "ann.ipynb", "00", 2, "", marks=[Mark("k3", "k3", "code", 2.0, 2, RIGHT)])
        >>> Result.from_json(one.to_json()).score, one.out_of
        (2.0, 2)
        """
        data = json.loads(text, object_hook=lambda tree: Sentence.of(tree["parts"]) if "parts" in tree else tree)
        marks = [Mark(**{**mark, "findings": [Finding(*each) for each in mark["findings"]]}) for mark in data["marks"]]
        return cls(**{**data, "marks": marks})


def _with_parts(value: Any) -> Any:
    if isinstance(value, Sentence):
        return {"text": value, "parts": value.parts()}
    if isinstance(value, dict):
        return {key: _with_parts(each) for key, each in value.items()}
    return [_with_parts(each) for each in value] if isinstance(value, list | tuple) else value


class Counts(NamedTuple):
    """Numbers of files in a class, without those of labs that the rules leave out."""

    notebooks: int
    ungraded: int
    """Notebooks that could not be graded, or not in full."""
    others: int
    """Files and folders that are no notebooks."""


def counted(results: Sequence[Result]) -> Counts:
    """The numbers that the terminal, the exit code and the page about a class have in common."""
    here = [result for result in results if not result.left_out]
    others = sum(not (result.notebook or result.ungraded) for result in here)
    return Counts(len(here) - others, sum(result.ungraded for result in here), others)
