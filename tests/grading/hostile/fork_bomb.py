r"""Starts two hundred processes.

Place: 05_kl/straight
Said: BlockingIOError|it used [\d,]+ MB
"""

import os
import time


def attack(*_, **__):
    for _ in range(200):
        if not os.fork():
            time.sleep(600)
            os._exit(0)
