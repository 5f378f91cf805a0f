"""Students, ids and lateness in the names that learning platforms give to submissions; the rules are in data."""

import re
from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

from grpo_lab.course import registry
from grpo_lab.errors import DataError
from grpo_lab.paths import data_tables


class Sender(NamedTuple):
    """The facts that the name of a submission tells."""

    student: str
    identity: str = ""
    """The student's number; empty where the name has none."""
    late: bool = False
    per_assignment: bool = False
    """Whether a student's number is another one in each assignment."""


def sender(folder: str, name: str) -> Sender | None:
    """The sender of a file or folder `name` in a download's `folder`; None for a name of no platform.

    >>> sender("kl", "lovelaceada_LATE_12345_67890_05_kl-1.ipynb")
    Sender(student='lovelaceada', identity='12345', late=True, per_assignment=False)
    >>> sender("kl", "ada.ipynb") is None
    True

    Raises DataError for a rule in data/intake.toml that is not valid.
    """
    for pattern, per_assignment in _patterns():
        if found := pattern.fullmatch(f"{folder}/{name}"):
            given = found.groupdict()
            return Sender(given["student"], given.get("id") or "", given.get("late") is not None, per_assignment)
    return None


def of_many(folder: str) -> bool:
    """Whether a folder of this name holds the submissions of many students.

    >>> of_many("05_kl"), of_many("lab-05-submissions"), of_many("ada")
    (True, True, False)
    """
    return bool(_of_many().fullmatch(folder))


def is_export(names: Collection[str]) -> bool:
    """Whether a zip with these files was made by otter-grader's `export`.

    >>> is_export(["05_kl.ipynb", "__zip_filename__", ".OTTER_LOG"]), is_export(["05_kl.ipynb"])
    (True, False)
    """
    return data_tables("intake")["otter"]["marker"] in names


def without_time(stem: str) -> str:
    """The name of a file without the time that otter-grader appends to the name of its zip.

    >>> without_time("05_kl_2026_11_24T01_02_03_123456"), without_time("05_kl_2026")
    ('05_kl', '05_kl_2026')
    """
    return re.sub(rf"(?:{data_tables('intake')['otter']['time']})\Z", "", stem)


@cache
def _of_many() -> re.Pattern[str]:
    return _compiled(data_tables("intake")["folders"]["of_many"])


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], bool], ...]:
    return tuple(_pattern(rule) for rule in data_tables("intake")["names"])


def _pattern(rule: dict[str, Any]) -> tuple[re.Pattern[str], bool]:
    """The pattern of a rule, and whether its numbers are of one assignment. Raises DataError for a wrong rule."""
    try:
        pattern = _compiled(rule["pattern"])
    except (KeyError, re.error) as error:
        raise DataError(f"data/intake.toml: the rule {rule!r} is not valid: {error}; correct its pattern") from error
    if "student" not in pattern.groupindex:
        raise DataError(f"data/intake.toml: the rule {rule!r} needs a group `student`")
    return pattern, rule.get("per_assignment", False)


def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, with the names of the labs in the place of `{labs}`."""
    labs = "|".join(lab.replace("_", "[-_]") for lab in registry.lab_names())
    return re.compile(pattern.replace("{labs}", labs), re.DOTALL)
