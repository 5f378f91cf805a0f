"""Linux: the processes below this one, and the limits that the sandbox's program sets on itself.

Processes are found, measured and killed from outside; the limits are privileges, system calls and resources.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fcntl import F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_GETPIPE_SZ, F_SETFD, F_SETFL
from pathlib import Path

import psutil

from grpo_lab.paths import data_directory, data_tables

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
    with suppress(OSError):  # the process has just ended
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                text = Path(f"/proc/{process}/task/{thread}/{file}").read_text()
                lines = [line.split() for line in text.splitlines() if line.startswith(names)]
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


MODE_FILTER = 2
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Values of linux/audit.h. A process can also make another architecture's calls, which have other numbers."""
CALLS = data_tables("seccomp")
"""Numbers of the calls, in the order of MACHINES, by the error that answers them."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
NAMESPACES = 0x7E020000
MAP_SHARED, MAP_HUGETLB = 1, 0x40000
WITH_FLAGS = {
    "open": ((2, None), 1, WRITES), "openat": ((257, 56), 2, WRITES), "clone": ((56, 220), 0, NAMESPACES),
    "mmap": ((9, 222), 3, MAP_SHARED | MAP_HUGETLB),
}  # fmt: skip
"""Numbers, argument and flags: refused with any of these flags in this argument."""
ONLY_WITH = {
    "fcntl": ((72, 25), 1, (F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ)),
    "prctl": ((157, 167), 0, (PR_SET_PDEATHSIG, PR_SET_NAME, PR_GET_NAME, PR_SET_NO_NEW_PRIVS)),
    "prlimit64": ((302, 261), 0, (0,)), "sched_setaffinity": ((203, 122), 0, (0,)),
}  # fmt: skip
"""Numbers, argument and values: refused with any other value in this argument. That leaves out locks of files, sizes of
pipes, filters, the attribute that hides a process's memory from the grader (PR_SET_DUMPABLE), and limits and processors
of another process: the program of the sandbox has the same user, and serves the next answer."""
OTHER_NUMBERS = 0x40000000
"""From here on, x86_64 repeats the same calls (x32)."""
LOAD, EQUAL, AT_LEAST, ANY_OF, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, ARGUMENTS = 0, 4, 16
"""Offsets of the data that a filter can read."""
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def refuse_calls() -> None:
    """Refuse system calls that no answer needs, to this process and all its children, with Linux's seccomp, for good.

    Namespaces and limits leave these gaps: sockets in the file system; writes to an existing file through a memory map,
    outside the limit on file sizes; shared memory, which can outlive all processes and is uncounted once unmapped;
    pages that `vmsplice`, `splice`, `tee` and `sendfile` put into a pipe, each of which keeps an uncounted huge page of
    2 MiB; records that the kernel stores for descriptors and files (locks, watches, rules, filters), which no limit
    bounds and no process shows; new namespaces with a root user. Needs no privilege, and no_new_privs set before.
    Numbers of calls differ between machines. Raises OSError where the kernel or this machine does not support it.
    """
    if platform.machine() not in MACHINES:
        known = ", ".join(MACHINES)
        raise OSError(errno.ENOSYS, f"seccomp: no numbers of system calls for {platform.machine()}, only for {known}")
    lines = list(_filter(list(MACHINES).index(platform.machine())))
    instructions = (_Instruction * len(lines))(*lines)
    prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(_Program(len(lines), instructions)))


def _filter(machine: int) -> Iterator[tuple[int, int, int, int]]:
    """The filter's instructions: operation, jumps if true and if false, value."""
    yield LOAD, 0, 0, MACHINE
    yield EQUAL, 1, 0, list(MACHINES.values())[machine]
    yield RETURN, 0, 0, KILL
    yield LOAD, 0, 0, NUMBER
    yield AT_LEAST, 0, 1, OTHER_NUMBERS
    yield RETURN, 0, 0, REFUSE | errno.ENOSYS
    for table, error in (("refused", errno.EPERM), ("missing", errno.ENOSYS)):
        for numbers in CALLS[table].values():
            if (number := numbers[machine]) >= 0:
                yield EQUAL, 0, 1, number
                yield RETURN, 0, 0, REFUSE | error
    for numbers, argument, flags in WITH_FLAGS.values():
        if (number := numbers[machine]) is not None:
            yield EQUAL, 0, 4, number
            yield LOAD, 0, 0, ARGUMENTS + 8 * argument
            yield ANY_OF, 0, 1, flags
            yield RETURN, 0, 0, REFUSE | errno.EPERM
            yield RETURN, 0, 0, ALLOW
    for numbers, argument, values in ONLY_WITH.values():
        if (number := numbers[machine]) is not None:
            yield EQUAL, 0, len(values) + 3, number
            yield LOAD, 0, 0, ARGUMENTS + 8 * argument
            for left, value in zip(range(len(values), 0, -1), values, strict=True):
                yield EQUAL, left, 0, value
            yield RETURN, 0, 0, REFUSE | errno.EPERM
            yield RETURN, 0, 0, ALLOW
    yield RETURN, 0, 0, ALLOW


PACKAGE = Path(__file__).resolve().parents[2]
SYSTEM = tuple(Path(path) for path in ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives"))
MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The resources of one answer."""

    seconds: float
    memory_mb: int
    processes: int
    output_kb: int


def confine(limits: Limits, user: int | None) -> None:
    """Give up privileges for good, and cap the resources of this process and its children.

    `user` is an id that no other process has; only root can take it. Raises OSError where the kernel refuses.
    """
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    refuse_calls()
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    caps = {
        resource.RLIMIT_AS: mapped + limits.memory_mb * MIB,
        resource.RLIMIT_NPROC: limits.processes + (0 if user is not None else _processes_of_this_user()),
        resource.RLIMIT_FSIZE: 0,  # not one byte into any file; pipes are not files
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,  # timers and waiting signals are records of the kernel
    }
    for which, most in caps.items():
        resource.setrlimit(which, (most, most))


def bound_cpu(limits: Limits) -> None:
    """Cap the processor time of this process, an answer's own; the grader's wall clock expires first."""
    most = int(limits.seconds) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def readable() -> Iterator[Path]:
    """The paths that an answer needs: the system's programs, Python, and this package."""
    yield from (path for path in SYSTEM if path.exists())
    roots = [Path(sys.base_prefix).resolve(), Path(sys.prefix)]
    # Packages outside of Python's prefix. The folder above this package is left out: it may hold solutions.
    packages = {Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")}
    packages |= {Path(path) for path in sys.path if (Path(path) / "torch").is_dir()}
    roots += sorted(path for path in packages if not any(path.is_relative_to(root) for root in roots))
    yield from roots
    yield from (PACKAGE, data_directory())


def _processes_of_this_user() -> int:
    every = (each.info for each in psutil.process_iter(["uids", "num_threads"]))
    return sum(each["num_threads"] or 1 for each in every if each["uids"] and each["uids"].real == os.getuid())
