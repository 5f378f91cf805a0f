"""Read the sources of answers from notebook files, which are hostile input; nothing is executed.

A file is read up to a size. Only the id, the type and the source of each cell are kept; outputs, attachments, widgets,
tags and the kernel's name are dropped. Most of nbformat's schema is about the dropped parts, so the three kept fields
are checked here. Every fault of a file becomes a text in the submission.
"""

import dataclasses
import hashlib
import json
import os
import re
import stat
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_lab.course import answers, registry
from grpo_lab.course.exercises import LabPage
from grpo_lab.errors import DataError
from grpo_lab.grading import archives
from grpo_lab.grading.reports.plain import printable
from grpo_lab.grading.submissions import LINK, Found

MAX_SOURCE = 64_000
"""Limit on the source of an answer, in bytes."""
MAX_DIGITS = 20
"""Limit on a whole number's digits: parsing takes quadratic time, and no number that is kept has more."""
VERSION = 4
"""The major version of the format that is read; its minor versions store the kept fields alike."""
KINDS = ("code", "markdown", "raw")
AGAIN = "open it in JupyterLab, save it and hand it in again"
_ASKS = re.compile(rf"\s*%%{answers.MAGIC}[ \t]+(\S+)[ \t]*(?:\n|\Z)")
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")
"""NUL and lone surrogates, which cannot be written to a file and run."""
_LAB = re.compile(r"""\bLab\(["'](\w{1,64})["']\)""")


@dataclass(frozen=True)
class Submission:
    """The sources of a notebook's answers, or the reasons why there are none."""

    student: str
    file: str
    """The notebook's path below the folder of submissions."""
    lab: str = ""
    """The lab's name. For a file that cannot be graded, the one lab that its path names, or an empty text."""
    digest: str = ""
    """SHA-256 of the bytes that were read, in hex."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """The source of each answer by exercise, with the line numbers of its cell."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """One line by exercise: why there is no answer, or how it was found."""
    undecided: frozenset[str] = frozenset()
    """The exercises of whose cells a person has to choose one; their notes say why."""
    problem: str = ""
    """The reason why nothing can be graded, in one line."""


class NotebookCell(NamedTuple):
    """The kept fields of a notebook's cell."""

    identity: str
    kind: str
    source: str


class _Undecided(Exception):
    """Several cells can be the answer, and a person has to choose; the message gives the reason."""


class _Refused(Exception):
    """A file or a cell is refused; the message gives the reason and the way out in one line."""


def read(found: Found, max_bytes: int) -> Submission:
    """The answers in a notebook. Every fault of the file becomes a `problem` or a note, never an exception."""
    submission = Submission(found.student, printable(found.path))
    try:
        if found.problem:
            raise _Refused(found.problem)
        data = _bytes(found, max_bytes)
        submission = dataclasses.replace(submission, digest=hashlib.sha256(data).hexdigest())
        if len(data) > max_bytes:
            raise _Refused(f"larger than {max_bytes:,} bytes; clear its outputs, save it and hand it in again")
        cells = _cells(_tree(data))
        lab = _lab(cells)
    except _Refused as refused:
        return dataclasses.replace(submission, problem=str(refused), lab=_lab_in_path(found.path))
    sources, notes, undecided = _answers(registry.lab_page(lab), cells)
    return dataclasses.replace(submission, lab=lab, answers=sources, notes=notes, undecided=undecided)


def digest(found: Found, max_bytes: int) -> str:
    """The digest that `read` will give, or an empty text for a file that cannot be read whole."""
    try:
        data = _bytes(found, max_bytes)
    except _Refused:
        return ""
    return hashlib.sha256(data).hexdigest() if len(data) <= max_bytes else ""


def _bytes(found: Found, max_bytes: int) -> bytes:
    """The notebook's bytes, at most one more than allowed. Raises _Refused for a link, a pipe or an unreadable file."""
    file = found.file
    try:
        with open(
            file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        ) as opened:
            if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                most = max_bytes + 1
                return archives.content(opened, found.member, most) if found.member else opened.read(most)
    except DataError as error:
        raise _Refused(str(error)) from error
    except IsADirectoryError:
        pass
    except OSError as error:
        raise _Refused(LINK if os.path.islink(file) else f"cannot be read: {error.strerror}") from error
    raise _Refused("not a regular file; hand in the notebook itself")


def _tree(data: bytes) -> Any:
    """The parsed JSON. Raises _Refused for text that two parsers could read differently."""
    try:
        return json.loads(
            _text(data),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_short_int,
            parse_float=str,  # no number with a fraction is kept
        )
    except RecursionError:
        raise _Refused(f"nested too deeply for a notebook; {AGAIN}") from None
    except UnicodeDecodeError:
        raise _Refused(f"not a notebook: its characters cannot be read; {AGAIN}") from None
    except ValueError as error:
        raise _Refused(f"not a notebook: {printable(str(error))}; {AGAIN}") from None


def _text(data: bytes) -> str:
    """The text of a file: UTF-8, UTF-16 or UTF-32, else Latin-1, in which some editors of Windows save.

    >>> [_text("é {}".encode(encoding)) for encoding in ("utf-8-sig", "utf-16", "latin-1")]
    ['é {}', 'é {}', 'é {}']
    """
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        if encoding != "utf-8":
            raise
        return data.decode("latin-1")


def _lab_in_path(path: str) -> str:
    """The lab that a path names, or an empty text for none or several."""
    named = [
        lab for lab in registry.lab_names() if re.search(rf"(?<![^\W_]){lab}(?![^\W_])", path, flags=re.IGNORECASE)
    ]
    return named[0] if len(named) == 1 else ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises ValueError for a repeated key, of whose values parsers take the first or the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("one object has the same key twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _short_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits")
    return int(digits)


def _cells(notebook: Any) -> list[NotebookCell]:
    """The kept fields of all cells. Raises _Refused for a file that is no notebook of this format."""
    version = notebook.get("nbformat") if isinstance(notebook, dict) else None
    if type(version) is not int:
        raise _Refused(f"not a notebook: it names no version of the format; {AGAIN}")
    if version != VERSION:
        raise _Refused(f"a notebook of format {version}, and only {VERSION} is read; {AGAIN}")
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise _Refused(f"not a notebook: it has no list of cells; {AGAIN}")
    return [_cell(number, cell) for number, cell in enumerate(cells, start=1)]


def _cell(number: int, cell: Any) -> NotebookCell:
    """The kept fields of a cell. Raises _Refused for a malformed one."""
    if not isinstance(cell, dict) or cell.get("cell_type") not in KINDS:
        raise _Refused(f"cell {number} is none of {', '.join(KINDS)}; {AGAIN}")
    identity, source = cell.get("id", ""), cell.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str) or not isinstance(identity, str):
        raise _Refused(f"cell {number} has a source or an id that is not a text; {AGAIN}")
    return NotebookCell(identity, cell["cell_type"], source.replace("\r\n", "\n"))


def _lab(cells: Sequence[NotebookCell]) -> str:
    """The lab by the ids of most of its exercises, else by its code. Raises _Refused unless there is exactly one."""
    ids = {cell.identity for cell in cells}
    begun = {identity.partition("-")[0] for identity in ids}  # loads no page that cannot match
    pages = [registry.lab_page(lab) for lab in registry.lab_names() if lab in begun]
    by_ids = [page.name for page in pages if 2 * len(ids & set(_ids(page))) > len(page.exercises)]
    names = {name for cell in cells if cell.kind == "code" for name in _LAB.findall(cell.source)}
    found = by_ids or [lab for lab in registry.lab_names() if lab in names]
    if len(found) == 1:
        return found[0]
    if found:
        raise _Refused(f"holds more than one lab, {' and '.join(found)}; hand in a notebook for each")
    raise _Refused("holds no lab's exercises; hand in the notebook that the course gave you, with your answers in it")


def _ids(page: LabPage) -> dict[str, str]:
    """The exercises of a lab by the ids of their cells."""
    return {page.cell_id(name): name for name in page.exercises}


def _answers(page: LabPage, cells: Sequence[NotebookCell]) -> tuple[dict[str, str], dict[str, str], frozenset[str]]:
    """Sources and notes by exercise, and the exercises of whose cells a person has to choose one."""
    by_id, by_name = defaultdict(list), defaultdict(list)
    for cell in cells:
        by_id[cell.identity].append(cell)
        if cell.kind == "code":
            by_name[_asked_by(cell.source)].append(cell)
    sources, notes, undecided = {}, {}, set()
    for identity, name in _ids(page).items():
        try:
            cell, note = _chosen(name, by_id[identity], by_name[name])
            sources[name] = _source(name, cell)
        except _Refused as refused:
            note = str(refused)
        except _Undecided as several:
            note = str(several)
            undecided.add(name)
        if note:
            notes[name] = note
    return sources, notes, frozenset(undecided)


def _chosen(name: str, given: Sequence[NotebookCell], named: Sequence[NotebookCell]) -> tuple[NotebookCell, str]:
    """The exercise's cell by its id, else by its first line; and a note. Raises _Refused or _Undecided."""
    line = f"%%{answers.MAGIC} {name}"
    if len(given) > 1:
        raise _Undecided(f"{_count(given)} have the id of this exercise's cell; a person decides which one counts")
    if given:
        copies = any(cell is not given[0] for cell in named)
        return given[0], f"other cells begin with `{line}` too; the one that came with the notebook counts" * copies
    if not named:
        raise _Refused("its cell is not there any more; copy it from the notebook that the course gave you")
    if len(named) > 1:
        raise _Undecided(f"{_count(named)} begin with `{line}`; a person decides which one counts")
    return named[0], f"its cell has lost its id; found by its first line, `{line}`"


def _count(cells: Sequence[NotebookCell]) -> str:
    return "two cells" if len(cells) == 2 else f"{len(cells)} cells"


def _source(name: str, cell: NotebookCell) -> str:
    """The text of the answer's file. Raises _Refused for a cell that holds no answer."""
    if cell.kind != "code":
        raise _Refused(f"its cell is of type {cell.kind}; make it a code cell again")
    asked = _asked_by(cell.source)
    if asked and asked != name:
        raise _Refused(f"its cell answers another exercise; its first line must be `%%{answers.MAGIC} {name}`")
    if _NOT_TEXT.search(cell.source):
        raise _Refused("its cell holds a character that is not allowed in a text; type the answer anew")
    if len(cell.source.encode()) > MAX_SOURCE:
        raise _Refused(f"its cell holds more than {MAX_SOURCE:,} bytes; shorten it")
    body = _ASKS.sub("", cell.source, count=1) if asked else cell.source
    if not body.strip():
        raise _Refused("its cell is empty")
    text = answers.file_text(name, body) if asked else body.rstrip() + "\n"
    if line := answers.stub_line(text):
        raise _Refused(f"waits for an answer in line {line}, in place of `{answers.STUB}`")
    return text


def _asked_by(source: str) -> str:
    """The exercise that the first line names, or an empty text."""
    found = _ASKS.match(source)
    return found[1] if found else ""
