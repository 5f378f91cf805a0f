"""Marks an answer: its source goes into the sandbox with inputs, data come out, and are judged here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from grpo_lab.course.answers import Given
from grpo_lab.course.evaluate import all_right, asked, judged
from grpo_lab.course.exercises import Exercise, Finding, Function, Values
from grpo_lab.errors import NotYet, Unanswered
from grpo_lab.grading import challenges
from grpo_lab.grading.literals import literal
from grpo_lab.grading.notebooks import Submission
from grpo_lab.grading.results import BY_HAND, FAILED, RIGHT, UNANSWERED, WRONG, Mark
from grpo_lab.grading.rules import Rules
from grpo_lab.grading.sandbox.box import Sandbox
from grpo_lab.grading.sandbox.confinement import Limits
from grpo_lab.grading.sandbox.tiers import Tier, at_least

TEXT = "text"
"""The kind of exercise that a person marks."""


def whole(findings: Sequence[Finding]) -> float:
    """All points for what is right throughout, none for anything else."""
    return float(all_right(findings))


def share(findings: Sequence[Finding]) -> float:
    """As large a share of the points as of the findings is right."""
    return sum(finding.right for finding in findings) / len(findings) if findings else 0.0


SCORING = {"whole": whole, "share": share}


def limits(rules: Rules) -> Limits:
    """What the rules allow one answer in the sandbox."""
    return Limits(rules.seconds, rules.memory_mb, rules.processes, rules.output_kb)


@dataclass(frozen=True)
class Course:
    """What is the same for all submissions of a class."""

    rules: Rules
    secret: bytes

    @property
    def tier(self) -> Tier:
        """The containment of every answer."""
        return at_least(self.rules.tier)

    def settings(self) -> dict[str, Any]:
        """What a grade depends on beside the submission, as reports show it."""
        rules = {name: value for name, value in asdict(self.rules).items() if name != "secret"}
        known = {"grpo_lab": version("grpo-lab"), "secret": challenges.fingerprint(self.secret)}
        return {**known, **rules}


class Grader:
    """Marks the exercises of one submission after another, in a sandbox of its own."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._sandbox = Sandbox(course.tier, limits(course.rules))

    def close(self) -> None:
        """End the sandbox: the next submission finds another one."""
        self._sandbox.close()

    def mark(self, submission: Submission, exercise: Exercise) -> Mark:
        """What an exercise earned. Whatever an answer does is a finding; what fails here says so, and earns nothing."""
        nothing = Mark(exercise.name, exercise.title, exercise.kind, 0.0, exercise.points, UNANSWERED)
        note = submission.notes.get(exercise.name, "")
        source = submission.answers.get(exercise.name)
        if source is None:
            return replace(nothing, note=note)
        try:
            findings, given = self._asked(submission, exercise, source)
        except Unanswered as error:
            return replace(nothing, note=str(error))
        except NotYet as error:
            failed = Finding(False, "the cell as a whole", str(error), "code that runs within the limits", "")
            return replace(nothing, note=note, status=WRONG, findings=[failed])
        except Exception as error:  # a class goes on; what was not graded is told, and looked at by a person
            return replace(nothing, status=FAILED, note=f"the grader failed: {type(error).__name__}: {error}")
        if exercise.kind == TEXT and all_right(findings):
            return replace(nothing, note=note, status=BY_HAND, text="\n\n".join(map(str, given)))
        points = exercise.points * SCORING[self._course.rules.scoring](findings)
        status = RIGHT if all_right(findings) else WRONG
        return replace(nothing, note=note, status=status, points=points, findings=findings)

    def _asked(self, submission: Submission, exercise: Exercise, source: str) -> tuple[list[Finding], list[Any]]:
        """The findings, and the values that were named. A function is asked in two rounds: fresh cases, then cases
        that follow from fresh ones by what must hold."""
        if isinstance(exercise.check, Values):
            given = self._values(exercise, exercise.check, source)
            findings = judged(exercise, given, (), self._seed(submission, exercise, 1))
            return findings, [each.value for each in given.values()]
        first = self._called(exercise, exercise.check, source, self._seed(submission, exercise, 1), transformed=False)
        second = self._called(exercise, exercise.check, source, self._seed(submission, exercise, 2), transformed=True)
        return [*first, *second], []

    def _seed(self, submission: Submission, exercise: Exercise, round: int) -> int:
        of = (submission.digest, submission.lab, exercise.name)
        return challenges.seed(self._course.secret, *of, round=round, attempt=self._course.rules.attempt)

    def _called(self, exercise: Exercise, check: Function, source: str, seed: int, transformed: bool) -> list[Finding]:
        cases = asked(exercise, seed, transformed)
        inputs = [case.inputs for case in cases]
        given = self._sandbox.calls(source, f"{exercise.name}.py", check.name, check.probe.__name__, inputs)
        return judged(exercise, given, cases, seed)

    def _values(self, exercise: Exercise, check: Values, source: str) -> dict[str, Given]:
        """What the answer gives to names. Where they are written out, nothing has to run."""
        if (written := literal(source, check.names)) is not None:
            return {name: Given(value) for name, value in written.items()}
        return self._sandbox.values(source, f"{exercise.name}.py", check.names)
