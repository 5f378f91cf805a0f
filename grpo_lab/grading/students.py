"""A student of a class list, and the names of students and groups as they are compared."""

import re
import unicodedata
from functools import cache
from typing import NamedTuple

_BETWEEN_GROUPS = re.compile("[,;，；、]")


class Student(NamedTuple):
    """One row of the class list; every text but the name may be empty."""

    student: str
    """The name, unique in the class: namesakes have their id in brackets."""
    id: str = ""
    email: str = ""
    login: str = ""
    sis_id: str = ""
    github: str = ""
    section: str = ""
    group: str = ""
    """The group or groups, as the class list writes them."""


def composed(text: str) -> str:
    """The text with each accent in its letter, because systems write the same name differently (Unicode's NFC, NFD)."""
    return unicodedata.normalize("NFC", text)


@cache
def groups_in(cell: str) -> frozenset[str]:
    """The groups that a cell of the class list names, as they are compared: the whole cell, and each part of a list.

    >>> sorted(groups_in("Red, Blue")), groups_in("")
    (['blue', 'red', 'redblue'], frozenset())
    """
    return frozenset(map(plain, (cell, *_BETWEEN_GROUPS.split(cell)))) - {""}


def plain(text: str) -> str:
    """The letters and digits of a text, without accents and capitals.

    >>> plain("Zoë O'Neil-王")
    'zoeoneil王'
    """
    return "".join(one for one in unicodedata.normalize("NFKD", text).casefold() if one.isalnum())
