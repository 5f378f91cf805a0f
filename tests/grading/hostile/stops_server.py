"""Stops the program that runs it, and leaves.

Said: no answer within 4 s
"""

import os
import signal


def attack(*_, **__):
    os.kill(os.getppid(), signal.SIGSTOP)
