"""Kills the program that runs it.

Place: 01_grpo_by_hand/advantages
Said: the sandbox ended before it had answered
"""

import os
import signal
import time


def attack(*_, **__):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
