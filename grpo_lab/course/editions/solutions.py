"""Keeps the solutions in a cell, between `# BEGIN SOLUTION` and `# END SOLUTION`, or replaces them by stubs."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from grpo_lab.course.answers import MAGIC, STUB
from grpo_lab.errors import DataError, check_known

NOTEBOOK = "notebook.py"
"""The file in a lab's folder with its cells, in jupytext's percent format."""
BEGIN, END = "# BEGIN SOLUTION", "# END SOLUTION"
_CELL = re.compile(rf"^# %%{MAGIC} (\S+)\n(.*?)(?=^# %%|\Z)", re.MULTILINE | re.DOTALL)


class Malformed(Exception):
    """A BEGIN without END, an END without BEGIN, or one inside the other."""


def learners(source: str) -> str:
    """The cell with a stub in place of each solution. Raises Malformed for marks that are not in pairs.
    >>> print(learners("def f(x):\\n    # BEGIN SOLUTION\\n    return x\\n    # END SOLUTION"))
    def f(x):
        ...  # your answer
    >>> print(learners("# BEGIN SOLUTION\\nanswer = 'b'\\n# END SOLUTION"))
    answer = ...  # your answer
    """
    return "\n".join(line for solved, lines in _parts(source) for line in (_stub(lines) if solved else lines))


def reference(source: str) -> str:
    """The cell with its solutions and without the marks. Raises Malformed for marks that are not in pairs."""
    return "\n".join(line for _, lines in _parts(source) for line in lines)


def exercise_cells(notebook: Path) -> dict[str, str]:
    """The cell of each exercise in a lab's notebook.py as it is there, below the line that names the exercise."""
    return {name: cell.strip("\n") for name, cell in _CELL.findall(notebook.read_text(encoding="utf-8"))}


def solution(folder: Path, exercise: str) -> str:
    """The solution of an exercise: its cell without the marks. Raises DataError for a missing or malformed one."""
    path = folder / NOTEBOOK
    cells = exercise_cells(path)
    check_known(f"exercise of {folder.name}", [exercise], cells, DataError)
    try:
        return reference(cells[exercise])
    except Malformed as error:
        raise DataError(f"{path}: {exercise}: {error}") from error


def solutions(source: str) -> list[list[str]]:
    """The lines of each solution of a cell. Raises Malformed for marks that are not in pairs."""
    return [lines for solved, lines in _parts(source) if solved]


def _parts(source: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield the lines of each solution, with True, and each line outside of them, with False.

    Raises Malformed for marks that are not in pairs.
    """
    inside: list[str] | None = None
    for number, line in enumerate(source.split("\n"), start=1):
        mark = line.strip()
        if mark == BEGIN and inside is None:
            inside = []
        elif mark == END and inside is not None:
            yield True, inside
            inside = None
        elif mark in (BEGIN, END):
            raise Malformed(f"line {number}: {mark} where {END if mark == BEGIN else BEGIN} is due")
        elif inside is None:
            yield False, [line]
        else:
            inside.append(line)
    if inside is not None:
        raise Malformed(f"a solution begins and never ends; {END} is missing")


def _stub(lines: list[str]) -> list[str]:
    """The stub of a solution: a line for each name that it assigns, or one line at its indentation."""
    written = [line for line in lines if line.strip()]
    indent = min((line[: len(line) - len(line.lstrip())] for line in written), key=len, default="")
    names = _names_given("\n".join(lines))
    return [f"{indent}{name} = {STUB}" for name in names] or [indent + STUB]


def _names_given(source: str) -> list[str]:
    """The names of a solution that assigns to names at the top level, with imports and helpers; otherwise none."""
    if source != textwrap.dedent(source):
        return []
    names = []
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
            case _ if not isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef):
                return []
    return names
