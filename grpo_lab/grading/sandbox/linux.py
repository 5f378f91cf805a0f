"""What Python does not bind of Linux: process control, and system calls by their numbers."""

from __future__ import annotations

import ctypes
import os

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: object) -> None:
    """Change what is true of this process. Raises OSError where it fails."""
    four = (*arguments, 0, 0, 0, 0)[:4]
    _checked(f"prctl {option}", _libc.prctl(option, *_whole(four)))


def call(what: str, number: int, *arguments: object) -> int:
    """A system call. Raises OSError where it fails, saying `what` did."""
    return _checked(what, _libc.syscall(ctypes.c_long(number), *_whole(arguments)))


def _whole(arguments: tuple[object, ...]) -> list[object]:
    return [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]


def _checked(what: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
