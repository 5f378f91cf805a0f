"""The registry of labs: those of the course, and those of one's own, in labs/ of the folder that GRPO_LAB_DATA names.

To add a lab to the course, write its module and its texts and add its name here.
"""

import functools
import hashlib
import importlib
import re
from pathlib import Path

from grpo_lab.config import user_code
from grpo_lab.course.exercises import Exercise, LabPage
from grpo_lab.errors import DataError, unknown
from grpo_lab.paths import data_directory, named_files

LABS = (
    "00_start",
    "01_grpo_by_hand",
    "02_explosion",
    "03_error_chain",
    "04_guards",
    "05_kl",
    "06_silent_failures",
    "07_precision_and_verl",
    "08_mystery_runs",
    "09_two_objectives",
)
"""The labs of the course, in its order."""


def lab_names() -> tuple[str, ...]:
    """The names of all labs, those of one's own last.

    >>> lab_names()[:2]
    ('00_start', '01_grpo_by_hand')

    Raises DataError for a lab of one's own with a name that is taken or not valid.
    """
    own = _own()
    for name, path in own.items():
        if name in LABS:
            raise DataError(f"{path.parent}: a lab of the course has this name; rename the folder")
        if not re.fullmatch("[a-z0-9_]+", name):  # it is a part of the names of files and cells
            raise DataError(f"{path.parent}: a lab's name has small letters, digits and _ alone; rename the folder")
    return (*LABS, *own)


def lab_page(name: str) -> LabPage:
    """The lab of that name: `LAB` of course/labs/lab_<name>/page.py, or of labs/<name>/page.py of one's own.

    Raises ConfigError for an unknown one, and DataError for one of one's own that cannot be loaded.
    """
    if name not in lab_names():
        raise unknown("lab", name, lab_names())
    if name in LABS:
        return importlib.import_module(f"grpo_lab.course.labs.lab_{name}.page").LAB
    path = _own()[name]
    return _page(path, path.read_bytes())


def checks_digest() -> str:
    """A hash of all checks and pages, on which grades depend: those of the course, and those of one's own."""
    folders = [Path(__file__).parent, data_directory() / "course", *(page.parent for page in _own().values())]
    files = [path for folder in folders for kind in ("*.py", "*.toml") for path in sorted(folder.rglob(kind))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _own() -> dict[str, Path]:
    return named_files("labs", "*/page.py")


@functools.cache
def _page(path: Path, code: bytes) -> LabPage:
    """The page that a file of one's own defines, executed again only if its text has changed."""
    page = getattr(user_code.execute(path, DataError, source=code), "LAB", None)
    if not isinstance(page, LabPage) or page.name != path.parent.name:
        raise DataError(f'{path}: define LAB = pages.page("{path.parent.name}", checks, Path(__file__).parent)')
    return page


def exercise(lab: str, name: str) -> Exercise:
    """One exercise of a lab. Raises ConfigError for an unknown one."""
    exercises = lab_page(lab).exercises
    if name not in exercises:
        raise unknown(f"exercise of {lab}", name, exercises)
    return exercises[name]
