"""The limits that the sandbox's program sets on itself: privileges, system calls, resources."""

import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from grpo_lab.grading.sandbox import seccomp
from grpo_lab.grading.sandbox.processes import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl
from grpo_lab.paths import data_directory

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
    seccomp.refuse()
    caps = {
        resource.RLIMIT_AS: _address_space() + limits.memory_mb * MIB,
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


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _processes_of_this_user() -> int:
    every = (each.info for each in psutil.process_iter(["uids", "num_threads"]))
    return sum(each["num_threads"] or 1 for each in every if each["uids"] and each["uids"].real == os.getuid())
