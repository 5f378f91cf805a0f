"""Starts two hundred threads.

Place: 01_grpo_by_hand/by_hand
Said: can't start new thread
"""

import threading
import time


def attack(*_, **__):
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
