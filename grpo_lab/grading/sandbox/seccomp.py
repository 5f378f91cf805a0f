"""Linux's seccomp: system calls that no answer needs are refused from here on to this process and all it starts.

Namespaces, Landlock and limits leave them open: sockets that lie in files, shared memory that no process is charged
for and that outlives them all, further namespaces with a root of their own. Needs no privilege. Numbers of calls differ
between machines.
"""

from __future__ import annotations

import ctypes
import errno
import platform
from collections.abc import Iterator

from grpo_lab.grading.sandbox.linux import PR_SET_SECCOMP, prctl

MODE_FILTER = 2
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""How linux/audit.h calls them: the same process could make the calls of another one, which have other numbers."""
REFUSED = {
    # name: numbers on the MACHINES, in their order
    "socket": (41, 198),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "fsopen": (430, 430), "open_tree": (428, 428),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
}  # fmt: skip
CLONE, CLONE3 = (56, 220), 435
NAMESPACES = 0x7E020000
"""Flags of clone that make namespaces."""
OTHER_NUMBERS = 0x40000000
"""From here on, x86_64 knows the same calls once more."""
LOAD, EQUAL, AT_LEAST, ANY_OF, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets of what a filter may look at."""
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def refuse() -> None:
    """Refuse them for good. Raises OSError where the kernel or this machine does not do it.

    The caller must have given up new privileges.
    """
    if platform.machine() not in MACHINES:
        known = ", ".join(MACHINES)
        raise OSError(errno.ENOSYS, f"seccomp: no numbers of system calls for {platform.machine()}, only for {known}")
    lines = list(_filter(list(MACHINES).index(platform.machine())))
    instructions = (_Instruction * len(lines))(*lines)
    prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(_Program(len(lines), instructions)))


def _filter(machine: int) -> Iterator[tuple[int, int, int, int]]:
    """The instructions: what to do, how many to skip if so and if not, and with which value."""
    yield LOAD, 0, 0, MACHINE
    yield EQUAL, 1, 0, list(MACHINES.values())[machine]
    yield RETURN, 0, 0, KILL
    yield LOAD, 0, 0, NUMBER
    yield AT_LEAST, 0, 1, OTHER_NUMBERS
    yield RETURN, 0, 0, REFUSE | errno.ENOSYS
    yield EQUAL, 0, 1, CLONE3  # its flags lie in memory, out of sight; who is told that it is missing takes clone
    yield RETURN, 0, 0, REFUSE | errno.ENOSYS
    for numbers in REFUSED.values():
        yield EQUAL, 0, 1, numbers[machine]
        yield RETURN, 0, 0, REFUSE | errno.EPERM
    yield EQUAL, 0, 3, CLONE[machine]
    yield LOAD, 0, 0, FIRST_ARGUMENT
    yield ANY_OF, 0, 1, NAMESPACES
    yield RETURN, 0, 0, REFUSE | errno.EPERM
    yield RETURN, 0, 0, ALLOW
