"""Raises an exception that no handler catches.

Said: it ended before it had answered
"""


def attack(*_, **__):
    raise KeyboardInterrupt
