"""Never ends.

Said: no answer within 6 s
"""


def attack(*_, **__):
    while True:
        pass
