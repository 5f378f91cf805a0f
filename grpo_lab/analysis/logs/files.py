"""The bytes of a log, unpacked, and their text."""

import codecs
import gzip
import os
import sys
import zlib
from pathlib import Path

from grpo_lab.errors import LogError

STDIN = "-"
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""PowerShell's > writes UTF-16 with such a mark."""
_PACKED = b"\x1f\x8b"


def content(path: Path) -> bytes:
    """The bytes of a file, or of the standard input for "-", unpacked if they are packed by gzip.

    Raises LogError for a damaged archive.
    """
    data = sys.stdin.buffer.read() if str(path) == STDIN else path.read_bytes()
    if not data.startswith(_PACKED):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogError(f"{path}: damaged gzip, {error}; `gzip -dc {path} > log` unpacks the rest") from error


def text_of(data: bytes, name: str) -> str:
    """The text in the bytes of a file, with \\n at the end of each line. Raises LogError for a binary file."""
    encoding = next((each for mark, each in _MARKS.items() if data.startswith(mark)), "utf-8-sig")
    text = data.decode(encoding, errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text[:10_000]:
        raise LogError(f"{name} is a binary file, no log; give the text that the trainer wrote")
    return text


def check_readable(folder: Path) -> None:
    """Raise PermissionError for a folder whose files cannot be listed or opened."""
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(folder))


def tail(path: Path, size: int = 2**20) -> str:
    """The end of a text file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode("utf-8", errors="replace").replace("\r", "\n")
