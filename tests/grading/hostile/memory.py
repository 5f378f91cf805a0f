"""Takes four gigabytes in every way that one process has.

Said: 'nothing'
"""

import ctypes
import mmap
import os

import torch

MUCH = 4 << 30


def a_file_in_memory():
    os.truncate(os.memfd_create("much"), MUCH)


def memory_of_nobody():
    if ctypes.CDLL(None).shmget(0, ctypes.c_size_t(MUCH), 0o1600) < 0:
        raise MemoryError


def out_of_sight():
    kept = []
    while len(kept) < 40:
        kept.append(mmap.mmap(-1, MUCH // 40))
        kept[-1].write(b"x" * (MUCH // 40))
        kept[-1].resize(mmap.PAGESIZE)  # what is no longer mapped stays, as long as something is


WAYS = {
    "bytes": lambda: bytes(MUCH),
    "a list": lambda: [0.5] * (MUCH // 8),
    "a tensor": lambda: torch.ones(MUCH // 4),
    "a mapping": lambda: mmap.mmap(-1, MUCH),
    "mappings that hide": out_of_sight,
    "a file in memory": a_file_in_memory,
    "memory of nobody": memory_of_nobody,
}


def attack(*_, **__):
    got = []
    for name, take in WAYS.items():
        try:
            take()
            got.append(name)
        except (MemoryError, RuntimeError, OSError):
            continue
    return got or "nothing"
