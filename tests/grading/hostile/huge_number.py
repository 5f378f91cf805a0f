"""Gives a whole number that takes long to write down.

Place: 02_explosion/reported
Said: a whole number of more than 1,023 bits
"""


def attack(*_, **__):
    return 1 << 10_000_000
