"""Texts that a person marks: a table with two empty columns goes out, and points come back.

Student, lab, exercise and the file's digest, as the table holds them, identify the answer that a mark belongs to.
"""

import csv
import dataclasses
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_lab.errors import DataError, Sentence
from grpo_lab.grading.reports.tables import cell, table
from grpo_lab.grading.reports.words import number
from grpo_lab.grading.results import BY_HAND, MARKED, Mark, Result

TO_MARK = "to_mark.csv"
COLUMNS = ("student", "lab", "exercise", "title", "points", "answer", "mark", "comment", "digest")
Row = dict[str, str]


class Answer(NamedTuple):
    """The identity of an answer."""

    student: str
    lab: str
    exercise: str
    digest: str


class Marking(NamedTuple):
    """A person's mark of one answer."""

    answer: Answer
    points: float
    comment: str
    where: str
    """File, row and answer, for warnings."""
    problem: str = ""
    """The reason why the mark cannot count, in whatever notebook."""


def to_mark(results: Sequence[Result], path: Path) -> bytes:
    """The content of to_mark.csv, or nothing where there is nothing to mark.

    All marks and comments in the file at `path` are kept, including those of answers that no longer exist.
    """
    entered = {answer: row for answer, (_, row) in _entered(path).items()} if path.exists() else {}
    rows = []
    for answer, mark in _answers(results).items():
        before = entered.pop(answer, {})
        points, comment = (f"{mark.points:.10g}", mark.note) if mark.status == MARKED else ("", "")
        row = {**answer._asdict(), "title": mark.title, "points": str(mark.out_of), "answer": mark.text}
        rows.append({**row, "mark": before.get("mark", points), "comment": before.get("comment", comment)})
    rows += entered.values()
    if not rows:
        return b""
    # The byte-order mark tells Excel that the file is UTF-8.
    return table([COLUMNS, *([row[name] for name in COLUMNS] for row in rows)]).encode("utf-8-sig")


def read_marks(path: Path) -> list[Marking]:
    """The marks in a to_mark.csv. An empty mark means not marked yet.

    A mark outside 0 to the exercise's points has a `problem`. Raises DataError for a file that is missing or not such a
    table.
    """
    return [_marking(answer, where, row) for answer, (where, row) in _entered(path).items() if row["mark"].strip()]


def with_marks(results: Sequence[Result], marks: Iterable[Marking]) -> list[Result]:
    """The results with the points and comments of marked texts.

    A mark that cannot count, because its notebook has changed or its points are out of range, is a warning in the
    results of its student and lab. `unplaced` lists the marks that have no such result.
    """
    answers, given, warnings = _answers(results), {}, defaultdict(list)
    for marking in marks:
        if complaint := _complaint(marking, answers, results):
            warnings[marking.answer[:2]].append(Sentence("{}: {}", marking.where, complaint))
        else:
            given[marking.answer] = marking

    def marked(result: Result, mark: Mark) -> Mark:
        found = given.get(_answer(result, mark))
        return dataclasses.replace(mark, status=MARKED, points=found.points, note=found.comment) if found else mark

    return [
        dataclasses.replace(result, marks=[marked(result, mark) for mark in result.marks]).warned(
            *warnings[cell(result.student), cell(result.lab)]
        )
        for result in results
    ]


def unplaced(results: Sequence[Result], marks: Iterable[Marking]) -> list[str]:
    """One line for each mark whose student or lab is not among the results, so that no row can hold its warning."""
    rows, answers = {(cell(result.student), cell(result.lab)) for result in results}, _answers(results)
    return [f"{each.where}: {_complaint(each, answers, results)}" for each in marks if each.answer[:2] not in rows]


def _answer(result: Result, mark: Mark) -> Answer:
    return Answer(cell(result.student), cell(result.lab), cell(mark.exercise), cell(result.digest))


def _answers(results: Sequence[Result]) -> dict[Answer, Mark]:
    marks = [(result, mark) for result in results for mark in result.marks]
    return {_answer(result, mark): mark for result, mark in marks if mark.status in (BY_HAND, MARKED)}


def _complaint(marking: Marking, answers: Mapping[Answer, Mark], results: Sequence[Result]) -> str:
    answer = marking.answer
    if marking.problem:
        return marking.problem
    if answer in answers:
        most = answers[answer].out_of
        said = "mark {} is above the {} points; lower it"
        return "" if marking.points <= most else Sentence(said, number(marking.points), most)
    now = [cell(result.digest) for result in results if (cell(result.student), cell(result.lab)) == answer[:2]]
    if not now:
        said = "no notebook of {} for {} was graded; correct the row, or delete it"
        return Sentence(said, repr(answer.student), repr(answer.lab))
    if answer.digest not in now:
        versions = Sentence("{} then, {} now", answer.digest[:8], ", ".join(digest[:8] for digest in now))
        said = "the notebook has changed since it was marked ({}); delete the row, and grade to get a new one"
        return Sentence(said, versions)
    texts = sorted({each.exercise for each in answers if each[:2] == answer[:2]})
    said = "exercise {} has no text to mark ({} has one); delete the row"
    return Sentence(said, repr(answer.exercise), ", ".join(texts) or Sentence("none"))


def _entered(path: Path) -> dict[Answer, tuple[str, Row]]:
    """Place and row of each mark or comment, by answer. Raises DataError for two rows that contradict each other."""
    found: dict[Answer, tuple[str, Row]] = {}
    for place, row in _rows(path):
        if not (row["mark"].strip() or row["comment"].strip()):
            continue
        answer = Answer(*(cell(row[name]) for name in Answer._fields))
        where = Sentence("{}, row {} ({})", path.name, place, f"{answer.student}, {answer.lab}, {answer.exercise}")
        other, before = found.setdefault(answer, (where, row))
        if (before["mark"], before["comment"]) != (row["mark"], row["comment"]):
            raise DataError(f"{where}: {other} differs about the same answer; delete one of the two")
    return found


def _rows(path: Path) -> list[tuple[int, Row]]:
    """The rows by number, with commas, semicolons or tabs between cells. Raises DataError for any other file."""
    again = "save it as CSV in UTF-8, or move it away to get a new one"
    try:
        text = path.read_text(encoding="utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        rows = list(enumerate(reader, start=2))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {again}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a table in UTF-8 ({error}); {again}") from error
    if missing := set(COLUMNS) - set(reader.fieldnames or ()):
        raise DataError(f"{path} has no column {', '.join(sorted(missing))}; {again}")
    for place, row in rows:
        if None in row or None in row.values():
            raise DataError(f"{path}, row {place}: not {len(COLUMNS)} cells; put texts with commas in quotes")
    return rows


def _marking(answer: Answer, where: str, row: Row) -> Marking:
    """The mark in a row, with a decimal comma or point; its `problem` tells of one outside 0 to the points."""
    try:
        mark, most = (float(row[name].strip().replace(",", ".")) for name in ("mark", "points"))
    except ValueError:
        mark = most = float("nan")
    limits = Sentence("give a number from 0 to {}, or leave it empty for not marked yet", row["points"])
    problem = "" if 0 <= mark <= most else Sentence("mark {} is not valid; {}", repr(row["mark"]), limits)
    return Marking(answer, mark, Sentence("{}", row["comment"].strip()), where, problem)
