r"""Calls itself until the stack is at its end.

Said: it ended before it had answered \(SIGSEGV\)|RecursionError
"""

import sys

sys.setrecursionlimit(1 << 30)
DEPTH = 100_000


def attack(*_, **__):
    nested = []
    for _ in range(DEPTH):
        nested = [nested]
    return len(repr(nested))
