"""Stops the program that runs it, and leaves.

Place: 01_grpo_by_hand/slope
Said: no answer within 4 s
"""

import os
import signal


def attack(*_, **__):
    os.kill(os.getppid(), signal.SIGSTOP)
