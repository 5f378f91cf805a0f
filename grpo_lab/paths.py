"""The folders of the files that ship with the package, and their tables."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from grpo_lab.errors import DataError

Row = TypeVar("Row")


def data_directory() -> Path:
    """The checkout's data/ folder, or the copy inside an installed package.

    >>> (data_directory() / "presets").is_dir()
    True

    Raises DataError if neither exists.
    """
    return _shipped("data", "data", "presets")


def labs_directory() -> Path:
    """The checkout's labs/ folder, or the copy inside an installed package, which has no instructor's edition.

    >>> (labs_directory() / "lecture.ipynb").is_file()
    True

    Raises DataError if neither exists.
    """
    return _shipped("labs", "course/labs/notebooks", "src")


def is_installed(path: Path) -> bool:
    """Whether a file or folder is inside the package, where nothing of the user's is written."""
    return path.resolve().is_relative_to(Path(__file__).resolve().parent)


def _shipped(name: str, installed: str, holds: str) -> Path:
    """A folder that the wheel has at another place than the checkout, known by a folder that it holds."""
    package = Path(__file__).parent
    # The package's own first: a folder beside an installed package, in site-packages, may belong to another one.
    for candidate in (package / installed, package.parent / name):
        if (candidate / holds).is_dir():
            return candidate
    raise DataError(f"no {name} folder beside or inside {package}: install grpo_lab again")


def data_tables(name: str) -> dict[str, Any]:
    """The tables of data/<name>.toml. Raises DataError for a file that cannot be read."""
    path = data_directory() / f"{name}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def rows(kind: Callable[..., Row], table: Mapping[str, Sequence[Any]]) -> dict[str, Row]:
    """The rows of a table as NamedTuples of a kind, by name. Raises DataError for a row with other fields or types."""
    fields = kind.__annotations__
    for name, row in table.items():
        given = [float if type(value) is int else type(value) for value in row]
        if given != list(fields.values()):
            raise DataError(f"row {name!r} is {row!r}; it needs {', '.join(fields)}, texts in quotes and numbers")
    return {name: kind(*row) for name, row in table.items()}
