"""The folders of the files that ship with the package, of one's own beside them, and their tables."""

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from grpo_lab.errors import ConfigError, DataError, GrpoLabError, unknown

Row = TypeVar("Row")
OWN = "GRPO_LAB_DATA"
"""The variable that names a folder of one's own with some of the folders of data/."""


def data_directory() -> Path:
    """The checkout's data/ folder, or the copy inside an installed package.

    >>> (data_directory() / "presets").is_dir()
    True

    Raises DataError if neither exists.
    """
    return _shipped("data", "presets")


def own_directory() -> Path | None:
    """The folder that GRPO_LAB_DATA names, or None. Raises DataError if it does not exist."""
    named = os.environ.get(OWN, "")
    if named and not Path(named).is_dir():
        raise DataError(f"{OWN} is {named!r}, which is no folder; create it or unset the variable")
    return Path(named).resolve() if named else None


def folders(kind: str) -> list[Path]:
    """The folder of that name in data/, and the one in the user's own folder, whether they exist or not.

    >>> [folder.name for folder in folders("recordings")][:1]
    ['recordings']
    """
    return [home / kind for home in (data_directory(), own_directory()) if home]


def named_files(kind: str, pattern: str = "*.toml") -> dict[str, Path]:
    """The files of a kind by name, which ship with the package or are in the user's own folder.

    The name is that of the file, or that of its folder for a pattern such as `*/events.jsonl`.

    >>> named_files("presets")["stable"].name
    'stable.toml'

    Raises DataError for a file of the user's own with a name that is taken.
    """
    found: dict[str, Path] = {}
    for folder in folders(kind):
        for path in sorted(folder.glob(pattern)):
            name = path.parent.name if "/" in pattern else path.stem
            if name in found:
                raise DataError(f"{path}: {name!r} ships with the package in {kind}/; give it another name")
            found[name] = path
    return dict(sorted(found.items()))


def named_file(kind: str, name: str) -> Path:
    """The file of a name, or the file at this path, `path/to/mine.toml`. Raises ConfigError for an unknown name."""
    if name.endswith(".toml"):
        path = Path(name)
        if path.is_file():
            return path
    elif path := named_files(kind).get(name):
        return path
    raise unknown(kind.removesuffix("s"), name, named_files(kind))


def labs_directory() -> Path:
    """The checkout's labs/ folder, or the copy inside an installed package.

    >>> (labs_directory() / "lecture" / "lecture.ipynb").is_file()
    True

    Raises DataError if neither exists.
    """
    return _shipped("labs", "lecture")


def is_installed(path: Path) -> bool:
    """Whether a file or folder is inside the package, where nothing of the user's is written."""
    return path.resolve().is_relative_to(Path(__file__).resolve().parent)


def _shipped(name: str, holds: str) -> Path:
    """A folder of the checkout, which the wheel has inside the package, known by a folder that it holds."""
    package = Path(__file__).parent
    # The package's own first: a folder beside an installed package, in site-packages, may belong to another one.
    for home in (package, package.parent):
        if (home / name / holds).is_dir():
            return home / name
    raise DataError(f"no {name} folder beside or inside {package}: install grpo_lab again")


def read_toml(path: Path, error: type[GrpoLabError] = ConfigError) -> dict[str, Any]:
    """The table of a file. Raises `error` for a file that cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as raised:
        raise error(f"{path}: cannot be read ({raised.strerror}); give a TOML file") from raised
    except ValueError as raised:
        raise error(f"{path}: not valid TOML ({raised}); mend the file") from raised


def data_tables(name: str) -> dict[str, Any]:
    """The tables of data/<name>.toml. Raises DataError for a file that cannot be read."""
    return read_toml(data_directory() / f"{name}.toml", DataError)


def rows(kind: Callable[..., Row], table: Mapping[str, Sequence[Any]]) -> dict[str, Row]:
    """The rows of a table as NamedTuples of a kind, by name. Raises DataError for a row with other fields or types."""
    fields = kind.__annotations__
    for name, row in table.items():
        given = [float if type(value) is int else type(value) for value in row]
        if given != list(fields.values()):
            raise DataError(f"row {name!r} is {row!r}; it needs {', '.join(fields)}, texts in quotes and numbers")
    return {name: kind(*row) for name, row in table.items()}
