"""Mark answers: their source and inputs go into the sandbox, data come out, and scoring happens here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from grpo_lab.course.evaluate import all_right, asked, folded, judged
from grpo_lab.course.exercises import Exercise, Finding, Values
from grpo_lab.course.registry import checks_digest, lab_page
from grpo_lab.errors import NotYet, Sentence, Unanswered
from grpo_lab.grading import challenges, notebooks
from grpo_lab.grading.notebooks import Submission
from grpo_lab.grading.results import BY_HAND, FAILED, FAULT, NOT_REACHED, RIGHT, UNANSWERED, WRONG, Mark, Result
from grpo_lab.grading.rules import Rules
from grpo_lab.grading.sandbox.box import Sandbox, Tier, at_least
from grpo_lab.grading.sandbox.confinement import MIB
from grpo_lab.grading.submissions import Found

TEXT = "text"
"""The kind of exercise that a person marks."""


def share(findings: Sequence[Finding]) -> float:
    """The share of the findings that is right."""
    return sum(finding.right for finding in findings) / len(findings) if findings else 0.0


SCORING: dict[str, Callable[[Sequence[Finding]], float]] = {"whole": all_right, "share": share}
"""The share of an exercise's points that its findings earn, by the way of scoring."""


@dataclass(frozen=True)
class Course:
    """The rules and the secret, which are the same for all submissions of a class."""

    rules: Rules
    secret: bytes

    @property
    def tier(self) -> Tier:
        """The containment of every answer."""
        return at_least(self.rules.tier)

    def settings(self) -> dict[str, Any]:
        """Everything that a grade depends on beside the submission, as reports show it; never the secret itself."""
        rules = {name: value for name, value in asdict(self.rules).items() if name != "secret"}
        secret = challenges.fingerprint(self.secret)
        return {"grpo_lab": version("grpo-lab"), "checks": checks_digest(), "secret": secret, **rules}

    def result(self, student: str, file: str, lab: str = "", digest: str = "", **more: Any) -> Result:
        """A result under these rules."""
        conditions = {"attempt": self.rules.attempt, "settings": self.settings()}
        return Result(student, lab, file, digest, self.tier.number, self.tier.trust, **conditions, **more)


class Grader:
    """Mark one submission after another, in one warm sandbox where no answer reaches another."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._sandbox = Sandbox(course.tier, course.rules.limits)

    def close(self) -> None:
        """End the sandbox; it starts again when needed."""
        self._sandbox.close()

    def results(self, found: Found, before: Result | None = None) -> Iterator[Result]:
        """The result so far: before the first exercise, then after each one that `before` has not finished."""
        rules = self._course.rules
        submission = notebooks.read(found, rules.notebook_mb * MIB)
        problem, lab = submission.problem, submission.lab
        if not problem and rules.labs and lab not in rules.labs:
            problem = Sentence("the lab {}, which is not graded here: {}", lab, ", ".join(rules.labs))
        tasks = {} if problem else lab_page(lab).exercises
        marks = [Mark.unearned(task, FAILED, NOT_REACHED) for task in tasks.values()]
        about = {"lab": lab, "digest": submission.digest, "problem": problem}
        result = self._course.result(submission.student, submission.file, marks=marks, **about)
        for mark in before.marks if before else ():
            result = result.marked(mark)
        yield result
        for mark in result.pending:
            task = tasks[mark.exercise]
            result = result.marked(self.mark(submission, task))
            yield result

    def mark(self, submission: Submission, exercise: Exercise) -> Mark:
        """The mark of one exercise. An answer's failure is a finding; a failure of the grader is noted and earns 0."""
        note = submission.notes.get(exercise.name, "")
        source = submission.answers.get(exercise.name)
        if exercise.name in submission.undecided:
            return Mark.unearned(exercise, FAILED, note)
        if source is None:
            return Mark.unearned(exercise, UNANSWERED, note)
        try:
            findings, given = self._findings(submission, exercise, source)
        except Unanswered as error:
            return Mark.unearned(exercise, UNANSWERED, str(error))
        except NotYet as error:
            findings = [Finding(False, "the cell as a whole", str(error), "code that runs within the limits", "")]
            return replace(Mark.unearned(exercise, WRONG, note), findings=findings)
        except Exception as error:  # reported as `not graded`, so that the class goes on and a person looks
            return Mark.unearned(exercise, FAILED, Sentence(FAULT, f"{type(error).__name__}: {error}"))
        right = all_right(findings)
        if exercise.kind == TEXT and right:
            return replace(Mark.unearned(exercise, BY_HAND, note), text="\n\n".join(map(str, given)))
        points = exercise.points * float(SCORING[self._course.rules.scoring](findings))
        earned = Mark.unearned(exercise, RIGHT if right else WRONG, note)
        return replace(earned, points=points, findings=folded(findings))

    def _findings(self, submission: Submission, exercise: Exercise, source: str) -> tuple[list[Finding], list[Any]]:
        """The findings, and the values that the answer named.

        A function is called in two rounds: with fresh cases, then with cases transformed by the exercise's relations.
        """
        file, check = f"{exercise.name}.py", exercise.check
        if isinstance(check, Values):
            given = self._sandbox.values(source, file, check.names)
            findings = judged(exercise, given, (), self._seed(submission, exercise, 1))
            return findings, [each.value for each in given.values()]
        findings = []
        for round in (1, 2):
            seed = self._seed(submission, exercise, round)
            cases = asked(exercise, seed, transformed=round == 2)
            inputs = [case.inputs for case in cases]
            returned = self._sandbox.calls(source, file, check.name, check.probe.__name__, inputs)
            findings += judged(exercise, returned, cases, seed)
        return findings, []

    def _seed(self, submission: Submission, exercise: Exercise, round: int) -> int:
        of = (submission.digest, submission.lab, exercise.name)
        return challenges.seed(self._course.secret, *of, round=round, attempt=self._course.rules.attempt)
