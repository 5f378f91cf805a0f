"""Output of a lab in a notebook: feedback on an answer, and a line that follows a run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from grpo_lab.config.schema import Config
from grpo_lab.course.evaluate import all_right
from grpo_lab.course.exercises import Exercise, Finding
from grpo_lab.events import Ended, Event, Stepped
from grpo_lab.runs.notebook_mode import headless
from grpo_lab.runs.summary import summary
from grpo_lab.ui.console import in_numbers

NOT_YET = "✗ not yet"
_GIVEN = ("prediction", "text")
"""Kinds of answers that are neither right nor wrong yet."""
_COLOURS = {True: "#009E73", False: "#D55E00"}
"""Okabe and Ito's green and vermillion; the words repeat the colour's meaning."""
_TABLE = "table-layout:auto;margin:0"
"""JupyterLab's columns are all of one width; here each is at least as wide as its longest word."""
_CELL = "text-align:left;vertical-align:top;white-space:normal;word-break:normal;overflow-wrap:break-word"
_INTERVAL = 0.25
"""Seconds between two updates of a run's line."""


def ipython() -> Any:
    """The IPython shell of this process, or None."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:  # the extra `lab` installs it; the checks of a lab work without it
        return None
    return get_ipython()


def feedback(exercise: Exercise, findings: Sequence[Finding], note: str = "") -> None:
    """Show the findings about an answer."""
    show(as_text(exercise, findings, note), as_html(exercise, findings, note))


@contextmanager
def checking(exercise: Exercise) -> Iterator[None]:
    """Show a line during a check that takes seconds, and remove it afterwards."""
    waits = exercise.kind == "configuration" and not headless()
    place = f"grpo-lab-checking-{time.monotonic_ns()}"
    if waits:
        show("Checking: this trains a few short runs.", display_id=place)
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
    """The feedback as a table; the learner's text is escaped."""
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
        f'padding-left:0.7em;overflow-x:auto">'
        f"<p><strong>{escape(exercise.title)}: {_verdict(exercise, findings)}</strong></p>"
        f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
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
    """A session's view: one line that follows the run and ends with its summary."""

    def __init__(self, config: Config) -> None:
        self._name, self._steps = config.run.name, config.run.num_steps
        self._display = f"grpo-lab-run-{time.monotonic_ns()}"
        self._events: list[Event] = []
        self._shown_at, self._shown = 0.0, False

    def show(self, event: Event) -> None:
        """Update the line for this event."""
        self._events.append(event)
        if isinstance(event, Ended):
            self._update(f"{self._name}: {summary(self._events)}")
        elif isinstance(event, Stepped) and not headless() and time.monotonic() - self._shown_at > _INTERVAL:
            self._shown_at = time.monotonic()
            self._update(f"{self._name}: step {event.step + 1} of {self._steps}, {in_numbers(event)}")

    def _update(self, text: str) -> None:
        show(text, display_id=self._display, update=self._shown)
        self._shown = True
