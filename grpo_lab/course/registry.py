"""The labs: each folder with a lab.toml, in labs/ of the course and in labs/ of the folder that GRPO_LAB_DATA names."""

import hashlib
import re
from pathlib import Path

from grpo_lab.course import pages
from grpo_lab.course.exercises import LabPage
from grpo_lab.errors import ConfigError, DataError, unknown
from grpo_lab.paths import OWN, labs_directory, own_directory


def course_labs() -> tuple[str, ...]:
    """The labs of the course, in its order.

    >>> course_labs()[:2]
    ('00_start', '01_grpo_by_hand')
    """
    return tuple(_in(labs_directory()))


def lab_names() -> tuple[str, ...]:
    """The names of all labs, those of one's own last.

    Raises DataError for a lab of one's own with a name that is taken or not valid.
    """
    return tuple(_folders())


def lab_folder(name: str) -> Path:
    """The folder of a lab. Raises ConfigError for an unknown one."""
    folders = _folders()
    if name not in folders:
        raise ConfigError(
            f"{unknown('lab', name, folders)}; your own are found in labs/ of the folder that {OWN} names"
        )
    return folders[name]


def lab_page(name: str) -> LabPage:
    """The lab of that name. Raises ConfigError for an unknown one, and DataError for one that cannot be loaded."""
    return pages.page(lab_folder(name))


def checks_digest() -> str:
    """A hash of all checks and pages, on which grades depend: those of the course, and those of one's own."""
    of_a_lab = ("*.py", "*.toml", "*/lab.toml")  # not answers/, which a notebook opened there leaves
    patterns = {Path(__file__).parent: ("**/*.py",), **dict.fromkeys(_folders().values(), of_a_lab)}
    files = [path for folder, kinds in patterns.items() for kind in kinds for path in sorted(folder.glob(kind))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _folders() -> dict[str, Path]:
    shipped, own = _in(labs_directory()), own_directory()
    of_ones_own = _in(own / "labs") if own else {}
    for name, folder in of_ones_own.items():
        if name in shipped:
            raise DataError(f"{folder}: a lab of the course has this name; rename the folder")
        if not re.fullmatch("[a-z0-9_]+", name):  # it is a part of the names of files and cells
            raise DataError(f"{folder}: a lab's name has small letters, digits and _ alone; rename the folder")
    return {**shipped, **of_ones_own}


def _in(folder: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{pages.FILE}"))}
