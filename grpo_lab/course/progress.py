"""A learner's progress over all labs: a line for each check, in a file beside the answers."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_lab.course import pages
from grpo_lab.course.evaluate import all_right
from grpo_lab.course.exercises import Exercise, Finding, LabPage
from grpo_lab.course.registry import lab_names, lab_page
from grpo_lab.errors import DataError
from grpo_lab.messages import ENGLISH

FILE = Path("answers") / "progress.jsonl"
MARKS = {"passed": "✓", "attempted": "◐", "open": "○"}


class Row(NamedTuple):
    """One exercise and its status, a key of MARKS."""

    lab: LabPage
    exercise: Exercise
    status: str


def record(folder: Path, lab: str, exercise: str, findings: Sequence[Finding]) -> None:
    """Append a line about a check."""
    right = sum(finding.right for finding in findings)
    line = {"lab": lab, "exercise": exercise, "passed": all_right(findings), "right": right, "of": len(findings)}
    file = folder / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({**line, "time": time.strftime("%Y-%m-%dT%H:%M:%S")}) + "\n")


def rows(folder: Path, language: str = ENGLISH) -> list[Row]:
    """Every exercise of every lab, in the order of the course, with its title in a language.

    Raises DataError for a line that is no record; a last line that was cut off is left out.
    """
    file, passed = folder / FILE, dict[tuple[str, str], bool]()
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            found = json.loads(line)
            key = found["lab"], found["exercise"]
            passed[key] = bool(found["passed"]) or passed.get(key, False)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}:{number}: no record of a check; delete that line") from error
    words = {True: "passed", False: "attempted", None: "open"}
    labs = [pages.in_language(lab_page(name), language) for name in lab_names()]
    return [
        Row(page, each, words[passed.get((page.name, each.name))]) for page in labs for each in page.exercises.values()
    ]
