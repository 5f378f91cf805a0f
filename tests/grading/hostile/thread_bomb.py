"""Starts two hundred threads.

Said: can't start new thread
"""

import threading
import time


def attack(*_, **__):
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
