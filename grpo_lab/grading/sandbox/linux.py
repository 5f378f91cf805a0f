"""Linux's process control: `prctl`, which Python's library lacks, and reaping of children."""

import ctypes
import os
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
PR_SET_NAME, PR_GET_NAME = 15, 16
_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: object) -> None:
    """Change an attribute of this process. Raises OSError where the kernel refuses it."""
    four = (*arguments, 0, 0, 0, 0)[:4]
    if _libc.prctl(option, *(ctypes.c_long(each) if isinstance(each, int) else each for each in four)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def reap() -> None:
    """Take the exit codes of children that have ended, orphans among them."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
