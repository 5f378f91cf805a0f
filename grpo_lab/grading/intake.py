"""Students, ids and lateness in the names that learning platforms give to submissions; the rules are in data."""

import re
from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from grpo_lab.course import registry
from grpo_lab.errors import DataError
from grpo_lab.paths import data_tables

MOODLE, CANVAS, CLASSROOM = SYSTEMS = ("moodle", "canvas", "classroom")


class Sender(NamedTuple):
    """The facts that the name of a submission tells."""

    student: str
    system: str = ""
    """The learning platform whose naming it is, one of `SYSTEMS`; empty for other names."""
    identity: str = ""
    """The platform's number for the student; Moodle gives another one in each assignment."""
    late: bool = False


def sender(folder: str, name: str) -> Sender | None:
    """The sender of a file or folder `name` in a download's `folder`; None for a name of no platform.

    >>> sender("kl", "lovelaceada_LATE_12345_67890_05_kl-1.ipynb")
    Sender(student='lovelaceada', system='canvas', identity='12345', late=True)
    >>> sender("kl", "ada.ipynb") is None
    True

    Raises DataError for a rule in data/intake.toml that is not valid.
    """
    for system, pattern in _patterns():
        if found := pattern.fullmatch(f"{folder}/{name}"):
            given = found.groupdict()
            return Sender(given["student"], system, given.get("id") or "", given.get("late") is not None)
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
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(_pattern(rule) for rule in data_tables("intake")["names"])


def _pattern(rule: dict[str, str]) -> tuple[str, re.Pattern[str]]:
    """The platform and the pattern of a rule. Raises DataError for one that is not valid."""
    try:
        pattern = _compiled(rule["pattern"])
    except (KeyError, re.error) as error:
        raise DataError(f"data/intake.toml: the rule {rule!r} is not valid: {error}; correct its pattern") from error
    if rule.get("system") not in SYSTEMS or "student" not in pattern.groupindex:
        needs = f"a system ({', '.join(SYSTEMS)}) and a group `student`"
        raise DataError(f"data/intake.toml: the rule {rule!r} needs {needs}")
    return rule["system"], pattern


def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, with the names of the labs in the place of `{labs}`."""
    labs = "|".join(lab.replace("_", "[-_]") for lab in registry.lab_names())
    return re.compile(pattern.replace("{labs}", labs), re.DOTALL)
