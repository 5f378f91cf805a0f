"""Raises an exception that no handler catches.

Place: 06_silent_failures/mismatch
Said: it ended before it had answered
"""


def attack(*_, **__):
    raise KeyboardInterrupt
