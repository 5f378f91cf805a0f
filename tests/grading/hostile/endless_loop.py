"""Never ends.

Place: 02_explosion/gradient
Said: no answer within 4 s
"""


def attack(*_, **__):
    while True:
        pass
