"""The processes below this one, seen from outside: find, measure and kill them."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from grpo_lab.grading.sandbox.linux import reap

COSTLY = ("RssAnon:", "RssShmem:", "VmSwap:")
"""Linux's names for memory that no file backs."""
MAPPING, LINK = 256, 64
"""Bytes that the kernel keeps for a mapping, and for each process in the chain of forks that it came through."""
SHARES = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
"""The same memory, where each page is divided by the number of processes that map it."""


def descendants() -> list[int]:
    """The living processes below this one."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # the process has just ended
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                state, parent, threads = fields[0], int(fields[1]), int(fields[17])
                if state != "Z" or threads > 1:  # a process without its first thread looks dead
                    parents.setdefault(parent, []).append(int(folder.name))
    found, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def memory_of(process: int) -> int:
    """The bytes of this process that no file backs; memory that it shares with others is counted in full."""
    return _largest(process, "status", COSTLY)


def shares_of(process: int) -> int:
    """The bytes of this process that no file backs, with its share of what several processes map.

    The sum over all processes counts every page once. Where Linux does not show the shares: the full bytes.
    """
    return _largest(process, "smaps_rollup", SHARES) or memory_of(process)


def mappings_of(process: int) -> int:
    """The number of this process's mappings; the kernel's records of them are no memory of any process."""
    with suppress(OSError):  # the process has just ended
        return Path(f"/proc/{process}/maps").read_bytes().count(b"\n")
    return 0


def _largest(process: int, file: str, names: tuple[str, ...]) -> int:
    """The sum of these lines: all threads share the memory, but a thread that has ended reports none."""
    found = 0
    with suppress(OSError):  # the process has just ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            found = max(found, _told_by(thread / file, names))
            if found:
                break
    return found


def _told_by(file: Path, names: tuple[str, ...]) -> int:
    with suppress(OSError):
        lines = (line.split() for line in file.read_text().split("\n") if line.startswith(names))
        return sum(int(words[1]) * 1024 for words in lines)
    return 0


def end_descendants(spared: frozenset[int]) -> None:
    """Kill all descendants but those spared, again and again until none is left."""
    while todo := [pid for pid in descendants() if pid not in spared]:
        for pid in todo:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
        reap()  # the first process of a namespace ends only after all others have been reaped
    reap()
