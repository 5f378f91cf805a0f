"""Texts and numbers as all reports show them."""

_SHOWN = frozenset("\n\t\xa0\u3000\u200c\u200d")
"""Harmless characters that Python calls not printable: line breaks, wide spaces, and the joiners of some scripts."""


def printable(text: str) -> str:
    r"""The text in one line, for reports and terminals, with invisible characters escaped.

    >>> printable("Zoë 王\n\x1b[2J")
    'Zoë 王\\n\\x1b[2J'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def visible(text: str) -> str:
    """The text with invisible characters escaped: control characters, changes of direction, lone surrogates.

    >>> print(visible("a\\x00b\\u202ec"))
    a\\x00b\\u202ec
    """
    text = text.replace("\r\n", "\n")
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _SHOWN else printable(each) for each in text)


def number(points: float) -> str:
    """Points, with two decimals at most.

    >>> number(2.0), number(4 / 3)
    ('2', '1.33')
    """
    return f"{points:.2f}".rstrip("0").rstrip(".")
