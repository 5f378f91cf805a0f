"""Find everything that was handed in, and its students, in the folder layouts of people and tools."""

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

from grpo_lab.course import registry
from grpo_lab.errors import DataError, Sentence
from grpo_lab.grading import archives
from grpo_lab.grading.reports.words import printable
from grpo_lab.paths import data_tables

NO_NOTEBOOK = "a zip without a notebook; hand in the notebook"
NO_FILES = "a zip without files; hand in the notebook"
LINK = "a symbolic link, and links are not followed; hand in the file itself"
EMPTY = "an empty folder; hand in the notebook"
NOT_READ = "not a notebook (*.ipynb) and not a zip; hand in the notebook"
OF_TOOLS = ("timestamp.txt", "thumbs.db", "desktop.ini", "__macosx")
"""Files and folders that tools and systems put beside a submission, in lower case; they have no row."""


class Sender(NamedTuple):
    """The facts that the name of a submission tells."""

    student: str
    identity: str = ""
    """The student's number; empty where the name has none."""
    late: bool = False
    per_assignment: bool = False
    """Whether a student's number is another one in each assignment."""


class Found(NamedTuple):
    """A submitted notebook, or the file, link or folder in its place."""

    student: str
    file: Path
    root: Path
    """The folder of submissions that holds it."""
    problem: str = ""
    """The reason why it must not be opened."""
    member: str = ""
    """The notebook's name in `file`, which is a zip; empty for a notebook that is not in a zip."""
    identity: str = ""
    """See `Sender`, as of the next two."""
    late: bool = False
    per_assignment: bool = False

    @property
    def path(self) -> str:
        """The path below the folder of submissions, and in the zip."""
        path = os.path.relpath(self.file, self.root)
        return f"{path}/{self.member}" if self.member else path


def found(paths: Sequence[Path], skip: Sequence[Path] = ()) -> list[Found]:
    """Every file and every empty folder below these folders and files, once, in the order of their paths.

    Notebooks in a zip are read from it. A file that is no notebook, an empty folder and a link have a `problem`; links
    are not followed. Hidden files, such as .ipynb_checkpoints, files of tools (`OF_TOOLS`) and the paths in `skip` are
    left out. Raises DataError for a path that does not exist, and where there is nothing.
    """
    every: dict[tuple[Path, str], Found] = {}
    skipped = {os.path.abspath(path) for path in skip}
    for path in paths:
        if not os.path.lexists(path):
            raise DataError(f"{path}: no such file or folder; name the folder that holds the submissions")
        path = Path(os.path.abspath(path))
        below = _in_folder(path, skipped) if path.is_dir() and not path.is_symlink() else _in_file(path, path.parent)
        for each in below:
            every.setdefault((each.file, each.member), each)
    if not every:
        named = ", ".join(map(str, paths)) or "nothing"
        raise DataError(f"no notebook (*.ipynb) in {named}; name the folder that holds the submissions, or their files")
    return [every[key] for key in sorted(every)]


def _in_folder(root: Path, skipped: Set[str]) -> Iterator[Found]:
    """Everything below a folder, without recursion: folders may be nested deeper than Python's stack."""
    folders = [str(root)]
    while folders:
        folder = folders.pop()
        base = root if folder != str(root) else root.parent
        try:
            with os.scandir(folder) as entries:
                seen = [entry for entry in entries if not _is_of_tools(entry.name) and entry.path not in skipped]
        except OSError as error:
            yield _found(Path(folder), base, Sentence("a folder that cannot be listed: {}", error.strerror))
            continue
        if not seen:
            yield _found(Path(folder), base, EMPTY)
        for entry in seen:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                yield from _in_file(Path(entry.path), root)


def _in_file(file: Path, root: Path) -> Iterator[Found]:
    """A notebook, the files of a zip, or a file that is neither, with the reason."""
    if file.is_symlink():
        yield _found(file, root, LINK)
    elif file.suffix.lower() == ".ipynb":
        yield _found(file, root)
    elif file.suffix.lower() == ".zip" and file.is_file():
        yield from _in_zip(_found(file, root))
    else:
        yield _found(file, root, NOT_READ)


def _in_zip(archive: Found) -> Iterator[Found]:
    """The files of a zip, or the zip with the reason why it is not read; of otter-grader's only its notebooks."""
    try:
        inside = archives.members(archive.file)
    except DataError as error:
        yield archive._replace(problem=str(error))
        return
    names = [name for name in inside if not any(_is_of_tools(part) for part in name.split("/") if part != "..")]
    if exported := _tables()["otter"]["marker"] in names:
        names = [name for name in names if name.lower().endswith(".ipynb")]
    if not names:
        yield archive._replace(problem=NO_NOTEBOOK if exported else NO_FILES)
    for name in names:
        problem = inside[name] or ("" if name.lower().endswith(".ipynb") else NOT_READ)
        yield archive._replace(member=name, problem=problem)


def _is_of_tools(name: str) -> bool:
    return name.startswith(".") or name.lower() in OF_TOOLS


def _found(file: Path, root: Path, problem: str = "") -> Found:
    of = _sender(file, root)
    # NFC, because systems write the same accent as one character or as two
    student = printable(unicodedata.normalize("NFC", of.student))
    return Found(student, file, root, problem, "", of.identity, of.late, of.per_assignment)


def _sender(file: Path, root: Path) -> Sender:
    """The student by a platform's name; else the folder, as in nbgrader's layout, or the file's name without the lab's.

    The name is that of the file or folder below the root, or below folders of many students: deeper names are the
    student's own choice. If nothing remains, the root is the student's own folder.

    >>> root = Path("bob")
    >>> files = ("ann/05_kl/05_kl.ipynb", "ann_05_kl.ipynb", "05_kl.ipynb", "05_kl/ann.ipynb")
    >>> [_sender(root / file, root).student for file in files]
    ['ann', 'ann', 'bob', 'ann']
    """
    parts, of_many = file.relative_to(root).parts, _pattern(_tables()["folders"]["of_many"])
    depth = next((place for place, part in enumerate(parts[:-1]) if not of_many.fullmatch(part)), len(parts) - 1)
    name = parts[depth]
    if known := sender((root.name, *parts)[depth], name):
        return known
    if depth < len(parts) - 1:
        return Sender(name)
    stem = name if os.path.isdir(file) else re.sub(r"\.\w{1,5}\Z", "", name)
    stem = re.sub(rf"(?:{_tables()['otter']['time']})\Z", "", stem)
    if stem in registry.lab_names():
        return sender(root.parent.name, root.name) or Sender(root.name)
    labs = "|".join(registry.lab_names())
    without = re.fullmatch(rf"(?:{labs})[-_. ]+(.+)|(.+?)[-_. ]+(?:{labs})", stem, flags=re.DOTALL)
    return Sender((without[1] or without[2]) if without else stem)


def sender(folder: str, name: str) -> Sender | None:
    """The sender of a file or folder `name` in a download's `folder`; None for a name of no platform.

    >>> sender("kl", "lovelaceada_LATE_12345_67890_05_kl-1.ipynb")
    Sender(student='lovelaceada', identity='12345', late=True, per_assignment=False)
    >>> sender("kl", "ada.ipynb") is None
    True
    """
    for rule in _tables()["names"]:
        if match := _pattern(rule["pattern"]).fullmatch(f"{folder}/{name}"):
            told = match.groupdict()
            late = told.get("late") is not None
            return Sender(told["student"], told.get("id") or "", late, rule.get("per_assignment", False))
    return None


_tables = cache(lambda: data_tables("intake"))


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    """The pattern, with the names of the labs in the place of `{labs}`."""
    labs = "|".join(lab.replace("_", "[-_]") for lab in registry.lab_names())
    return re.compile(pattern.replace("{labs}", labs), re.DOTALL)
