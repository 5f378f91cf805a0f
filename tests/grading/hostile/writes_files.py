"""Makes, changes and deletes files where it matters: reports, the package, files that Python runs at its start.

Place: 05_kl/forecast
Said: 'nothing'
"""

import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORLD: dict[str, Any] = {}


def through_memory(file):
    descriptor = os.open(file, os.O_RDWR)
    with mmap.mmap(descriptor, 0) as mapped:
        mapped[:4] = b"15.0"


def socket_in_a_file(folder):
    socket.socketpair()[0].bind(f"{folder}/{WORLD['token']}.socket")


IN_FOLDERS: dict[str, Callable[[str], Any]] = {
    "write": lambda folder: Path(folder, f"{WORLD['token']}.pth").write_text("import os"),
    "make": lambda folder: os.open(f"{folder}/{WORLD['token']}.py", os.O_CREAT),
    "nameless": lambda folder: os.open(folder, os.O_RDWR | os.O_TMPFILE),
    "folder": lambda folder: os.mkdir(f"{folder}/{WORLD['token']}"),
    "link": lambda folder: os.symlink("/etc/passwd", f"{folder}/{WORLD['token']}.link"),
    "pipe": lambda folder: os.mkfifo(f"{folder}/{WORLD['token']}.pipe"),
    "socket": socket_in_a_file,
}
TO_FILES: dict[str, Callable[[str], Any]] = {
    "append": lambda file: os.write(os.open(file, os.O_APPEND | os.O_WRONLY), b"15"),
    "write through memory": through_memory,
    "empty": lambda file: os.truncate(file, 0),
    "open emptied": lambda file: os.open(file, os.O_TRUNC),
    "rename": lambda file: os.rename(file, f"{file}.old"),
    "second name": lambda file: os.link(file, f"{file}.new"),
    "date": lambda file: os.utime(file, (0, 0)),
    "mode": lambda file: os.chmod(file, 0o777),
    "owner": lambda file: os.chown(file, os.getuid(), os.getgid()),
    "attribute": lambda file: os.setxattr(file, "user.points", b"15"),
    "delete": os.unlink,
}


def attack(*_, **__):
    got = []
    for paths, ways in ((WORLD["places"], IN_FOLDERS), (WORLD["files"], TO_FILES)):
        for path in paths:
            for name, way in ways.items():
                try:
                    way(path)
                    got.append(f"{name} {path}")
                except OSError:
                    continue
    return got or "nothing"
