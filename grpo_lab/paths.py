"""The folder of the files that ship with the package."""

from pathlib import Path

from grpo_lab.errors import DataError


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
