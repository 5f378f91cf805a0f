"""The class list: it tells who belongs to the class, whose submission is whose, and who handed in nothing."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from grpo_lab.errors import DataError
from grpo_lab.grading import tables
from grpo_lab.grading.intake import CLASSROOM, MOODLE
from grpo_lab.grading.reports.plain import printable
from grpo_lab.grading.results import Result
from grpo_lab.grading.students import Student, composed, groups_in, plain
from grpo_lab.grading.submissions import Found
from grpo_lab.paths import data_tables

_NO_STUDENT = ("points possible", "student, test")
"""Rows of Canvas's gradebook that are no student's."""
LATE = "handed in late, by the name of its file"
NOT_LISTED = "its sender is in no row of the class list, or in several; correct the list"
OTHER_NUMBER = (
    "another student has this name, by the numbers in the names of files, and no row of the class list has this name "
    "with this number; correct the list"
)
UNLISTED = "unlisted"
"""A sender without a number, whose name a row of the class list has too."""
NAMESAKE = (
    "another student has this name, by the numbers in the names of files; a class list (--roster) tells them apart"
)


class Roster:
    """The students of a class, found by their names, ids, e-mail addresses, logins and groups."""

    def __init__(self, students: Sequence[Student]) -> None:
        self.students = students
        self._known: dict[str, set[Student]] = defaultdict(set)
        self._groups: dict[str, list[Student]] = defaultdict(list)
        for student in students:
            for key in _keys(student):
                self._known[key].add(student)
            for group in groups_in(student.group):
                self._groups[group].append(student)

    def senders(self, name: str, identity: str = "", system: str = "", namesakes: bool = False) -> Sequence[Student]:
        """The student with this name or else this id, or else the members of this group; empty for none or several.

        With `namesakes`, and where several rows have the name, the student's row needs the id too. A name of GitHub,
        which its owner chose, is compared with the names of GitHub alone: it could be anybody's.

        >>> roster = Roster([Student("Ada Lovelace", "7", group="Red")])
        >>> [len(roster.senders(name)) for name in ("lovelaceada", "Lovelace, Ada", "red", "ada")]
        [1, 1, 1, 0]
        """
        if system == CLASSROOM:
            owners = [student for student in self.students if student.github.casefold() == name.casefold()]
            return owners if len(owners) == 1 else []
        named, numbered = (self._known.get(plain(key), set()) for key in (name, identity))
        by_both = named and (namesakes or len(named) > 1)
        if len(found := named & numbered if by_both else named or numbered) == 1:
            return list(found)
        return [] if named else self._groups.get(plain(name), [])


def read(path: Path) -> Roster:
    """The class list in a CSV file with one of the headings in data/intake.toml for each column.

    Raises DataError, which names the row or the column, for a table that is no class list.
    """
    table = tables.read(path, "name the CSV file with the class list", "with a first row of headings")
    columns = _columns(path, table.head)
    every = [(place, _student(path, place, row, columns)) for place, row in table.rows]
    listed = [(place, student) for place, student in every if student.student.casefold() not in _NO_STUDENT]
    if not listed:
        raise DataError(f"{path} names no student; write one in each row below the headings")
    _check_rows(path, listed)
    return Roster(list(_told_apart(path, [student for _, student in listed])))


def _student(path: Path, place: int, row: Mapping[str, str], columns: Mapping[str, str]) -> Student:
    """The student of a row. Raises DataError for a row without a name."""
    given = {field: composed(row[heading].strip()) for field, heading in columns.items()}
    whole = f"{given.pop('first', '')} {given.pop('last', '')}".strip()
    name = given.pop("student", "") or whole or given.get("id", "")
    if not name:
        raise DataError(
            f"{path}, row {place}: no name; fill in {columns.get('student', 'the name')}, or delete the row"
        )
    return Student(printable(name), **given)


def _check_rows(path: Path, listed: Sequence[tuple[int, Student]]) -> None:
    """Raise DataError for a student in two rows, and for two students with one id."""
    met: dict[Student, int] = {}
    ids: dict[str, tuple[int, str]] = {}
    for place, student in listed:
        if (before := met.setdefault(student._replace(group="", section=""), place)) != place:
            raise DataError(
                f"{path}, row {place}: {student.student!r} is already in row {before}; delete one of the two, or give "
                "both an id"
            )
        before, other = ids.setdefault(student.id.casefold(), (place, student.student))
        if student.id and before != place:
            raise DataError(
                f"{path}, row {place}: {student.student!r} has the id {student.id!r}, as {other!r} has in row "
                f"{before}; correct one of the two"
            )


def applied(
    every: Sequence[Found], results: Sequence[Result], roster: Roster | None
) -> tuple[list[Found], list[Result]]:
    """Files and results with the facts of their names and of the class list; a group's is there for each member.

    Without a class list, and for senders who are not in it, two students with the same name and different numbers get
    their numbers as part of their names. Warnings tell of that, of lateness, and of senders who are not in the list.
    """
    numbers: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for found, result in zip(every, results, strict=True):
        numbers[_owners(found, result.lab, roster)].add(found.identity)
    files, told = [], []
    for found, result in zip(every, results, strict=True):
        facts = {"system": found.system, "identity": found.identity, "late": found.late}
        result = dataclasses.replace(result, **facts).warned(*([LATE] if found.late else []))
        namesakes = len(numbers[_owners(found, result.lab, roster)]) > 1
        for each in _owned(result, roster, namesakes) if roster else [_numbered(result, namesakes, NAMESAKE)]:
            files.append(found)
            told.append(each)
    return files, told


def _owners(found: Found, lab: str, roster: Roster | None) -> tuple[str, ...]:
    """The platform and the students by their names alone: two numbers here are two people.

    Moodle's numbers are those of one assignment, so they say nothing across labs, nor about files of no lab.
    """
    students = roster.senders(found.student, system=found.system) if roster else ()
    assignment = (lab or found.identity) if found.system == MOODLE else ""
    return (found.system, assignment, *([student.student for student in students] or [found.student]))


def _owned(result: Result, roster: Roster, namesakes: bool) -> Iterator[Result]:
    """The result once for each student whose it is."""
    senders = roster.senders(result.student, result.identity, result.system, namesakes)
    for student in senders:
        yield dataclasses.replace(result, student=student.student, group=student.group)
    if not senders:
        taken = result.student in {student.student for student in roster.students}
        apart = _numbered(result, namesakes or taken, OTHER_NUMBER if namesakes else "")
        yield apart.warned(*([] if namesakes else [NOT_LISTED]))


def _numbered(result: Result, apart: bool, warning: str) -> Result:
    """The result; `apart` from others of its student's name, its number is part of the name."""
    if not apart:
        return result
    mark = result.identity or result.system or UNLISTED
    return dataclasses.replace(result, student=f"{result.student} ({mark})").warned(*([warning] if warning else []))


def _columns(path: Path, head: Sequence[str]) -> dict[str, str]:
    """The heading of each field that the table has. Raises DataError for none or two of a field."""
    headings = data_tables("intake")["roster"]
    columns: dict[str, str] = {}
    for heading in head:
        for field, names in headings.items():
            if heading.strip().casefold() not in names:
                continue
            if field in columns:
                raise DataError(f"{path}: {columns[field]!r} and {heading!r} both mean {field}; delete one column")
            columns[field] = heading
    if not {"student", "last", "id"} & columns.keys():
        raise DataError(
            f"{path} has no column of names: its first row is {', '.join(map(repr, head))}; name one of them "
            f"{' or '.join(headings['student'][:3])}"
        )
    return columns


def _told_apart(path: Path, students: Sequence[Student]) -> Iterator[Student]:
    """The students with unique names. Raises DataError for namesakes without id, e-mail address and login."""
    alike: Mapping[str, list[Student]] = defaultdict(list)
    for student in students:
        alike[student.student].append(student)
    for student in students:
        if len(alike[student.student]) == 1:
            yield student
        elif mark := student.id or student.email or student.login:
            yield student._replace(student=f"{student.student} ({mark})")
        else:
            raise DataError(f"{path}: {student.student!r} is in two rows; give both an id, or delete one")


def _keys(student: Student) -> set[str]:
    """The texts, made plain by `plain`, by which a submission can name this student."""
    words = re.findall(r"[^\s,]+", re.sub(r" \([^()]*\)\Z", "", student.student))
    names = ("".join(words[place:] + words[:place]) for place in range(len(words)))
    others = (student.student, student.id, student.email, student.email.partition("@")[0], student.login)
    moodle = student.id.removeprefix("Participant ")
    return {plain(text) for text in (*names, *others, moodle, student.sis_id)} - {""}
