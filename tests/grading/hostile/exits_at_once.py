r"""Ends well without another word.

Said: it ended before it had answered \(exit code 0\)
"""

import os


def attack(*_, **__):
    os._exit(0)
