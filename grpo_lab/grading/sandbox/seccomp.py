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

MODE_FILTER = 2
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Values of linux/audit.h. A process can also make another architecture's calls, which have other numbers."""
REFUSED = {
    # Numbers in the order of MACHINES. Sockets:
    "socket": (41, 198), "socketpair": (53, 199),
    # Entries of folders, and metadata of files:
    "creat": (85, None), "mkdir": (83, None), "mkdirat": (258, 34), "mknod": (133, None), "mknodat": (259, 33),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None),
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
    # Memory that outlives its processes or is charged to none:
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "io_setup": (206, 0),
    "vmsplice": (278, 75), "splice": (275, 76), "tee": (276, 77), "sendfile": (40, 71), "copy_file_range": (326, 285),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "landlock_create_ruleset": (444, 444),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "fanotify_init": (300, 262), "flock": (73, 32), "seccomp": (317, 277),
    # Namespaces and mounts:
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "fsopen": (430, 430), "open_tree": (428, 428),
    # Other processes:
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    # Large parts of the kernel that few programs need:
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
}  # fmt: skip
MISSING = {"clone3": (435, 435), "openat2": (437, 437)}
"""Calls with flags in memory, which a filter cannot read. Refused as missing; libc then uses those below."""
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
    for table, error in ((REFUSED, errno.EPERM), (MISSING, errno.ENOSYS)):
        for numbers in table.values():
            if (number := numbers[machine]) is not None:
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
