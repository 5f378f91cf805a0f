"""The exception at the end of a console log."""

import re
from collections.abc import Iterator

_START = re.compile(r"Traceback \(most recent call last\)")
_BEFORE = re.compile(r"(\x1b\[[\d;]*m|\(\w+ pid=\d+[^)]*\)|\[(?:rank|default)?\d+\]:|[│|╭╰─]+)\s?")
"""What ray, torchrun and rich put before a line."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:\([\w.]+\))?(?::.*)?$")
WRAPPERS = ("ChildFailedError", "CalledProcessError")
"""Launchers raise these after the process that they started has raised its own."""


def last_exception(text: str) -> str:
    """The last line of the last traceback in a text, as "ValueError: 3"; empty if there is none.

    >>> last_exception("Traceback (most recent call last):\\n  File 'a.py', line 1\\nValueError: 3\\n")
    'ValueError: 3'
    """
    found = [exception for _, exception in exceptions(text)]
    own = [each for each in found if not each.partition(":")[0].endswith(WRAPPERS)]
    return (own or found or [""])[-1]


def exceptions(text: str) -> Iterator[tuple[int, str]]:
    """Where each traceback in a text begins, and its last line."""
    for start in _START.finditer(text):
        end = text.find("\n", start.end())
        for line in text[end + 1 : start.end() + 100_000].split("\n") if end >= 0 else ():
            bare = _BEFORE.sub("", line).rstrip()
            if bare and not bare[0].isspace() and _EXCEPTION.match(bare):
                yield start.start(), bare
                break
