"""Stops the program that runs it, and leaves.

Said: no answer within 6 s
"""

import os
import signal


def attack(*_, **__):
    os.kill(os.getppid(), signal.SIGSTOP)
