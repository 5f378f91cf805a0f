"""Ends as programs do that went well.

Said: SystemExit: 0
"""

import sys


def attack(*_, **__):
    sys.exit(0)
