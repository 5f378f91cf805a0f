"""The exceptions in a console log."""

import bisect
import itertools
import re
from collections.abc import Sequence

_START = re.compile(r"Traceback \(most recent call last\)")
_BEFORE = re.compile(r"(\x1b\[[\d;]*m|\(\w+ pid=\d+[^)]*\)|\[(?:rank|default)?\d+\]:|[│|╭╰─]+)\s?")
"""Prefixes of a line by ray, torchrun and rich."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:\([\w.]+\))?(?::.*)?$")
_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit|Timeout|Expired)\b")
_RAY = "RayTaskError("
"""ray puts the name of its own exception before the traceback of the one that it passes on."""
LONGEST = 50_000
"""Characters of a traceback."""
WRAPPERS = ("ChildFailedError", "CalledProcessError")
"""Launchers raise these after the process that they started has raised its own."""


def last_exception(text: str) -> str:
    """The last line of the last traceback in a text, as "ValueError: 3"; empty if there is none.

    >>> last_exception("Traceback (most recent call last):\\n  File 'a.py', line 1\\nValueError: 3\\n")
    'ValueError: 3'
    """
    return by_rows(text, []).get(0, "")


def by_rows(text: str, places: Sequence[int]) -> dict[int, str]:
    """The last exception after each number of rows, from where the rows of a console begin."""
    found: dict[int, str] = {}
    starts = [*_START.finditer(text)]
    for start, after in itertools.zip_longest(starts, starts[1:]):
        lines = text[start.end() : after.start() if after else None][:LONGEST].split("\n")[1:]
        bare = [_BEFORE.sub("", line).rstrip() for line in lines]
        likely = [line for line in bare if line and not line[0].isspace() and _EXCEPTION.match(line)]
        sure = [line for line in likely if _ERROR.match(line)]
        known = [line for line in sure if _RAY not in line] or sure or likely
        rows = bisect.bisect(places, start.start())
        if known and (rows not in found or not known[0].partition(":")[0].endswith(WRAPPERS)):
            found[rows] = known[0]
    return found
