"""Tables that a person wrote: CSV with commas, semicolons or tabs."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_lab.errors import DataError

_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""The first bytes of Excel's files, new and old."""
_SEPARATOR = re.compile(r"""sep=([^\w\s"]|\t)\r?\n""", re.IGNORECASE)
"""The first line that Excel reads and writes."""


class Table(NamedTuple):
    """The first row and the filled rows below it, each with its number in the file."""

    head: Sequence[str]
    rows: Sequence[tuple[int, dict[str, str]]]


def read(path: Path, unreadable: str, malformed: str) -> Table:
    """A table in UTF-8. Raises DataError, with one of the ways out given, for a file that holds none.

    Blank rows are passed over, and so is a first line `sep=;`, with which Excel names the separator.
    """
    text = _text(path, unreadable)
    named = _SEPARATOR.match(text)
    text = text[named.end() :] if named else text
    separator = named[1] if named else max(",;\t", key=text.lstrip().partition("\n")[0].count)
    try:
        every = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise DataError(f"{path} is not a table: {error}; save it as CSV, {malformed}") from error
    lines = [(place, line) for place, line in enumerate(every, start=2 if named else 1) if line]
    first = next((place for place, (_, line) in enumerate(lines) if _filled(line)), None)
    if first is None:
        raise DataError(f"{path} is empty; save it as CSV, {malformed}")
    (_, head), *rest = lines[first:]
    for place, line in rest:
        if len(line) != len(head):
            raise DataError(f"{path}, row {place}: {len(line)} cells, not {len(head)}; put texts with commas in quotes")
    return Table(head, [(place, dict(zip(head, line, strict=True))) for place, line in rest if _filled(line)])


def _text(path: Path, unreadable: str) -> str:
    """The file's text. Raises DataError for a file that cannot be read or is no text."""
    try:
        data = path.read_bytes()
        if data.startswith(_WORKBOOKS):
            raise DataError(f"{path} is an Excel workbook; save it as CSV in UTF-8")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason}); save it as CSV in UTF-8") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {unreadable}") from error


def _filled(line: Sequence[str]) -> bool:
    return any(map(str.strip, line))
