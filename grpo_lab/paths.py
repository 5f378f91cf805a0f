"""The folder of the files that ship with the package, and their tables."""

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
    package = Path(__file__).parent
    # The package's own first: a data/ beside an installed package, in site-packages, may belong to another one.
    for candidate in (package / "data", package.parent / "data"):
        if (candidate / "presets").is_dir():
            return candidate
    raise DataError(f"no data folder beside or inside {package}: install grpo_lab again")


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
