"""Refuse system calls that no answer needs, to this process and all its children, with Linux's seccomp.

Namespaces and limits leave these gaps: sockets in the file system; writes to an existing file through a memory map,
outside the limit on file sizes; shared memory, which can outlive all processes and is uncounted once unmapped; pages
that `vmsplice`, `splice`, `tee` and `sendfile` put into a pipe, each of which keeps an uncounted huge page of 2 MiB;
records that the kernel stores for descriptors and files (locks, watches, rules, filters), which no limit bounds and no
process shows; new namespaces with a root user. Needs no privilege. Numbers of system calls differ between machines.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Iterator
from fcntl import F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_GETPIPE_SZ, F_SETFD, F_SETFL

from grpo_lab.grading.sandbox.processes import (
    PR_GET_NAME,
    PR_SET_NAME,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    PR_SET_SECCOMP,
    prctl,
)
from grpo_lab.paths import data_tables

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


def refuse() -> None:
    """Install the filter for good. Raises OSError where the kernel or this machine does not support it.

    The caller must have set no_new_privs before.
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
