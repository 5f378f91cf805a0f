"""Gives a number that says that it is equal to every other one.

Place: 02_explosion/culprit
Said: the number differs|[Tt]his is a number;
"""


class Right(float):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__
    __hash__ = float.__hash__


def attack(*_, **__):
    return Right(12345.5)
