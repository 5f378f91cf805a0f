"""The progress page: every exercise of every lab, passed, attempted or open."""

import itertools
import operator
from collections.abc import Iterable

from grpo_lab.course.progress import MARKS, Row
from grpo_lab.messages import text
from grpo_lab.ui import html


def as_text(rows: Iterable[Row]) -> str:
    """A heading a lab, and a line an exercise."""
    lines = []
    for heading, of_lab in _labs(rows):
        lines.append(heading)
        lines += [f"  {MARKS[row.status]} {text(f'progress.{row.status}'):9}  {row.exercise.title}" for row in of_lab]
    return "\n".join(lines)


def as_html(rows: Iterable[Row]) -> str:
    """A folded list a lab."""
    found = [(lab, any(row.status != "open" for row in each), map(_in_words, each)) for lab, each in _labs(rows)]
    return html.fill("progress", found)


def _in_words(row: Row) -> str:
    said = text("progress.row", status=text(f"progress.{row.status}"), title=row.exercise.title)
    return f"{MARKS[row.status]} {said}"


def _labs(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    found = []
    for page, group in itertools.groupby(rows, operator.attrgetter("lab")):
        of_lab = list(group)
        passed = sum(row.status == "passed" for row in of_lab)
        number = page.name.partition("_")[0].lstrip("0") or "0"
        heading = text("progress.lab", title=page.title, passed=passed, all=len(of_lab))
        found.append((f"{number}. {heading}", of_lab))
    return found
