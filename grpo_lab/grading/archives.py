"""Read the files in a zip archive, which is hostile input; nothing is unpacked to disk.

A file's bytes are read into memory, up to a limit, so that neither a path in the archive nor a zip bomb has an effect.
"""

import io
import stat
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import BinaryIO

from grpo_lab.errors import DataError, Sentence

MAX_FILES = 200
"""Limit on the files in an archive."""
MAX_LISTED = 2**20
"""Limit on the list of files in an archive, in bytes: `zipfile` reads it at once, whatever number the end tells."""
MAX_ZIP = 100 * 2**20
"""Limit on an archive's size, in bytes."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Methods of compression that are read; the others can ask for gigabytes of memory."""
LINK_IN_ZIP = "a symbolic link in a zip, and links are not followed; hand in the file itself"
ZIP_IN_ZIP = "a zip in a zip, and only the outer one is opened; hand in the notebook itself"
_AGAIN = Sentence("hand in the notebook itself")
_FAULTS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError, OSError)
"""Exceptions that `zipfile` raises for damaged, encrypted and unknown archives."""


class _Bounded(io.FileIO):
    """An archive whose list of files is refused before it is read where it is too long."""

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes. Raises DataError for more than `MAX_LISTED`."""
        if size and size > MAX_LISTED:
            said = "a zip with a list of files of {:,} bytes, and at most {:,} are read; {}"
            raise DataError(said, size, MAX_LISTED, _AGAIN)
        return super().read(size)


def members(archive: Path) -> dict[str, str]:
    """The files in an archive by name, each with the reason why it must not be read, or an empty text.

    Raises DataError, with the reason in one line, for an archive that cannot be read.
    """
    try:
        if archive.stat().st_size > MAX_ZIP:
            raise DataError("a zip larger than {:,} bytes; {}", MAX_ZIP, _AGAIN)
        with _Bounded(archive) as file, zipfile.ZipFile(file) as opened:
            files = [each for each in opened.infolist() if not each.filename.endswith("/")]
    except _FAULTS as error:
        raise DataError("a zip that cannot be read; {}", _AGAIN) from error
    if len(files) > MAX_FILES:
        raise DataError("a zip of {:,} files, and at most {} are read; {}", len(files), MAX_FILES, _AGAIN)
    times = Counter(each.filename for each in files)
    return {each.filename: _problem(each, times[each.filename]) for each in files}


def content(opened: BinaryIO, member: str, most: int) -> bytes:
    """The bytes of a file in an open archive, at most `most`. Raises DataError where it cannot be read."""
    try:
        with zipfile.ZipFile(opened) as archive, archive.open(member) as file:
            return file.read(most)
    except (*_FAULTS, KeyError) as error:
        raise DataError("damaged in its zip; {}", _AGAIN) from error


def _problem(file: zipfile.ZipInfo, times: int) -> str:
    if stat.S_ISLNK(file.external_attr >> 16):
        return LINK_IN_ZIP
    if times > 1:
        return Sentence("{} files of its zip have this name; {}", times, _AGAIN)
    if file.filename.startswith(("/", "\\")) or ".." in file.filename.replace("\\", "/").split("/"):
        return Sentence("its name in the zip leads out of the folder; {}", _AGAIN)
    if file.flag_bits & 0x1:
        return Sentence("its zip has a password; {}", _AGAIN)
    if file.compress_type not in METHODS:
        return Sentence("its zip is compressed in a way that is not read; {}", _AGAIN)
    return ZIP_IN_ZIP if file.filename.lower().endswith(".zip") else ""
