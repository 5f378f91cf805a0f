"""Never ends.

Said: no answer within 4 s
"""


def attack(*_, **__):
    while True:
        pass
