"""Linux processes: `prctl`, and the processes below this one, seen from outside: find, measure and kill them."""

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
PR_SET_NAME, PR_GET_NAME = 15, 16
_libc = ctypes.CDLL(None, use_errno=True)
COSTLY = ("RssAnon:", "RssShmem:", "VmSwap:")
"""Linux's names for memory that no file backs."""
SHARES = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
"""The same memory, where each page is divided by the number of processes that map it."""


def prctl(option: int, *arguments: object) -> None:
    """Change an attribute of this process. Raises OSError where the kernel refuses it."""
    four = (*arguments, 0, 0, 0, 0)[:4]
    if _libc.prctl(option, *(ctypes.c_long(each) if isinstance(each, int) else each for each in four)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


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
    return _told(process, "status", COSTLY)


def shares_of(process: int) -> int:
    """The bytes of this process that no file backs, with its share of what several processes map.

    The sum over all processes counts every page once. Where Linux does not show the shares: the full bytes.
    """
    return _told(process, "smaps_rollup", SHARES) or memory_of(process)


def mappings_of(process: int) -> int:
    """The number of this process's mappings; the kernel's records of them are no memory of any process."""
    with suppress(OSError):  # the process has just ended
        return Path(f"/proc/{process}/maps").read_bytes().count(b"\n")
    return 0


def _told(process: int, file: str, names: tuple[str, ...]) -> int:
    """The sum of these lines, in bytes. All threads share the memory, but a thread that has ended reports none."""
    for path in Path("/proc").glob(f"{process}/task/*/{file}"):
        with suppress(OSError):
            lines = [line.split() for line in path.read_text().splitlines() if line.startswith(names)]
            if found := sum(int(words[1]) * 1024 for words in lines):
                return found
    return 0


def reap() -> None:
    """Take the exit codes of children that have ended, orphans among them."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_descendants(spared: frozenset[int]) -> None:
    """Kill all descendants but those spared, again and again until none is left."""
    while todo := [pid for pid in descendants() if pid not in spared]:
        for pid in todo:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
        reap()  # the first process of a namespace ends only after all others have been reaped
    reap()
