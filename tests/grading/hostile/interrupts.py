"""Raises what nobody catches.

Said: it ended before it had answered
"""


def attack(*_, **__):
    raise KeyboardInterrupt
