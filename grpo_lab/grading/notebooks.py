"""Read the sources of answers from notebook files, which are hostile input; nothing is executed.

A file is read up to a size. Only the id, the type and the source of each cell are kept; outputs, attachments, widgets,
tags and the kernel's name are dropped. Most of nbformat's schema is about the dropped parts, so the three kept fields
are checked here. Every fault of a file becomes a text in the submission, for its author.
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
from grpo_lab.errors import DataError, GrpoLabError, Sentence, listed
from grpo_lab.grading import archives
from grpo_lab.grading.reports.words import printable
from grpo_lab.grading.submissions import LINK, Found

MAX_SOURCE = 64_000
"""Limit on the source of an answer, in bytes."""
VERSION = 4
"""The major version of the format that is read; its minor versions store the kept fields alike."""
KINDS = ("code", "markdown", "raw")
AGAIN = Sentence("open it in JupyterLab, save it and hand it in again")
_CONFLICT = re.compile(r"^[ \t]*(?:<{7}|>{7})(?:[ \r]|$)", re.MULTILINE)
"""The lines that Git writes around a merge conflict."""
_PAGE = re.compile(r"<[!?A-Za-z]")
_ASKS = re.compile(rf"(?:\s*%%(?:time|capture)\b.*\n)*\s*%%{answers.MAGIC}[ \t]+(\S+)[ \t]*(?:\n|\Z)")
"""The magic of an answer, below magics of IPython that run it unchanged."""
_MAGIC = re.compile(rf"\A\s*%%|^[ \t]*%%{answers.MAGIC}\b", re.MULTILINE)
"""A magic that a cell begins with, or that of an answer in any line."""
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


class Refused(GrpoLabError):
    """A file or a cell is refused; the message gives the reason and the way out in one line."""


class _Undecided(GrpoLabError):
    """Several cells can be the answer, and a person has to choose; the message gives the reason."""


def read(found: Found, max_bytes: int) -> Submission:
    """The answers in a notebook. Every fault of the file becomes a `problem` or a note, never an exception."""
    submission = Submission(found.student, printable(found.path))
    try:
        if found.problem:
            raise Refused(found.problem)
        data = _content(found, max_bytes)
        submission = dataclasses.replace(submission, digest=hashlib.sha256(data).hexdigest())
        if len(data) > max_bytes:
            raise Refused("larger than {:,} bytes; clear its outputs, save it and hand it in again", max_bytes)
        cells = _cells(_tree(data))
        lab = _lab(cells)
    except Refused as refused:
        named = [lab for lab in registry.lab_names() if re.search(rf"(?i)(?<![^\W_]){lab}(?![^\W_])", found.path)]
        return dataclasses.replace(submission, problem=str(refused), lab=named[0] if len(named) == 1 else "")
    sources, notes, undecided = _answers(registry.lab_page(lab), cells)
    return dataclasses.replace(submission, lab=lab, answers=sources, notes=notes, undecided=undecided)


def digest(found: Found, max_bytes: int) -> str:
    """The digest that `read` will give, or an empty text for a file that cannot be read whole."""
    try:
        data = _content(found, max_bytes)
    except Refused:
        return ""
    return hashlib.sha256(data).hexdigest() if len(data) <= max_bytes else ""


def _content(found: Found, max_bytes: int) -> bytes:
    """The notebook's bytes, at most one more than allowed. Raises Refused for a link, a pipe or an unreadable file."""
    try:
        descriptor = os.open(found.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Refused("not a regular file; hand in the notebook itself")
            most = max_bytes + 1
            return archives.content(opened, found.member, most) if found.member else opened.read(most)
    except IsADirectoryError:
        raise Refused("not a regular file; hand in the notebook itself") from None
    except DataError as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(LINK if found.file.is_symlink() else Sentence("cannot be read: {}", error.strerror)) from error


def _tree(data: bytes) -> Any:
    text = _text(data)
    try:
        return json.loads(text)
    except RecursionError:
        raise Refused("nested too deeply for a notebook; {}", AGAIN) from None
    except json.JSONDecodeError as error:
        raise Refused(_damage(text, error)) from None
    except ValueError:
        raise Refused("not a notebook: a whole number of too many digits; {}", AGAIN) from None


def _damage(text: str, error: json.JSONDecodeError) -> str:
    """The reason why a text is not JSON, for its author, and the way out."""
    whole, begin = text.rstrip(), text.lstrip("\ufeff \t\r\n")
    if not begin:
        return "not a notebook: the file is empty, perhaps because an upload failed; hand in the notebook again"
    if mark := _CONFLICT.search(text):
        line = text.count("\n", 0, mark.start()) + 1
        said = (
            "not a notebook: it holds the marks of a merge conflict, the first in line {}; choose one version of each "
            "part in Git, open the notebook in JupyterLab to see that it is whole, and hand it in again"
        )
        return Sentence(said, line)
    if _PAGE.match(begin):
        return "not a notebook: a web page, perhaps one that asks for a login; hand in the notebook itself (*.ipynb)"
    if not begin.startswith(("{", "[")):
        return "not a notebook: a file of another kind under its name; hand in the notebook itself (*.ipynb)"
    extra = error.msg.startswith("Extra")
    if error.pos >= len(whole) or error.msg.startswith("Unterminated") or not (whole.endswith("}") or extra):
        return (
            "not a notebook: the file ends in the middle, perhaps because an upload failed; hand in the whole "
            "notebook again"
        )
    return Sentence("not a notebook: damaged in line {}; hand in a copy that JupyterLab opens", error.lineno)


def _text(data: bytes) -> str:
    """The text of a file: UTF-8, UTF-16 or UTF-32, else Latin-1, in which some editors of Windows save.

    Raises Refused for any other text.

    >>> [_text("é {}".encode(encoding)) for encoding in ("utf-8-sig", "utf-16", "latin-1")]
    ['é {}', 'é {}', 'é {}']
    """
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        if encoding == "utf-8":
            return data.decode("latin-1")
        raise Refused("not a notebook: its characters cannot be read; {}", AGAIN) from None


def _cells(notebook: Any) -> list[NotebookCell]:
    """The kept fields of all cells. Raises Refused for a file that is no notebook of this format."""
    version = notebook.get("nbformat") if isinstance(notebook, dict) else None
    if type(version) is not int:
        raise Refused("not a notebook: it names no version of the format; {}", AGAIN)
    if version != VERSION:
        raise Refused("a notebook of format {}, and only {} is read; {}", version, VERSION, AGAIN)
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise Refused("not a notebook: it has no list of cells; {}", AGAIN)
    return [_cell(number, cell) for number, cell in enumerate(cells, start=1)]


def _cell(number: int, cell: Any) -> NotebookCell:
    """The kept fields of a cell. Raises Refused for a malformed one."""
    if not isinstance(cell, dict) or cell.get("cell_type") not in KINDS:
        raise Refused("cell {} is none of {}; {}", number, ", ".join(KINDS), AGAIN)
    identity, source = cell.get("id", ""), cell.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str) or not isinstance(identity, str):
        raise Refused("cell {} has a source or an id that is not a text; {}", number, AGAIN)
    return NotebookCell(identity, cell["cell_type"], source.replace("\r\n", "\n"))


def _lab(cells: Sequence[NotebookCell]) -> str:
    """The lab by the ids of most of its exercises, else by its code. Raises Refused unless there is exactly one."""
    ids = {cell.identity for cell in cells}
    begun = {identity.partition("-")[0] for identity in ids}  # loads no page that cannot match
    pages = [registry.lab_page(lab) for lab in registry.lab_names() if lab in begun]
    by_ids = [
        page.name for page in pages if 2 * len(ids & set(map(page.cell_id, page.exercises))) > len(page.exercises)
    ]
    names = {name for cell in cells if cell.kind == "code" for name in _LAB.findall(cell.source)}
    found = by_ids or [lab for lab in registry.lab_names() if lab in names]
    if len(found) == 1:
        return found[0]
    if found:
        labs = listed("{} and {}", found)
        raise Refused("holds more than one lab, {}; hand in a notebook for each", labs)
    raise Refused("holds no lab's exercises; hand in the notebook that the course gave you, with your answers in it")


def _answers(page: LabPage, cells: Sequence[NotebookCell]) -> tuple[dict[str, str], dict[str, str], frozenset[str]]:
    """Sources and notes by exercise, and the exercises of whose cells a person has to choose one."""
    by_id, by_name = defaultdict(list), defaultdict(list)
    for cell in cells:
        by_id[cell.identity].append(cell)
        if cell.kind == "code":
            by_name[_parted(cell.source)[0]].append(cell)
    sources, notes, undecided = {}, {}, set()
    for name in page.exercises:
        try:
            cell, note = _chosen(name, by_id[page.cell_id(name)], by_name[name])
            sources[name] = _source(name, cell)
        except Refused as refused:
            note = str(refused)
        except _Undecided as several:
            note = str(several)
            undecided.add(name)
        if note:
            notes[name] = note
    return sources, notes, frozenset(undecided)


def _chosen(name: str, given: Sequence[NotebookCell], named: Sequence[NotebookCell]) -> tuple[NotebookCell, str]:
    """The exercise's cell by its id, else by its first line; and a note. Raises Refused or _Undecided."""
    line = f"%%{answers.MAGIC} {name}"
    own, others = _candidates(given), _candidates([cell for cell in named if cell not in given])
    if len(own) > 1:
        raise _Undecided("{} have the id of this exercise's cell; a person decides which one counts", _count(own))
    moved = bool(own and others) and _waits(own[0]) and not _waits(others[0])
    if own and not moved:
        note = "other cells begin with `{}` too; the one that came with the notebook counts"
        return own[0], Sentence(note, line) if others else ""
    if not others:
        raise Refused("its cell is not there any more; copy it from the notebook that the course gave you")
    if len(others) > 1:
        raise _Undecided("{} begin with `{}`; a person decides which one counts", _count(others), line)
    if moved:
        note = "its cell still waits for an answer; another cell that begins with `{}` counts"
        return others[0], Sentence(note, line)
    return others[0], Sentence("its cell has lost its id; found by its first line, `{}`", line)


def _candidates(cells: Sequence[NotebookCell]) -> list[NotebookCell]:
    """The cells with an answer, or all if each waits for one; of cells with the same text, one."""
    distinct = {(cell.kind, cell.source): cell for cell in cells}.values()
    return [cell for cell in distinct if not _waits(cell)] or list(distinct)


def _waits(cell: NotebookCell) -> bool:
    """Whether a cell is empty or holds a stub; one over the limit is refused later, and not searched."""
    _, body = _parted(cell.source)
    return not body.strip() or (len(body) <= MAX_SOURCE and answers.stub_line(body) is not None)


def _count(cells: Sequence[NotebookCell]) -> Sentence:
    return Sentence("two cells") if len(cells) == 2 else Sentence("{} cells", len(cells))


def _source(name: str, cell: NotebookCell) -> str:
    """The text of the answer's file. Raises Refused for a cell that holds no answer."""
    if cell.kind != "code":
        raise Refused("its cell is of type {}; make it a code cell again", cell.kind)
    asked, body = _parted(cell.source)
    if asked and asked != name:
        raise Refused("its cell answers another exercise; its first line must be `%%{} {}`", answers.MAGIC, name)
    if not asked and _MAGIC.search(cell.source):
        raise Refused("its first line must be `%%{} {}`, and no other text in that line", answers.MAGIC, name)
    if _NOT_TEXT.search(cell.source):
        raise Refused("its cell holds a character that is not allowed in a text; type the answer anew")
    if len(cell.source.encode()) > MAX_SOURCE:
        raise Refused("its cell holds more than {:,} bytes; shorten it", MAX_SOURCE)
    if not body.strip():
        raise Refused("its cell is empty")
    text = answers.file_text(name, body) if asked else body.rstrip() + "\n"
    if line := answers.stub_line(text):
        raise Refused("waits for an answer in line {}, in place of `{}`", line, answers.STUB)
    return text


def _parted(source: str) -> tuple[str, str]:
    """The exercise that the magic of an answer names, and the lines below it; "" and all lines where there is none."""
    found = _ASKS.match(source)
    return (found[1], source[found.end() :]) if found else ("", source)
