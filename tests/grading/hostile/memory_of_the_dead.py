r"""Takes 300 MB in each of eight processes that look dead: their first threads have ended.

Place: 02_explosion/forecast
Said: it used [\d,]+ MB; at most 512
"""

import ctypes
import os
import threading
import time

EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]


def attack(*_, **__):
    for _ in range(8):
        if not os.fork():
            threading.Thread(target=_take).start()
            ctypes.CDLL(None).syscall(EXIT, 0)
    time.sleep(600)


def _take():
    taken = b"x" * (300 << 20)
    time.sleep(600)
    return taken
