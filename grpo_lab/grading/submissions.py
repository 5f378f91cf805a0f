"""Find the submitted notebooks and their students in the folder layouts of people and tools."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_lab.course import registry
from grpo_lab.errors import DataError
from grpo_lab.grading.reports.plain import printable

LINK = "a symbolic link, and links are not followed; hand in the file itself"


class Found(NamedTuple):
    """A submitted notebook, or a link or folder in its place."""

    student: str
    file: Path
    root: Path
    """The folder of submissions that holds it."""
    problem: str = ""
    """The reason why it must not be opened."""


def found(paths: Sequence[Path]) -> list[Found]:
    """Every notebook below these folders and files, once, in the order of their paths.

    Links to notebooks and folders are reported, not followed. Hidden files and folders, such as .ipynb_checkpoints, are
    skipped. Raises DataError for a path that does not exist, and where there is no notebook.
    """
    every: dict[Path, Found] = {}
    for path in paths:
        if not os.path.lexists(path):
            raise DataError(f"{path}: no such file or folder; name the folder that holds the submissions")
        for each in _below(Path(os.path.abspath(path))):
            every.setdefault(each.file, each)
    if not every:
        named = ", ".join(map(str, paths)) or "nothing"
        raise DataError(f"no notebook (*.ipynb) in {named}; name the folder that holds the submissions, or their files")
    return [every[file] for file in sorted(every)]


def _below(path: Path) -> Iterator[Found]:
    if os.path.islink(path):
        yield _found(path, path.parent, LINK)
    elif os.path.isdir(path):
        yield from _in_folder(path)
    elif _is_notebook(path.name):
        yield _found(path, path.parent)


def _in_folder(root: Path) -> Iterator[Found]:
    """All notebooks below a folder, without recursion: folders may be nested deeper than Python's stack."""
    folders = [str(root)]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                seen = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            problem = f"a folder that cannot be listed: {error.strerror}"
            yield _found(Path(folder), root if folder != str(root) else root.parent, problem)
            continue
        for entry in seen:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_symlink() and (_is_notebook(entry.name) or os.path.isdir(entry.path)):
                yield _found(Path(entry.path), root, LINK)
            elif _is_notebook(entry.name):
                yield _found(Path(entry.path), root)


def _is_notebook(name: str) -> bool:
    return name.lower().endswith(".ipynb") and not name.startswith(".")


def _found(file: Path, root: Path, problem: str = "") -> Found:
    return Found(_student(file, root), file, root, problem)


def _student(file: Path, root: Path) -> str:
    """The student's name: the folder below the root, as in nbgrader's layout, or the file's name without the lab's.

    If nothing remains, the root is the student's own folder.

    >>> root = Path("bob")
    >>> [_student(root / file, root) for file in ("ann/05_kl/05_kl.ipynb", "ann_05_kl.ipynb", "05_kl.ipynb")]
    ['ann', 'ann', 'bob']
    """
    folder, *inside = file.relative_to(root).parts
    if inside:
        return printable(folder)
    stem = re.sub(r"\.ipynb\Z", "", folder, flags=re.IGNORECASE)
    labs = "|".join(registry.LABS)
    without = re.fullmatch(rf"(?:{labs})[-_. ]+(.+)|(.+?)[-_. ]+(?:{labs})", stem, flags=re.DOTALL)
    if stem in registry.LABS:
        return printable(root.name)
    return printable((without[1] or without[2]) if without else stem)
