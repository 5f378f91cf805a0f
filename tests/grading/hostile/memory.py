"""Takes four gigabytes in every way that one process has.

Place: 05_kl/pulls
Said: 'nothing'
"""

import ctypes
import fcntl
import mmap
import os

import torch

LIBC = ctypes.CDLL(None, use_errno=True)
MUCH = 4 << 30
HUGE = 2 << 20


def a_file_in_memory():
    os.truncate(os.memfd_create("much"), MUCH)


def memory_of_nobody():
    if LIBC.shmget(0, ctypes.c_size_t(MUCH), 0o1600) < 0:
        raise MemoryError


def out_of_sight():
    kept = []
    while len(kept) < 40:
        kept.append(mmap.mmap(-1, MUCH // 40))
        kept[-1].write(b"x" * (MUCH // 40))
        kept[-1].resize(mmap.PAGESIZE)  # unmapped pages stay allocated while one page is mapped


def pages_in_pipes():
    """A pipe that holds one small page of each huge page: the kernel keeps the huge page, and no process has it."""
    parts, part = range(0, 256 * HUGE, HUGE), 256 * HUGE
    for pipe in [os.pipe() for _ in range(MUCH // part)]:
        fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, len(parts) * mmap.PAGESIZE)
        with mmap.mmap(-1, part, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapped:
            mapped.madvise(mmap.MADV_HUGEPAGE)
            start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            for offset in parts:
                mapped[offset] = 1
                page = (ctypes.c_size_t * 2)(start + offset, mmap.PAGESIZE)
                if LIBC.vmsplice(pipe[1], page, ctypes.c_size_t(1), 0) < 0:
                    raise MemoryError


def rules_of_landlock():
    """A descriptor that can hold a rule for each of 65,536 ports, megabytes of them in the kernel."""
    if LIBC.syscall(444, (ctypes.c_uint64 * 2)(0, 1), ctypes.c_size_t(16), 0) < 0:
        raise MemoryError


WAYS = {
    "bytes": lambda: bytes(MUCH),
    "a list": lambda: [0.5] * (MUCH // 8),
    "a tensor": lambda: torch.ones(MUCH // 4),
    "a mapping": lambda: mmap.mmap(-1, MUCH),
    "mappings that hide": out_of_sight,
    "a file in memory": a_file_in_memory,
    "memory of nobody": memory_of_nobody,
    "pages in pipes": pages_in_pipes,
    "rules of Landlock": rules_of_landlock,
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
