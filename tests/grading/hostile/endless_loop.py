"""Never ends.

Said: no answer within 2 s
"""


def attack(*_, **__):
    while True:
        pass
