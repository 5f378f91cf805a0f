"""Reads answers.toml of a lab: answers to its exercises that are known to be wrong, nearly right, or right.

    [guard.wrong."nan > limit"]                       # [<exercise>.<kind>."<name>"]
    change.'math.isfinite(norm) and ' = ''            # changes of the solution, where each text stands once
    reason = "A norm of NaN is accepted here."        # absent where no reason names the mistake

    [guard.right."in two lines"]
    cell = '''...'''                                  # or the text of a whole cell

An answer that gives all the values of a wrong one is told its reason: the changed solution is run with the same inputs.
Where several match, the first in the file counts. `same_reason = "nan > limit"` stands for the reason of that answer.
For an exercise that no function's values judge, checks.py has the reasons, and `reason` is the beginning of one.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from grpo_lab.config import user_code
from grpo_lab.course.editions.solutions import NOTEBOOK, solution
from grpo_lab.course.exercises import Mistake
from grpo_lab.errors import DataError, GrpoLabError, check_known
from grpo_lab.paths import read_toml

FILE = "answers.toml"
WRONG, NEAR, RIGHT = KINDS = ("wrong", "near", "right")
_KEYS = {"change": dict, "cell": str, "reason": str, "same_reason": str}


class KnownAnswer(NamedTuple):
    """An answer as it would stand in the cell of its exercise, below the line that names the exercise."""

    lab: str
    exercise: str
    kind: str
    """`wrong`, `near`: wrong by a digit, a sign or a bound, or `right`, in other words than the solution."""
    name: str
    source: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.lab}/{self.exercise}/{self.name}"


def known_answers(folder: Path) -> Sequence[KnownAnswer]:
    """All known answers of a lab, in the order of its answers.toml; none where it or notebook.py was not handed out.

    Raises DataError for a row that is neither a change of the solution nor a cell, or breaks another rule.
    """
    files = (folder / FILE, folder / NOTEBOOK)
    return _known(folder, *(path.read_bytes() for path in files)) if all(path.is_file() for path in files) else ()


@functools.lru_cache(maxsize=64)
def _known(folder: Path, *_: bytes) -> Sequence[KnownAnswer]:
    found = []
    path = folder / FILE
    for exercise, by_kind in _tables(read_toml(path, DataError), path).items():
        rows = [(kind, *row) for kind in _tables(by_kind, path) for row in _tables(by_kind[kind], path).items()]
        for kind, name, row in rows:
            try:
                check_known("kind of answers", [kind], KINDS)
                reason = _reason(row, {name: row for _, name, row in rows})
                solved = solution(folder, exercise)
                if ("cell" in row) == ("change" in row):
                    raise DataError("it needs `change` or `cell`, and not both")
                source = row["cell"] if "cell" in row else changed(solved, row["change"])
            except GrpoLabError as error:
                raise DataError(f"{path}: {exercise}, {name!r}: {error}") from error
            found.append(KnownAnswer(folder.name, exercise, kind, name, source, reason))
    return found


def _tables(tree: Mapping[str, Any], path: Path) -> Mapping[str, Mapping[str, Any]]:
    """The tree; raises DataError unless all of its values are tables."""
    for name, value in tree.items():
        if not isinstance(value, dict):
            raise DataError(f'{path}: {name} = {value!r}; a row is a table, [exercise.wrong."its name"]')
    return tree


def _reason(row: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> str:
    for key, value in row.items():
        check_known("key", [key], _KEYS)
        if not isinstance(value, _KEYS[key]):
            raise DataError(f"{key} = {value!r}: must be of type {_KEYS[key].__name__}")
    if "same_reason" in row and not rows.get(row["same_reason"], {}).get("reason"):
        raise DataError(f"same_reason = {row['same_reason']!r}, which has no reason")
    return row["reason"] if "reason" in row else rows[row["same_reason"]]["reason"] if "same_reason" in row else ""


def changed(source: str, changes: Mapping[str, str]) -> str:
    """The source with each of these texts, which stand in it once, replaced by another, all at the same time.

    >>> changed("a - b", {"a": "b", "b": "a"})
    'b - a'

    Raises DataError for a text that stands there more or less than once, is changed into itself, or overlaps another.
    """
    for old, new in changes.items():
        if not isinstance(new, str):
            raise DataError(f"change.{old!r} = {new!r}: must be of type str")
        if source.count(old) != 1:
            raise DataError(f"{old!r} stands {source.count(old)} times in the solution; it has to stand there once")
        if old == new:
            raise DataError(f"{old!r} is changed into itself")
    found, count = re.subn("|".join(map(re.escape, changes)), lambda match: changes[match[0]], source)
    if count != len(changes):
        raise DataError(f"the changes of {', '.join(map(repr, changes))} overlap")
    return found


def mistakes(folder: Path, exercise: str) -> Sequence[Mistake]:
    """The wrong answers to an exercise that have a reason, each as a module."""
    return [
        Mistake(each.reason, _module(each.source, folder / FILE))
        for each in known_answers(folder)
        if each.exercise == exercise and each.reason
    ]


@functools.lru_cache(maxsize=1024)
def _module(source: str, path: Path) -> ModuleType:
    return user_code.execute(path, DataError, source=source)
