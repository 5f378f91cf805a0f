"""The text of a log, unpacked, as a reader of a format gets it."""

import ast
import bisect
import codecs
import functools
import gzip
import itertools
import json
import re
import sys
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_lab.errors import LogError
from grpo_lab.paths import data_directory, read_toml

STDIN = "-"


@functools.cache
def tables(name: str) -> Mapping[str, Any]:
    """The tables of a file in data/diagnosis. Raises ConfigError for a file that cannot be read."""
    return read_toml(data_directory() / "diagnosis" / f"{name}.toml")


@functools.cache
def patterns(module: str) -> dict[str, re.Pattern[str]]:
    """The patterns of a module by name, from data/diagnosis/patterns.toml."""
    written, parts = tables("patterns")[module], tables("patterns")["parts"]
    part = re.compile(rf"\b(?:{'|'.join(parts)})\b")
    return {name: re.compile(part.sub(lambda found: parts[found[0]], text)) for name, text in written.items()}


_PATTERNS, _LIMITS = patterns("text"), tables("limits")["text"]
PREFIX = _PATTERNS["prefix"]


@dataclass(frozen=True)
class Text:
    """The text of one file."""

    said: str
    name: str
    """The path of the file."""
    logging_steps: int = 1
    """The steps between two rows, as settings beside the log tell."""

    @cached_property
    def first(self) -> str:
        """The first line that is not blank."""
        return next((line.strip() for line in self.said.split("\n", 50) if line.strip()), "")


def content(path: Path) -> bytes:
    """The bytes of a file, or of the standard input for "-", unpacked if they are packed by gzip.

    Raises LogError for a damaged archive.
    """
    data = sys.stdin.buffer.read() if str(path) == STDIN else path.read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogError(f"{path}: damaged gzip, {error}; `gzip -dc {path} > log` unpacks the rest") from error


def decoded(data: bytes, name: str) -> str:
    """The text in the bytes of a file, with \\n at the end of each line. Raises LogError for a binary file."""
    by_powershell = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if by_powershell else "utf-8-sig"
    text = data.decode(encoding, errors="replace").replace("\r\n", "\n").replace("\r", "\n").replace("\u2212", "-")
    if "\0" in text[:10_000]:
        raise LogError(f"{name} is a binary file, no log; give the text that the trainer wrote")
    return with_points(without_margin(text))


def with_points(text: str) -> str:
    """The text with points for the commas of decimals, if it has commas alone, as "0,25" in a German table."""
    begin = text[: _LIMITS["of_margins"]]
    commas = len(_PATTERNS["no_thousands"].findall(begin)) > 4 and not _PATTERNS["point"].search(begin)
    return _PATTERNS["decimal"].sub(r"\1.", text) if commas else text


def without_margin(text: str) -> str:
    """The text without what stands before its lines, as marks of a quotation, line numbers, or a time.

    The first line and nearly all others have it. A page may show a text as a table of one column, with bars around its
    lines. Line numbers grow by one from line to line. So may steps, but then every line has a value: steps stay.
    """

    def sample() -> list[str]:
        return [line for line in text[: _LIMITS["of_margins"]].split("\n") if line.strip()][:-1] or [""]

    if all(line.rstrip().endswith("|") and "|" not in line.strip("| ") for line in sample()):
        text = re.sub(r"(?m)^[ |]+|[ |]+$", "", text)
    for name, margin in patterns("margins").items():
        found = [margin.match(line) for line in sample()]
        if name == "number":
            numbers = [int(match[1]) if match else -1 for match in found]
            counted = numbers == [*range(numbers[0], numbers[0] + len(numbers))]
            valued = all(match and re.search(r"\d", match.string[match.end() :]) for match in found)
            found = found if counted and not valued else [None]
        if found[0] and 10 * found.count(None) <= len(found):
            text = re.sub(f"(?m)^{margin.pattern}", "", text)
    return textwrap.dedent(text)


def literal(text: str) -> Any:
    """The value of a Python text, as printed lists and dictionaries, or None if it is none."""
    try:
        return ast.literal_eval(re.sub(r"\b(nan|inf)\b", r"'\1'", text.strip()))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def parsed(text: str) -> Any:
    """The value of a JSON text, or None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def last_exception(text: str) -> str:
    """The last line of the last traceback in a text, as "ValueError: 3"; empty if there is none."""
    return by_rows(text, []).get(0, "")


def by_rows(text: str, places: Sequence[int]) -> dict[int, str]:
    """The last exception after each number of rows, from where the rows of a console begin."""
    found: dict[int, str] = {}
    starts = [*_PATTERNS["traceback"].finditer(text)]
    for start, after in itertools.zip_longest(starts, starts[1:]):
        lines = text[start.end() : after.start() if after else None][: _LIMITS["longest_traceback"]].split("\n")[1:]
        bare = [_PATTERNS["before"].sub("", line).rstrip() for line in lines]
        likely = [line for line in bare if line and not line[0].isspace() and _PATTERNS["exception"].match(line)]
        sure = [line for line in likely if _PATTERNS["error"].match(line)]
        known = [line for line in sure if _LIMITS["of_ray"] not in line] or sure or likely
        rows = bisect.bisect(places, start.start())
        if known and (rows not in found or not any(each in known[0] for each in _LIMITS["launchers"])):
            found[rows] = known[0].rstrip(":")
    heads = [start for start in starts if start[0].startswith("Traceback")]
    if heads and not found:  # the end is cut off; a title may tell it
        said = [*_PATTERNS["named"].findall(text), heads[-1][0]]
        found[bisect.bisect(places, heads[-1].start())] = said[0]
    return found
