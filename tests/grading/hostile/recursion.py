r"""Calls itself until the stack is at its end.

Place: 05_kl/pulls
Said: it ended before it had answered \(SIGSEGV\)|RecursionError
"""

import sys

sys.setrecursionlimit(1 << 30)


def attack(*_, **__):
    return max([0], key=lambda _: attack())
