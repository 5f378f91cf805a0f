"""What a lab shows in a notebook: feedback on an answer, and a line while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from grpo_lab.config.schema import Config
from grpo_lab.course.evaluate import all_right
from grpo_lab.course.exercises import Exercise, Finding
from grpo_lab.events import Ended, Event, Stepped
from grpo_lab.runs.first_break import summary
from grpo_lab.runs.notebook_mode import headless
from grpo_lab.ui.console import in_numbers

NOT_YET = "✗ not yet"
_GIVEN = ("prediction", "text")
"""Kinds of which nobody can say yet whether they are right."""
_COLOURS = {True: "#009E73", False: "#D55E00"}
"""Okabe and Ito's green and vermillion; the words say the same."""
_CELL = "text-align:left;vertical-align:top;white-space:normal;overflow-wrap:anywhere"
_INTERVAL = 0.25
"""Seconds between two looks at a run."""


def ipython() -> Any:
    """The IPython shell that this runs in, if it does."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:  # the extra `lab` brings it; a lab's checks work without
        return None
    return get_ipython()


def feedback(exercise: Exercise, findings: Sequence[Finding], note: str = "") -> None:
    """Show what was found about an answer."""
    show(as_text(exercise, findings, note), as_html(exercise, findings, note))


@contextmanager
def looking(exercise: Exercise) -> Iterator[None]:
    """Says, while it takes seconds, that a check is going on; afterwards nothing is left of that."""
    waits = exercise.kind == "configuration" and not headless()
    place = f"grpo-lab-looking-{time.monotonic_ns()}"
    if waits:
        show("Looking at it: this trains a few short runs.", display_id=place)
    try:
        yield
    finally:
        if waits:
            show("", display_id=place, update=True)


def show(text: str, html: str = "", display_id: str | None = None, update: bool = False) -> None:
    """Display in a notebook, print elsewhere."""
    if not ipython():
        print(text)
        return
    from IPython.display import display

    data: Mapping[str, str] = {"text/plain": text, **({"text/html": html} if html else {})}
    where = {"display_id": display_id, "update": update} if display_id else {}
    display(data, raw=True, **where)


def as_text(exercise: Exercise, findings: Sequence[Finding], note: str = "") -> str:
    """The feedback in plain lines."""
    lines = [f"{exercise.title}: {_verdict(exercise, findings)}"]
    for found in findings:
        lines.append(f"{_word(exercise, found)}: {found.what}")
        if not found.right:
            lines += [f"    got       {found.got}", f"    expected  {found.expected}", f"    why       {found.why}"]
    return "\n".join([*lines, *([note] if note else [])])


def as_html(exercise: Exercise, findings: Sequence[Finding], note: str = "") -> str:
    """The same as a table; nothing of the learner's is taken for HTML."""
    columns = ["", "case", "got", "expected", *([] if all_right(findings) else ["why"])]
    head = "".join(f'<th scope="col" style="{_CELL}">{name}</th>' for name in columns)
    rows = []
    for found in findings:
        word = f'<strong style="white-space:nowrap">{_word(exercise, found)}</strong>'
        texts = (word, escape(found.what), _code(found.got), _code(found.expected), escape(found.why))
        cells = [f'<td style="{_CELL}">{text}</td>' for text in texts[: len(columns)]]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="grpo-lab-feedback" role="status" style="border-left:4px solid {_COLOURS[all_right(findings)]};'
        f'padding-left:0.7em"><p><strong>{escape(exercise.title)}: {_verdict(exercise, findings)}</strong></p>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"{f'<p>{escape(note)}</p>' if note else ''}</div>"
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>" if text else ""


def _word(exercise: Exercise, found: Finding) -> str:
    return NOT_YET if not found.right else "✓ given" if exercise.kind in _GIVEN else "✓ right"


def _verdict(exercise: Exercise, findings: Sequence[Finding]) -> str:
    if all_right(findings):
        return "given" if exercise.kind in _GIVEN else "right"
    return f"not yet, {sum(found.right for found in findings)} of {len(findings)} right"


class RunLine:
    """A session's view: one line that follows the run, and says in the end how it went."""

    def __init__(self, config: Config) -> None:
        self._name, self._steps = config.run.name, config.run.num_steps
        self._display = f"grpo-lab-run-{time.monotonic_ns()}"
        self._events: list[Event] = []
        self._shown_at, self._shown = 0.0, False

    def show(self, event: Event) -> None:
        self._events.append(event)
        if isinstance(event, Ended):
            self._say(f"{self._name}: {summary(self._events)}")
        elif isinstance(event, Stepped) and not headless() and time.monotonic() - self._shown_at > _INTERVAL:
            self._shown_at = time.monotonic()
            self._say(f"{self._name}: step {event.step + 1} of {self._steps}, {in_numbers(event)}")

    def _say(self, text: str) -> None:
        show(text, display_id=self._display, update=self._shown)
        self._shown = True
