"""Tables for spreadsheets and for other graders: one row for each notebook.

Points are counted alike in both tables. A text that waits for a person counts neither in the score nor in the maximum,
and the column `to_mark` counts such texts; a marked text counts in both. A notebook that could not be graded has a row
with score 0, the maximum of its lab's other notebooks, and the reason in the column `problem`.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from grpo_lab.grading.reports.plain import visible
from grpo_lab.grading.results import BY_HAND, FAILED, Mark, Result

_PERSON = ("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email")
NBGRADER = (*_PERSON, "raw_score", "late_submission_penalty", "score", "max_score")
"""The columns of nbgrader's CsvExportPlugin, in its order."""
OURS = ("to_mark", "not_graded", "problem", "warnings")
_FORMULA = re.compile(r"(^|[;\t\n])(?=\s*[=+\-@＝＋－＠])|^(?=[\t\n])")


def for_nbgrader(results: Sequence[Result]) -> str:
    """nbgrader's export and four columns more. Due dates, names and penalties are unknown, so empty or 0."""
    rows: list[list[str | float]] = [[*NBGRADER, *OURS]]
    for result in graded(results):
        score = points(result.score)
        person = [result.lab, "", "", result.student, "", "", ""]
        rows.append([*person, score, 0.0, score, points(most(result, results)), *_ours(result)])
    return table(rows)


def by_exercise(results: Sequence[Result]) -> str:
    """A table with a column `<lab>/<exercise>` for each exercise: its points, or the status that explains why not."""
    results = graded(results)
    exercises = list(dict.fromkeys((result.lab, mark.exercise) for result in results for mark in result.marks))
    head = ["student", "lab", "file", "attempt", "tier", "score", "max_score", *OURS]
    rows: list[list[str | float]] = [[*head, *("/".join(each) for each in exercises)]]
    for result in results:
        told = [result.student, result.lab, result.file, result.attempt, result.tier, points(result.score)]
        earned = {(result.lab, mark.exercise): _earned(mark) for mark in result.marks}
        of_each = [earned.get(each, "") for each in exercises]
        rows.append([*told, points(most(result, results)), *_ours(result), *of_each])
    return table(rows)


def graded(results: Sequence[Result]) -> list[Result]:
    """The results without those of labs that the rules leave out. A file of no lab stays, for a person to look at."""
    return [each for each in results if not each.left_out]


def cell(text: str) -> str:
    """The text as a cell that no spreadsheet reads as a formula: an apostrophe goes before the beginning of one.

    The same holds after a semicolon and a line break, where some spreadsheets split cells. Idempotent.

    >>> cell("=1+1"), cell("a - b"), cell(cell("-1; =2"))
    ("'=1+1", 'a - b', "'-1;' =2")
    """
    return _FORMULA.sub(r"\1'", visible(text))


def table(rows: Iterable[Sequence[str | float]]) -> str:
    """The rows as CSV, every text made safe by `cell`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([[cell(each) if isinstance(each, str) else each for each in row] for row in rows])
    return text.getvalue()


def most(result: Result, results: Sequence[Result]) -> float:
    """The maximum of a result; for one that could not be graded, that of its lab's other notebooks."""
    return result.out_of or max(other.out_of for other in results if other.lab == result.lab)


def _ours(result: Result) -> list[str | float]:
    failed = sum(mark.status == FAILED for mark in result.marks)
    return [len(result.by_hand), failed, result.problem, "; ".join(result.warnings)]


def _earned(mark: Mark) -> str | float:
    return mark.status if mark.status in (BY_HAND, FAILED) else points(mark.points)


def points(earned: float) -> float:
    """Points as tables hold them."""
    return round(float(earned), 6)
