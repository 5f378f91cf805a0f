"""Ends as programs do that went well.

Place: 06_silent_failures/one_update
Said: SystemExit: 0
"""

import sys


def attack(*_, **__):
    sys.exit(0)
