"""Leaves a process whose first thread has ended, so that it looks dead, and whose other thread has not.

Place: 01_grpo_by_hand/flipped
"""

import ctypes
import os
import threading
import time

EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
SET_PDEATHSIG, SET_NAME = 1, 15

if not os.fork():
    ctypes.CDLL(None).prctl(SET_PDEATHSIG, 0)
    ctypes.CDLL(None).prctl(SET_NAME, b"half-dead")
    threading.Thread(target=time.sleep, args=(600,)).start()
    ctypes.CDLL(None).syscall(EXIT, 0)
