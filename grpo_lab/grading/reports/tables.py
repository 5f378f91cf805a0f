"""Tables for spreadsheets: class.csv with a row for each student, grades.csv with a row for each notebook.

A text that waits for a person counts neither in the score nor in the maximum; a marked text counts in both. A notebook
that could not be graded has score 0, the maximum of its lab's other notebooks, and the reason in the column `problem`.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from grpo_lab.grading.reports.words import visible
from grpo_lab.grading.results import BY_HAND, FAILED, Mark, Result

NOTHING, NO_LAB, NOT_GRADED = "nothing handed in", "only files of no lab", "not graded"
SHOWN = 3
"""Files of no lab whose reasons a student's row gives."""
_FORMULA = re.compile(r"(^|[;\t\n])(?=\s*[=+\-@＝＋－＠])|^(?=[\t\n])")


class Row(NamedTuple):
    """A student with the results that count, by lab."""

    student: str
    identity: str
    """The student's number in the names of files; several, with spaces, where each assignment has its own."""
    results: Mapping[str, Result]
    others: Sequence[Result]
    """The files that belong to no lab, such as a zip that was refused."""

    @property
    def score(self) -> float:
        """Points in all labs."""
        return sum(result.score for result in self.results.values())

    @property
    def only_others(self) -> bool:
        """Whether the student handed something in, of which no lab is known."""
        return bool(self.others) and not self.results


class Overview(NamedTuple):
    """The rows of a class, and the maximum of each lab."""

    most: Mapping[str, float]
    rows: Sequence[Row]


def of_class(results: Sequence[Result]) -> Overview:
    """The students who handed something in, and the labs of which a notebook was handed in."""
    results = [each for each in results if not each.left_out]  # a file of no lab stays, for a person to look at
    of: dict[str, list[Result]] = defaultdict(list)
    for result in sorted(results, key=lambda result: result.lab):
        of[result.student].append(result)
    rows = [
        Row(
            student,
            " ".join(dict.fromkeys(each.identity for each in results if each.student == student and each.identity)),
            {result.lab: result for result in of[student] if result.lab},
            [result for result in of[student] if not result.lab],
        )
        for student in sorted(of)
    ]
    labs = sorted({result.lab for result in results if result.lab})
    return Overview({lab: max(_most(each, results) for each in results if each.lab == lab) for lab in labs}, rows)


def by_student(overview: Overview) -> str:
    """class.csv: points in each lab or the reason for none, lateness, what is missing or not graded."""
    labs = list(overview.most)
    about = ["late", "missing", "incomplete", "files_of_no_lab", "problem"]
    rows: list[list[str | float]] = [["student", "id", *labs, "score", "max_score", *about]]
    for row in overview.rows:
        late = [lab for lab, result in row.results.items() if result.late]
        missing = [lab for lab in labs if lab not in row.results]
        incomplete = [lab for lab, result in row.results.items() if result.incomplete]
        problems = [f"{each.file}: {each.problem}" for each in row.others[:SHOWN]]
        if (more := len(row.others) - SHOWN) > 0:
            problems.append(f"and {more} more")
        rows.append([
            *(row.student, row.identity, *(_in_lab(row, lab) for lab in labs)),
            *(_points(row.score), _points(sum(overview.most.values()))),
            *(" ".join(late), " ".join(missing), " ".join(incomplete), len(row.others), "; ".join(problems)),
        ])  # fmt: skip
    return table(rows)


def by_exercise(results: Sequence[Result]) -> str:
    """grades.csv: a column `<lab>/<exercise>` for each exercise has its points, or the status that explains why not."""
    results = [each for each in results if not each.left_out]
    exercises = list(dict.fromkeys((result.lab, mark.exercise) for result in results for mark in result.marks))
    about = ["student", "lab", "file", "attempt", "tier", "score", "max_score"]
    about += ["to_mark", "not_graded", "problem", "warnings"]
    rows: list[list[str | float]] = [[*about, *("/".join(each) for each in exercises)]]
    for result in results:
        earned = {(result.lab, mark.exercise): _earned(mark) for mark in result.marks}
        rows.append([
            *(result.student, result.lab, result.file, result.attempt, result.tier),
            *(_points(result.score), _points(_most(result, results)), len(result.by_hand), result.not_graded),
            *(result.problem, "; ".join(result.warnings), *(earned.get(each, "") for each in exercises)),
        ])  # fmt: skip
    return table(rows)


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


def _most(result: Result, results: Sequence[Result]) -> float:
    """The maximum of a result; for one that could not be graded, that of its lab's other notebooks."""
    return result.out_of or max(other.out_of for other in results if other.lab == result.lab)


def _in_lab(row: Row, lab: str) -> str | float:
    result = row.results.get(lab)
    if result is None:
        return NO_LAB if row.only_others else NOTHING
    return NOT_GRADED if result.problem else _points(result.score)


def _earned(mark: Mark) -> str | float:
    return mark.status if mark.status in (BY_HAND, FAILED) else _points(mark.points)


def _points(earned: float) -> float:
    return round(float(earned), 6)
