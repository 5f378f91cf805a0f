"""A lab's source in another language: its own code, with the prose of labs/<lab>/<language>/notebook.py.

That file has, in order, every markdown cell of the source, and of every code cell with comments or docstrings these
alone. Structure, code, numbers, code spans, formulas and links have one home: a difference is a fault.
"""

import copy
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_lab.course.answers import MAGIC, STUB
from grpo_lab.course.editions.solutions import BEGIN, END, NOTEBOOK, exercise_cells, reference
from grpo_lab.errors import DataError
from grpo_lab.messages import ENGLISH

_FACTS = {
    "block of code": re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE),
    "code span": re.compile(r"``.+?``|`[^`]+`"),
    "formula": re.compile(r"\$[^$\n ][^$\n]*\$"),
    "link": re.compile(r"\]\(([^)]*)\)"),
    "tag": re.compile(r"</?\w+>"),
    "heading": re.compile(r"^#+ ", re.MULTILINE),
    "number": re.compile(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?"),
}
"""The parts of a text that all languages share; each is taken out before the next one is searched."""
_MARKS = (BEGIN, END, STUB.partition("  ")[2])
_WIDE = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”]")
"""A full-width character, next to which nobody writes a space."""


def in_language(cells: Sequence[Any], folder: Path, language: str) -> list[Any]:
    """The cells of the lab in a folder with the prose of a language; copies, with the same code, tags and order.

    Raises DataError for prose that does not fit, with all faults.
    """
    if language == ENGLISH:
        return list(cells)
    path = folder / language / NOTEBOOK
    import jupytext

    prose = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent").cells
    numbers = [number for number, cell in enumerate(cells) if _has_prose(cell)]
    if len(numbers) != len(prose):
        raise DataError(f"{path}: {len(prose)} cells with prose; the source has {len(numbers)}{_first(cells, prose)}")
    faults, found = [], [copy.deepcopy(cell) for cell in cells]
    for number, said in zip(numbers, prose, strict=True):
        where = f"cell {number}, which begins {_begin(cells[number])!r}"
        faults += [f"{where}: {fault}" for fault in differences(cells[number], said)]
        if not faults:
            is_code, source = cells[number].cell_type == "code", cells[number].source
            found[number].source = _with_comments(source, said.source) if is_code else _joined(said.source)
    if faults:
        raise DataError(f"{path}: " + "; ".join(faults))
    _speak(found, folder.name, language)
    return found


def _speak(cells: Sequence[Any], name: str, language: str) -> None:
    """Name the language in the call that begins a notebook, so that panel and feedback have it too.

    Raises DataError unless exactly one cell has such a call.
    """
    calls = {
        f'gl.Lab("{name}")': f'gl.Lab("{name}", language="{language}")',
        "Lecture()": f'Lecture(language="{language}")',
    }
    begun = [(cell, call) for cell in cells if cell.cell_type == "code" for call in calls if call in cell.source]
    if len(begun) != 1:
        raise DataError(f"{name}: {len(begun)} cells call one of {', '.join(calls)}; exactly one has to")
    for cell, call in begun:
        cell.source = cell.source.replace(call, calls[call])


def solution(folder: Path, exercise: str, language: str) -> str:
    """The solution of an exercise of the lab in a folder, with the comments of a language where it has them."""
    cell, path = exercise_cells(folder / NOTEBOOK)[exercise], folder / language / NOTEBOOK
    said = exercise_cells(path).get(exercise) if language != ENGLISH and path.is_file() else None
    return reference(_with_comments(cell, said) if said else cell)


def differences(cell: Any, said: Any) -> Iterator[str]:
    """Every fault of a cell's prose in another language, each in a sentence."""
    if _shape(cell) != _shape(said):
        yield f"its kind, exercise and tags are {_shape(cell)}, and in the other language {_shape(said)}"
        return
    if cell.cell_type == "code":
        mine, others = _texts(cell), _texts(said)
        if len(mine) != len(others):
            yield f"it has {len(mine)} comments and docstrings, and in the other language {len(others)}"
            return
        yield from unlike("\n".join(mine), "\n".join(others))
    else:
        yield from unlike(cell.source, said.source)


def unlike(text: str, said: str) -> Iterator[str]:
    """Numbers, code, formulas and links that a text and its translation do not have equally often.

    >>> list(unlike("`x` is 1.5", "`x` 是 1.6"))
    ["number '1.5': 1 in English, 0 in the translation", "number '1.6': 0 in English, 1 in the translation"]
    """
    for what, pattern in _FACTS.items():
        mine, others = Counter(pattern.findall(text)), Counter(pattern.findall(said))
        for each in (mine - others) | (others - mine):
            yield f"{what} {each!r}: {mine[each]} in English, {others[each]} in the translation"
        text, said = pattern.sub(" ", text), pattern.sub(" ", said)


def _has_prose(cell: Any) -> bool:
    return cell.cell_type != "code" or bool(_texts(cell))


def _shape(cell: Any) -> tuple[Any, ...]:
    exercise = cell.source.partition("\n")[0] if cell.source.startswith(f"%%{MAGIC}") else ""
    return cell.cell_type, exercise, *cell.metadata.get("tags", ())


def _begin(cell: Any) -> str:
    return cell.source.partition("\n")[0][:50]


def _first(cells: Sequence[Any], prose: Sequence[Any]) -> str:
    """The first place where a cell of the source and one of the prose are of different kinds."""
    for cell, said in zip(filter(_has_prose, cells), prose, strict=False):
        if _shape(cell) != _shape(said):
            return f"; the first that differs begins {_begin(cell)!r}, and there {_begin(said)!r}"
    return ""


def _texts(cell: Any) -> list[str]:
    return [token.string for token in _spans(cell.source)]


def _spans(source: str) -> list[tokenize.TokenInfo]:
    """Comments and docstrings of a cell in order; marks of solutions and stubs are no prose."""
    first, _, rest = source.partition("\n")
    code = f"\n{rest}\n" if first.startswith("%%") else f"{source}\n"
    found, before = [], tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        comment = token.type == tokenize.COMMENT and token.string not in _MARKS
        docstring = token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if comment or docstring:
            found.append(token)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    return found


def _with_comments(code: str, said: str) -> str:
    """The code with the other language's comments and docstrings in place of its own."""
    lines = code.split("\n")
    for token, by in reversed(list(zip(_spans(code), _spans(said), strict=True))):
        (row, column), (last, end) = token.start, token.end
        lines[row - 1 : last] = [lines[row - 1][:column] + by.string + lines[last - 1][end:]]
    return "\n".join(lines)


def _joined(text: str) -> str:
    """The text without line breaks between two full-width characters, which a browser would show as spaces.

    >>> _joined("# 题\\n第一行，\\n第二行。\\n\\n- 一")
    '# 题\\n第一行，第二行。\\n\\n- 一'
    """
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        if _WIDE.match(before[-1:]) and _WIDE.match(line) and not before.startswith("#"):
            lines[-1] += line
        else:
            lines.append(line)
    return "\n".join(lines)
