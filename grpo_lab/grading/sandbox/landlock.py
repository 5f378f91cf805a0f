"""Linux's Landlock: from here on this process and all it starts can open no file but those named. Needs no privilege.

Python has no binding; the numbers are those of linux/landlock.h and of the system call table, alike on every machine.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from grpo_lab.grading.sandbox import linux

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
VERSION = 1
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights a version knows: to open, list, execute, make, remove, link, truncate; from version 5 on 16."""


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def restrict(readable: Iterable[Path], listable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Allow reading below `readable`, listing the folders `listable` without reading in them, and `writable` files.

    Raises OSError where the kernel has no Landlock. The caller must have given up new privileges.
    """
    version = _call(CREATE_RULESET, None, 0, VERSION)
    handled = ctypes.c_uint64((1 << RIGHTS.get(version, 16)) - 1)
    ruleset = _call(CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    try:
        for path in readable:
            folder = READ_DIR if path.is_dir() else 0
            _allow(ruleset, path, READ_FILE | EXECUTE | folder)
        for path in listable:
            _allow(ruleset, path, READ_DIR)
        for path in writable:
            _allow(ruleset, path, READ_FILE | WRITE_FILE)
        _call(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # what cannot be reached needs no permission
    try:
        _call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(_PathBeneath(rights, parent)), 0)
    finally:
        os.close(parent)


def _call(number: int, *arguments: object) -> int:
    return linux.call("Landlock", number, *arguments)
