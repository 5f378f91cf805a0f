"""Raises its limits, becomes root, and makes itself a world of its own in which it is.

Place: 05_kl/expected_gradient
Said: 'nothing'
"""

import ctypes
import os
import resource
import subprocess
from collections.abc import Callable
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIMITS = ("AS", "CPU", "FSIZE", "NPROC", "NOFILE", "CORE")
SPACES = {"user": 0x10000000, "mount": 0x20000, "network": 0x40000000, "process": 0x20000000}
SIGCHLD = 17
SYS_CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]


def raised(name):
    which = getattr(resource, f"RLIMIT_{name}")
    resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def cloned(flag):
    if not checked(LIBC.syscall(ctypes.c_long(SYS_CLONE), ctypes.c_long(flag | SIGCHLD), None, None, None, None)):
        os._exit(0)


WAYS: dict[str, Callable[[], Any]] = {
    **{f"raise {name}": lambda name=name: raised(name) for name in LIMITS},
    **{f"unshare {name}": lambda flag=flag: checked(LIBC.unshare(flag)) for name, flag in SPACES.items()},
    **{f"clone {name}": lambda flag=flag: cloned(flag) for name, flag in SPACES.items()},
    "mount": lambda: checked(LIBC.mount(b"none", b"/tmp", b"ramfs", 0, None)),
    "become root": lambda: os.setuid(0),
    "become root's group": lambda: os.setgid(0),
    "change root": lambda: os.chroot("/"),
    "su": lambda: subprocess.run(["su", "-c", "id"], check=True, capture_output=True, stdin=subprocess.DEVNULL),
    "unshare, the program": lambda: subprocess.run(["unshare", "-r", "true"], check=True, capture_output=True),
}


def attack(*_, **__):
    got = []
    for name, way in WAYS.items():
        try:
            way()
            got.append(name)
        except (OSError, ValueError, subprocess.CalledProcessError):
            continue
    with open("/proc/self/status", encoding="utf-8") as file:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    got += [name for name in ("CapEff", "CapPrm", "CapAmb", "Groups") if fields[name].strip(" 0")]
    return got if got or fields["NoNewPrivs"] != "1" else "nothing"
