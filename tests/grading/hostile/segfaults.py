r"""Reads memory that is not there.

Place: 05_kl/forecast
Said: it ended before it had answered \(SIGSEGV\)
"""

import ctypes


def attack(*_, **__):
    ctypes.string_at(0)
