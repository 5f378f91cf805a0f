"""CSV files for import into the gradebooks of Canvas and Moodle.

A score without the texts that wait for a person is imported as it is. A cell is empty where
nothing was handed in or something could not be graded: a person decides.
"""

from collections.abc import Sequence

from grpo_lab.course import registry
from grpo_lab.grading.intake import CANVAS, MOODLE
from grpo_lab.grading.reports.gradebook import points, table
from grpo_lab.grading.reports.overview import Overview, Row
from grpo_lab.grading.results import Result
from grpo_lab.grading.students import Student

CANVAS_HEAD = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POSSIBLE = "    Points Possible"
"""The name in the second row, as Canvas exports it."""
MOODLE_HEAD = ("Identifier", "Full name", "Grade", "Maximum Grade", "Last modified (grade)")
"""The columns of an assignment's grading worksheet that its import reads, in English; it asks for all but two."""


def files(overview: Overview, students: Sequence[Student] = ()) -> dict[str, bytes]:
    """The files by name: one for Canvas, one for Moodle's gradebook, and one for each of its assignments.

    There are those for which names of submissions or the class list give the ids.
    """
    listed = {student.student: student for student in students}
    made = {}
    if students or _names(overview, CANVAS):
        made["canvas.csv"] = _canvas(overview, listed)
    if any(student.email or student.id or student.login for student in students):
        made["moodle.csv"] = _gradebook(overview, listed)
    for lab in registry.lab_names():
        if any(row.results[lab].system == MOODLE for row in overview.rows if lab in row.results):
            made[f"moodle/{lab}.csv"] = _worksheet(overview, lab)
    return {name: text.encode("utf-8-sig" if name == "canvas.csv" else "utf-8") for name, text in made.items()}


def _canvas(overview: Overview, listed: dict[str, Student]) -> str:
    rows: list[list[str | float]] = [[*CANVAS_HEAD, *overview.labs]]
    rows.append([POSSIBLE, "", "", "", "", *(points(overview.most[lab]) for lab in overview.labs)])
    for row in overview.rows:
        known = listed.get(row.student, Student(row.student))
        number = next((each.identity for each in row.results.values() if each.system == CANVAS), known.id)
        person = [row.student, number, known.sis_id, known.login, known.section]
        rows.append([*person, *_scores(overview, row)])
    return table(rows)


def _gradebook(overview: Overview, listed: dict[str, Student]) -> str:
    rows: list[list[str | float]] = [["Full name", "ID number", "Email address", "Username", *overview.labs]]
    for row in overview.rows:
        if known := listed.get(row.student):
            rows.append([row.student, known.id, known.email, known.login, *_scores(overview, row)])
    return table(rows)


def _worksheet(overview: Overview, lab: str) -> str:
    rows: list[list[str | float]] = [[*MOODLE_HEAD]]
    for row in overview.rows:
        result = row.results.get(lab)
        if result and result.system == MOODLE:
            number = f"Participant {result.identity}"
            rows.append([number, row.student, _score(result), points(overview.most[lab]), ""])
    return table(rows)


def _scores(overview: Overview, row: Row) -> list[str | float]:
    return [_score(row.results.get(lab)) for lab in overview.labs]


def _score(result: Result | None) -> str | float:
    return "" if result is None or result.problem or result.incomplete else points(result.score)


def _names(overview: Overview, system: str) -> bool:
    return any(result.system == system for row in overview.rows for result in row.results.values())
