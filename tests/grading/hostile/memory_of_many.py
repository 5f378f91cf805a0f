r"""Takes 300 MB in each of eight processes, half of it in a mapping.

Place: 02_explosion/culprit
Said: it used [\d,]+ MB; at most 512
"""

import mmap
import os
import time

HALF = 150 << 20


def attack(*_, **__):
    for _ in range(8):
        if not os.fork():
            mapped = mmap.mmap(-1, HALF, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapped.write(b"x" * HALF)
            time.sleep(600)
            os._exit(0)
    time.sleep(600)
