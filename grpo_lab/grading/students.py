"""A student of a class list."""

from typing import NamedTuple


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
