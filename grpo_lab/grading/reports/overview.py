"""The class as a table of students and labs: scores, lateness, and who handed in nothing."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grpo_lab.grading.reports.gradebook import graded, most, points, table
from grpo_lab.grading.results import Result
from grpo_lab.grading.students import Student

NOTHING, NOT_GRADED = "nothing handed in", "not graded"


class Row(NamedTuple):
    """A student with the results that count, by lab."""

    student: str
    group: str
    results: Mapping[str, Result]
    others: int
    """Number of files that belong to no lab."""
    listed: bool
    """Whether the class list names the student; True without a class list."""

    @property
    def score(self) -> float:
        """Points in all labs."""
        return sum(result.score for result in self.results.values())

    @property
    def late(self) -> Sequence[str]:
        """Labs that were handed in late, as far as names of files tell."""
        return [lab for lab, result in self.results.items() if result.late]

    def missing(self, labs: Sequence[str]) -> Sequence[str]:
        """The labs of which the student handed in nothing."""
        return [lab for lab in labs if lab not in self.results]


class Overview(NamedTuple):
    """The rows of a class, and its labs."""

    labs: Sequence[str]
    most: Mapping[str, float]
    """The maximum of each lab."""
    rows: Sequence[Row]

    @property
    def absent(self) -> Sequence[str]:
        """Students of the class list of whom there is no file at all."""
        return [row.student for row in self.rows if not row.results and not row.others]


def of_class(results: Sequence[Result], students: Sequence[Student] = ()) -> Overview:
    """The students of the class list in its order, then all others who handed something in.

    >>> ann = Result("ann", "05_kl", "a.ipynb", "", 2, "")
    >>> of_class([ann], [Student("ann"), Student("ben")]).absent
    ['ben']

    Labs are those of which a notebook was handed in.
    """
    results = graded(results)
    labs = sorted({result.lab for result in results if result.lab})
    of: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        of[result.student].append(result)
    groups = {student.student: student.group for student in students}
    rows = [
        Row(
            name,
            groups.get(name, ""),
            {result.lab: result for result in sorted(of[name], key=lambda each: each.lab) if result.lab},
            sum(not result.lab for result in of[name]),
            not students or name in groups,
        )
        for name in dict.fromkeys([*groups, *sorted(of)])
    ]
    return Overview(labs, {lab: max(most(each, results) for each in results if each.lab == lab) for lab in labs}, rows)


def as_csv(overview: Overview) -> str:
    """A row for each student: points in each lab or the reason why there are none, lateness and what is missing."""
    labs = overview.labs
    head = ["student", "group", *labs, "score", "max_score", "late", "missing", "files_of_no_lab", "in_class_list"]
    rows: list[list[str | float]] = [list(head)]
    for row in overview.rows:
        scores = [_cell(row.results.get(lab)) for lab in labs]
        total = [points(row.score), points(sum(overview.most.values()))]
        said = [" ".join(row.late), " ".join(row.missing(labs)), row.others, "yes" if row.listed else "no"]
        rows.append([row.student, row.group, *scores, *total, *said])
    return table(rows)


def _cell(result: Result | None) -> str | float:
    if result is None:
        return NOTHING
    return NOT_GRADED if result.problem else points(result.score)
