r"""Ends well without another word.

Place: 06_silent_failures/completion_mask
Said: it ended before it had answered \(exit code 0\)
"""

import os


def attack(*_, **__):
    os._exit(0)
