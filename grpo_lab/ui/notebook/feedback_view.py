"""Output of a lab in a notebook: feedback on an answer, and a line that follows a run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from html import escape
from typing import Any

from grpo_lab.config.schema import Config, planned_steps
from grpo_lab.course import translation, trials
from grpo_lab.course.editions import prose
from grpo_lab.course.evaluate import all_right, folded
from grpo_lab.course.exercises import Exercise, Finding
from grpo_lab.errors import NotYet, Unanswered
from grpo_lab.events import Ended, Event, Started, Stepped
from grpo_lab.messages import language, text
from grpo_lab.paths import is_installed, labs_directory
from grpo_lab.runs.summary import summary
from grpo_lab.ui.console import in_numbers
from grpo_lab.ui.notebook.predictions import Verdict
from grpo_lab.ui.notebook_mode import headless, without_answers
from grpo_lab.ui.widgets.html import marked

_GIVEN = ("prediction", "text")
"""Kinds of answers that are neither right nor wrong yet."""
_COLOURS = {True: "#009E73", False: "#D55E00"}
"""Okabe and Ito's green and vermillion; the words repeat the colour's meaning."""
_OUTCOME = "#0072B2"
"""Their blue: a prediction that came true is worth no more than another."""
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


def feedback(exercise: Exercise, findings: Sequence[Finding], note: str = "", cell: str = "") -> None:
    """Show the findings about an answer; `cell` is the id of its cell, which finds the model answer."""
    show(as_text(exercise, findings, note), as_html(exercise, findings, note, model_answer(exercise, cell)))


def model_answer(exercise: Exercise, cell: str) -> str:
    """The exercise's cell with its solution, or an empty text where it is hidden, or the package is installed.

    An instructor who hands out notebooks and a wheel may not want to show it.
    """
    name, labs = cell.removesuffix(f"-{exercise.name}"), labs_directory()
    known = (labs / name).is_dir() and not is_installed(labs)
    if headless() or without_answers() or exercise.kind == "prediction" or not known:
        return ""
    return prose.solution(labs / name, exercise.name, language())


@contextmanager
def checking() -> Iterator[None]:
    """Show a line that follows the runs of a check, and empty it afterwards; none for a check that trains nothing.

    Errors about an unfinished answer are raised again in the language of the panel.
    """
    line = CheckLine()
    try:
        with nullcontext() if headless() else trials.watched(line):
            yield
    except (NotYet, Unanswered) as error:
        raise type(error)(translation.said(str(error), language())) from None
    finally:
        line.clear()


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
    lines = [said("heading", title=exercise.title, verdict=_verdict(exercise, findings))]
    for found in _told(findings):
        lines.append(said("title", title=_word(exercise, found), verdict=found.what))
        if not found.right:
            rows = {"got": found.got, "expected": found.expected, "why": found.why}
            lines += [f"    {said(name):9} {text}" for name, text in rows.items()]
    return "\n".join([*lines, *([note] if note else [])])


def as_html(exercise: Exercise, findings: Sequence[Finding], note: str = "", answer: str = "") -> str:
    """The feedback as a table, and a model answer folded below it; the learner's text is escaped."""
    columns = ["", said("case"), said("got"), said("expected"), *([] if all_right(findings) else [said("why")])]
    # The cells hold long code, which would squeeze the words of the case.
    styles = [_CELL, f"{_CELL};min-width:7em", *(_CELL for _ in columns[2:])]
    head = "".join(f'<th scope="col" style="{style}">{name}</th>' for style, name in zip(styles, columns, strict=True))
    rows = []
    for found in _told(findings):
        word = f'<strong style="white-space:nowrap">{_word(exercise, found)}</strong>'
        texts = (word, escape(found.what), _code(found.got), _code(found.expected), marked(found.why))
        cells = [f'<td style="{_CELL}">{text}</td>' for text in texts[: len(columns)]]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="grpo-lab-feedback" role="status" style="border-left:4px solid {_COLOURS[all_right(findings)]};'
        f'padding-left:0.7em;overflow-x:auto">'
        f"<p><strong>{escape(said('heading', title=exercise.title, verdict=_verdict(exercise, findings)))}</strong></p>"
        f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        f"{f'<p>{escape(note)}</p>' if note else ''}{_folded(answer) if answer else ''}</div>"
    )


def _told(findings: Sequence[Finding]) -> list[Finding]:
    """The findings as they are shown: folded, and in the language of the panel."""
    return [translation.in_language(found, language()) for found in folded(findings)]


def _folded(answer: str) -> str:
    """A model answer that opens on a click, also in a saved notebook."""
    return f"<details><summary>{said('model_answer')}</summary><pre>{escape(answer)}</pre></details>"


def verdict(found: Verdict) -> None:
    """Show a prediction beside the outcome."""
    head, *rows = str(found).split("\n")
    lines = "".join(f"<br>{escape(row.strip())}" for row in rows)
    show(
        str(found),
        f'<div class="grpo-lab-verdict" role="status" style="border-left:4px solid {_OUTCOME};padding-left:0.7em">'
        f"<strong>{escape(head)}</strong>{lines}</div>",
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>" if text else ""


def _word(exercise: Exercise, found: Finding) -> str:
    return f"✗ {said('not_yet')}" if not found.right else f"✓ {_positive(exercise)}"


def _verdict(exercise: Exercise, findings: Sequence[Finding]) -> str:
    if all_right(findings):
        return _positive(exercise)
    return said("so_many", right=sum(found.right for found in findings), all=len(findings))


def _positive(exercise: Exercise) -> str:
    return said("given") if exercise.kind in _GIVEN else said("right")


def said(key: str, **values: Any) -> str:
    """A text of the feedback in the language of the panel."""
    return text(f"feedback.{key}", **values)


class _Line:
    """One line of output that changes in place."""

    def __init__(self) -> None:
        self._display = f"grpo-lab-line-{time.monotonic_ns()}"
        self._shown_at, self._shown = 0.0, False

    def _due(self) -> bool:
        """Whether the last update is long enough ago."""
        return time.monotonic() - self._shown_at > _INTERVAL

    def _update(self, text: str) -> None:
        show(text, display_id=self._display, update=self._shown)
        self._shown_at, self._shown = time.monotonic(), True


class RunLine(_Line):
    """A session's view: one line that follows the run and ends with its summary."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._name, self._steps = config.run.name, sum(planned_steps(config.to_dict()).values())
        self._events: list[Event] = []

    def show(self, event: Event) -> None:
        """Update the line for this event."""
        self._events.append(event)
        if isinstance(event, Ended):
            self._update(f"{self._name}: {summary(self._events)}")
        elif isinstance(event, Stepped) and not headless() and self._due():
            step = said("step", step=event.step + 1, steps=self._steps)
            self._update(f"{self._name}: {step}, {in_numbers(event)}")


class CheckLine(_Line):
    """The view of all runs of a check, whose number nobody knows before its end."""

    def __init__(self) -> None:
        super().__init__()
        self._runs, self._name, self._steps = 0, "", 0

    def show(self, event: Event) -> None:
        """Update the line for this event."""
        if isinstance(event, Started):
            run = event.config["run"]
            self._runs, self._name, self._steps = self._runs + 1, run["name"], sum(planned_steps(event.config).values())
        elif isinstance(event, Stepped) and self._due():
            step = said("step", step=event.step + 1, steps=self._steps)
            self._update(said("checking", run=self._runs, name=self._name, step=step))

    def clear(self) -> None:
        """Empty the line, if there is one."""
        if self._shown:
            self._update("")
