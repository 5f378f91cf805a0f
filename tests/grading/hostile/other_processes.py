"""Stops, kills, traces, limits and writes into processes that are not its own; changes the program that runs it.

Place: 05_kl/k3
Said: 'nothing'
"""

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from typing import Any

WORLD: dict[str, Any] = {}
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206


def traces(pid):
    if LIBC.ptrace(PTRACE_SEIZE, pid, None, None) and LIBC.ptrace(PTRACE_ATTACH, pid, None, None):
        raise OSError


def writes(pid):
    buffer = ctypes.create_string_buffer(8)
    pair = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    if LIBC.process_vm_writev(pid, pair, 1, pair, 1, 0) < 0:
        raise OSError


WAYS: dict[str, Callable[[int], Any]] = {
    "see": lambda pid: os.stat(f"/proc/{pid}"),
    "limit": lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE),
    "lower": lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)),
    "slow": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "slow user": lambda pid: os.setpriority(os.PRIO_USER, 0, 19),
    "idle": lambda pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
    "bind": lambda pid: os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))}),
    "pages": lambda pid: os.open(f"/proc/{pid}/mem", os.O_RDWR),
    "replies": lambda pid: [os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY) for number in range(3, 9)],
    "signal": lambda pid: os.kill(pid, 0),
    "stop": lambda pid: os.kill(pid, signal.SIGSTOP),
    "kill": lambda pid: os.kill(pid, signal.SIGKILL),
    "trace": traces,
    "write": writes,
    "descriptor": lambda pid: os.open(f"/proc/{pid}/fd/0", os.O_RDONLY),
}
TO_ITS_OWN = ("trace", "write", "limit", "lower", "slow", "slow user", "idle", "bind", "pages", "replies")


def attack(*_, **__):
    asked = [(name, pid) for pid in WORLD["processes"] for name in WAYS]
    got = []
    for name, pid in [*asked, *((name, os.getppid()) for name in TO_ITS_OWN)]:
        try:
            WAYS[name](pid)
            got.append(name)
        except OSError:
            continue
    return got or "nothing"
