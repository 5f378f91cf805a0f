"""The class as a table of students and labs: scores, lateness, and what is missing."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grpo_lab.grading.reports.gradebook import graded, most, points, table
from grpo_lab.grading.results import Result

NOTHING, NO_LAB, NOT_GRADED = "nothing handed in", "only files of no lab", "not graded"
SHOWN = 3
"""Files of no lab whose reasons a student's row gives."""


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
    def late(self) -> Sequence[str]:
        """Labs that were handed in late, as far as names of files tell."""
        return [lab for lab, result in self.results.items() if result.late]

    @property
    def incomplete(self) -> Sequence[str]:
        """Labs with an exercise that was not graded."""
        return [lab for lab, result in self.results.items() if result.incomplete]

    @property
    def only_others(self) -> bool:
        """Whether the student handed something in, of which no lab is known."""
        return bool(self.others) and not self.results

    @property
    def problem(self) -> str:
        """The reasons about files of no lab, in one line."""
        more = len(self.others) - SHOWN
        told = [f"{each.file}: {each.problem}" for each in self.others[:SHOWN]]
        return "; ".join([*told, *([f"and {more} more"] if more > 0 else [])])

    def missing(self, labs: Sequence[str]) -> Sequence[str]:
        """The labs of which the student handed in nothing."""
        return [lab for lab in labs if lab not in self.results]


class Overview(NamedTuple):
    """The rows of a class, and its labs."""

    labs: Sequence[str]
    most: Mapping[str, float]
    """The maximum of each lab."""
    rows: Sequence[Row]


def of_class(results: Sequence[Result]) -> Overview:
    """The students who handed something in, and the labs of which a notebook was handed in."""
    results = graded(results)
    labs = sorted({result.lab for result in results if result.lab})
    of: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        of[result.student].append(result)
    rows = [
        Row(
            name,
            " ".join(dict.fromkeys(each.identity for each in of[name] if each.identity)),
            {result.lab: result for result in sorted(of[name], key=lambda each: each.lab) if result.lab},
            [result for result in of[name] if not result.lab],
        )
        for name in sorted(of)
    ]
    return Overview(labs, {lab: max(most(each, results) for each in results if each.lab == lab) for lab in labs}, rows)


def as_csv(overview: Overview) -> str:
    """A row for each student: points in each lab or the reason for none, lateness, what is missing or not graded."""
    labs = overview.labs
    about = ["late", "missing", "incomplete", "files_of_no_lab", "problem"]
    rows: list[list[str | float]] = [["student", "id", *labs, "score", "max_score", *about]]
    for row in overview.rows:
        scores = [_cell(row, lab) for lab in labs]
        total = [points(row.score), points(sum(overview.most.values()))]
        said = [" ".join(each) for each in (row.late, row.missing(labs), row.incomplete)]
        others = [len(row.others), row.problem]
        rows.append([row.student, row.identity, *scores, *total, *said, *others])
    return table(rows)


def _cell(row: Row, lab: str) -> str | float:
    result = row.results.get(lab)
    if result is None:
        return NO_LAB if row.only_others else NOTHING
    return NOT_GRADED if result.problem else points(result.score)
