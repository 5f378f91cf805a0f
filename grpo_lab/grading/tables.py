"""Tables that a person wrote: CSV with commas, semicolons or tabs."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_lab.errors import DataError


class Table(NamedTuple):
    """The first row and the filled rows below it, each with its number in the file."""

    head: Sequence[str]
    rows: Sequence[tuple[int, dict[str, str]]]


def read(path: Path, unreadable: str, malformed: str) -> Table:
    """A table in UTF-8. Raises DataError, with one of the ways out given, for a file that holds none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        head, *lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason}); save it as CSV in UTF-8") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {unreadable}") from error
    except (csv.Error, ValueError) as error:
        raise DataError(f"{path} is not a table: {error}; save it as CSV, {malformed}") from error
    for place, line in enumerate(lines, start=2):
        if line and len(line) != len(head):
            raise DataError(f"{path}, row {place}: {len(line)} cells, not {len(head)}; put texts with commas in quotes")
    filled = ((place, line) for place, line in enumerate(lines, start=2) if any(line))
    return Table(head, [(place, dict(zip(head, line, strict=True))) for place, line in filled])
