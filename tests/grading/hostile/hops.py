"""Leaves a process behind that forks and ends faster than anybody can look for it."""

import os
import signal

if not os.fork():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.setsid()
    while True:
        try:
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
        except OSError:
            continue  # there are too many that nobody has buried yet
