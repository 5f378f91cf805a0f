"""The progress page: every exercise of every lab, passed, attempted or open."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from grpo_lab.course.exercises import LabPage
from grpo_lab.course.progress import MARKS, Row
from grpo_lab.messages import text


def as_text(rows: Iterable[Row]) -> str:
    """A heading a lab, and a line an exercise."""
    lines = []
    for heading, of_lab in _labs(rows):
        lines += [heading, *(f"  {MARKS[row.status]} {_said(row):9}  {row.exercise.title}" for row in of_lab)]
    return "\n".join(lines)


def as_html(rows: Iterable[Row]) -> str:
    """A folded list a lab; the labs that were begun are open."""
    return f'<div class="grpo-lab-progress">{"".join(map(_folded, *zip(*_labs(rows), strict=True)))}</div>'


def _folded(heading: str, rows: Sequence[Row]) -> str:
    items = "".join(f"<li>{MARKS[row.status]} {escape(_status(row))}</li>" for row in rows)
    begun = " open" if any(row.status != "open" for row in rows) else ""
    summary = f"<summary><strong>{escape(heading)}</strong></summary>"
    return f'<details{begun}>{summary}<ul style="list-style:none">{items}</ul></details>'


def _status(row: Row) -> str:
    return text("progress.row", status=_said(row), title=row.exercise.title)


def _said(row: Row) -> str:
    return text(f"progress.{row.status}")


def _labs(rows: Iterable[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    """The heading of each lab, and its rows."""

    def lab(row: Row) -> LabPage:
        return row.lab

    for page, group in itertools.groupby(rows, lab):
        of_lab = list(group)
        passed = sum(row.status == "passed" for row in of_lab)
        yield (
            f"{page.name.partition('_')[0].lstrip('0') or '0'}. "
            + text("progress.lab", title=page.title, passed=passed, all=len(of_lab)),
            of_lab,
        )
