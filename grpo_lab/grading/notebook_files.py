"""Read a notebook's file, which is hostile input: up to a size, as JSON, or else the reason in words for its author."""

import json
import os
import re
import stat
from typing import Any

from grpo_lab.errors import DataError
from grpo_lab.grading import archives
from grpo_lab.grading.submissions import LINK, Found

MAX_DIGITS = 20
"""Limit on a whole number's digits: parsing takes quadratic time, and no number that is kept has more."""
AGAIN = "open it in JupyterLab, save it and hand it in again"
_CONFLICT = re.compile(r"^[ \t]*(?:<{7}|>{7})(?:[ \r]|$)", re.MULTILINE)
"""The lines that Git writes around a merge conflict."""
_PAGE = re.compile(r"<[!?A-Za-z]")


class Refused(Exception):
    """A file or a cell is refused; the message gives the reason and the way out in one line."""


def content(found: Found, max_bytes: int) -> bytes:
    """The notebook's bytes, at most one more than allowed. Raises Refused for a link, a pipe or an unreadable file."""
    file = found.file
    try:
        with open(
            file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        ) as opened:
            if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                most = max_bytes + 1
                return archives.content(opened, found.member, most) if found.member else opened.read(most)
    except DataError as error:
        raise Refused(str(error)) from error
    except IsADirectoryError:
        pass
    except OSError as error:
        raise Refused(LINK if os.path.islink(file) else f"cannot be read: {error.strerror}") from error
    raise Refused("not a regular file; hand in the notebook itself")


def tree(data: bytes) -> Any:
    """The parsed JSON. Raises Refused for other text, and for text that two parsers could read differently."""
    try:
        text = _text(data)
    except UnicodeDecodeError:
        raise Refused(f"not a notebook: its characters cannot be read; {AGAIN}") from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_short_int,
            parse_float=float,  # with NaN and infinities, which JSON lacks and outputs hold; no such number is kept
        )
    except RecursionError:
        raise Refused(f"nested too deeply for a notebook; {AGAIN}") from None
    except json.JSONDecodeError as error:
        raise Refused(_damage(text, error)) from None
    except ValueError as error:
        raise Refused(f"not a notebook: {error}; {AGAIN}") from None


def _damage(text: str, error: json.JSONDecodeError) -> str:
    """The reason why a text is not JSON, for its author, and the way out."""
    whole, begin = text.rstrip(), text.lstrip("\ufeff \t\r\n")
    if not begin:
        return "not a notebook: the file is empty, perhaps because an upload failed; hand in the notebook again"
    if mark := _CONFLICT.search(text):
        line = text.count("\n", 0, mark.start()) + 1
        return (
            f"not a notebook: it holds the marks of a merge conflict, the first in line {line}; choose one version of "
            "each part in Git, open the notebook in JupyterLab to see that it is whole, and hand it in again"
        )
    if _PAGE.match(begin):
        return "not a notebook: a web page, perhaps one that asks for a login; hand in the notebook itself (*.ipynb)"
    if not begin.startswith(("{", "[")):
        return "not a notebook: a file of another kind under its name; hand in the notebook itself (*.ipynb)"
    extra = error.msg.startswith("Extra")
    if error.pos >= len(whole) or error.msg.startswith("Unterminated") or not (whole.endswith("}") or extra):
        return (
            "not a notebook: the file ends in the middle, perhaps because an upload failed; hand in the whole "
            "notebook again"
        )
    return f"not a notebook: damaged in line {error.lineno}; hand in a copy that JupyterLab opens"


def _text(data: bytes) -> str:
    """The text of a file: UTF-8, UTF-16 or UTF-32, else Latin-1, in which some editors of Windows save.

    >>> [_text("é {}".encode(encoding)) for encoding in ("utf-8-sig", "utf-16", "latin-1")]
    ['é {}', 'é {}', 'é {}']
    """
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        if encoding != "utf-8":
            raise
        return data.decode("latin-1")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises ValueError for a repeated key, of whose values parsers take the first or the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("one object has the same key twice")
    return found


def _short_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits")
    return int(digits)
