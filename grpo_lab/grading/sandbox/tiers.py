"""How strongly an answer can be contained: three tiers, each tried by running before it is believed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_lab.grading.sandbox.confinement import HIDDEN, MIB, PACKAGE, Limits, readable

PROGRAM = ("-B", "-P", "-s", "-m", "grpo_lab.grading.sandbox.answering")
FIRST_USER = 1_800_000_000
"""Ids from here on belong to nobody; each sandbox of a grader who is root takes one of its own."""


@dataclass(frozen=True)
class Tier:
    """A way to run answers."""

    number: int
    name: str
    contains: str
    """What it keeps an answer from, for the report."""
    leaves: str
    """What it does not, in full honesty."""
    wrap: Callable[[], list[str]]
    """The command that the program is started by."""
    landlock: bool = False

    @property
    def trust(self) -> str:
        """What the report says."""
        return f"{self.name[0].upper()}{self.name[1:]}. {self.contains} {self.leaves}"

    def command(self, limits: Limits) -> list[str]:
        """How to start the program."""
        user = str(FIRST_USER + os.getpid()) if os.getuid() == 0 else ""
        files = "files" if self.landlock else ""
        return [*self.wrap(), sys.executable, *PROGRAM, limits.to_text(), user, files, os.readlink("/proc/self/ns/pid")]


def environment() -> dict[str, str]:
    """All that the program learns of the grader's environment."""
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    return {**quiet, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(PACKAGE.parent)}


def _unshared() -> list[str]:
    mine = [] if os.getuid() == 0 else ["--user", "--map-current-user"]
    spaces = ["--net", "--pid", "--ipc", "--uts", "--mount", "--mount-proc", "--fork", "--kill-child"]
    return [_found("unshare"), *mine, *spaces, "--"]


def _bubblewrapped() -> list[str]:
    # Root needs no user namespace, and in one it could not take another user's id.
    user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    mine = user if os.getuid() == 0 else ["--unshare-user"]
    spaces = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    paths = list(readable())
    above = sorted({parent for path in paths for parent in path.parents if parent != Path("/")})
    # Made beforehand, since bubblewrap would make them for its own user alone.
    folders = [word for path in above for word in ("--dir", str(path))]
    binds = [word for path in paths for word in ("--ro-bind", str(path), str(path))]
    # torch wants a folder for temporary files when it is loaded; afterwards nothing can be written into it.
    own = ["--proc", "/proc", "--dev", "/dev", "--size", str(MIB), "--tmpfs", "/tmp"]
    # In this order: what is needed may lie below /tmp, and what is hidden lies below what is needed.
    hidden = ["--tmpfs", str(HIDDEN), "--remount-ro", str(HIDDEN)]
    ends = ["--remount-ro", "/", "--chdir", "/", "--new-session", "--die-with-parent", "--"]
    return [_found("bwrap"), *mine, *spaces, *own, *folders, *binds, *hidden, *ends]


def _found(program: str) -> str:
    """Its path; its name where it is not installed, so that starting it says so."""
    return shutil.which(program) or program


_ALWAYS = (
    "An answer runs in a process of its own with caps on time, memory, processes and output. It can open no socket "
    "and make, change or delete no file. What is right is not sent to it, and no verdict is drawn there."
)
_NO_MORE = (
    "Not contained: flaws of the kernel itself, what can be learned from timing, and reading this package, which "
    "learners have anyway."
)

TIERS = (
    Tier(
        0,
        "a process with limits",
        _ALWAYS,
        "Not contained: it can see other processes, and read what its user can read, this package's checks among them. "
        + (
            "It runs as a user of its own."
            if os.getuid() == 0
            else "It runs as YOU: it can read your files, the grader's secret and other submissions among them, and "
            "end your processes. For people you trust."
        ),
        list,
    ),
    Tier(
        1,
        "namespaces and Landlock",
        f"{_ALWAYS} No process but its own to be seen; no file to open but the system's programs, Python "
        "and this package; all it started dies with it.",
        f"Names of files elsewhere can be seen to exist. Where the package lies inside Python's own folder, its checks "
        f"can be read. {_NO_MORE}",
        _unshared,
        landlock=True,
    ),
    Tier(
        2,
        "bubblewrap",
        f"{_ALWAYS} No process but its own; a file system of its own, read-only, with the system's "
        "programs, Python and this package without its checks; all it started dies with it.",
        _NO_MORE,
        _bubblewrapped,
    ),
)
