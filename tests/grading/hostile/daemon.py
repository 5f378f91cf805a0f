"""Leaves a daemon behind: forked twice, in a session of its own, deaf to every signal that can be ignored.

Place: 01_grpo_by_hand/advantages
"""

import os
import signal
import time

if not os.fork():
    os.setsid()
    if not os.fork():
        for number in range(1, 32):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_IGN)
        os.closerange(0, 256)
        while True:
            time.sleep(60)
    os._exit(0)
