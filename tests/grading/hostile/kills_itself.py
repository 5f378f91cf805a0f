r"""Dies by a signal.

Place: 06_silent_failures/forecast
Said: it ended before it had answered \(SIGKILL\)
"""

import os
import signal


def attack(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
