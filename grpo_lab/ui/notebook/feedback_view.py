"""Output of a lab in a notebook: feedback on an answer, and a line that follows a run."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from grpo_lab.analysis.run_state import Fold, Series, status_words, tone
from grpo_lab.config.schema import Config
from grpo_lab.course import translation, trials
from grpo_lab.course.editions import prose
from grpo_lab.course.evaluate import all_right, folded
from grpo_lab.course.exercises import Exercise, Finding
from grpo_lab.errors import NotYet, Sentence, Unanswered
from grpo_lab.events import Ended, Event, Started, Stepped
from grpo_lab.messages import language, text
from grpo_lab.paths import is_installed, labs_directory
from grpo_lab.runs.outcome import outcome
from grpo_lab.runs.summary import summary
from grpo_lab.ui import html
from grpo_lab.ui.live_terminal import sparkline
from grpo_lab.ui.notebook_mode import headless, ipython, without_answers

_GIVEN = ("prediction", "text")
"""Kinds of answers that are neither right nor wrong yet."""
_COLOURS = {True: "#009E73", False: "#D55E00"}
"""Okabe and Ito's green and vermillion; the words repeat the colour's meaning."""
_TONES = {"good": _COLOURS[True], "bad": _COLOURS[False], "calm": "#0072B2", "odd": "#E69F00"}
_INTERVAL = 0.25
"""Seconds between two updates of a run's line."""


def feedback(exercise: Exercise, findings: Sequence[Finding], note: str = "", cell: str = "") -> None:
    """Show the findings about an answer; `cell` is the id of its cell, which finds the model answer."""
    show(as_text(exercise, findings, note), whole(exercise, findings, note, cell))


def whole(exercise: Exercise, findings: Sequence[Finding], note: str, cell: str) -> str:
    """The feedback as HTML; of a prediction, the sentence about it."""
    if exercise.kind == "prediction":
        return html.fill("paragraph", note)
    return as_html(exercise, findings, note, model_answer(exercise, cell))


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
        told = str(error)  # a plain text is of the answer's own code
        raise type(error)(translation.said(told, language()) if isinstance(told, Sentence) else told) from None
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
    """The feedback in plain lines: one of a right answer, otherwise the wrong rows and the number of right ones."""
    lines = [said("heading", title=exercise.title, verdict=_verdict(exercise, findings))]
    wrong, right = _told(findings)
    for found in wrong:
        lines.append(said("title", title=_word(exercise, found), verdict=found.what))
        rows = {"got": found.got, "expected": found.expected, "why": found.why}
        lines += [f"    {said(name):9} {text}" for name, text in rows.items()]
    rest = [said("rest", count=len(right))] if wrong and right else []
    return "\n".join([*lines, *rest, *([note] if note else [])])


def as_html(exercise: Exercise, findings: Sequence[Finding], note: str = "", answer: str = "") -> str:
    """The feedback with its right rows and a model answer folded, which open on a click, also in a saved notebook."""
    columns = ["", *map(said, ("case", "got", "expected", "why"))]
    heading = said("heading", title=exercise.title, verdict=_verdict(exercise, findings))
    wrong, right = ([(_word(exercise, found), found) for found in rows] for rows in _told(findings))
    rest = said("rest", count=len(right))
    return html.fill("feedback", _COLOURS[all_right(findings)], heading, columns, wrong, right, rest, note, answer)


def _told(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The wrong findings and the right ones as they are shown: folded, and in the language of the panel."""
    told = [translation.in_language(found, language()) for found in folded(findings)]
    return [found for found in told if not found.right], [found for found in told if found.right]


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


class CheckLine:
    """The view of all runs of a check, whose number nobody knows before its end: one line that changes in place."""

    def __init__(self) -> None:
        self._run, self._runs = Fold(), 0
        self._display = f"grpo-lab-line-{time.monotonic_ns()}"
        self._shown_at, self._shown = 0.0, False

    def show(self, event: Event) -> None:
        """Update the line for this event."""
        if isinstance(event, Started):
            self._run, self._runs = Fold(), self._runs + 1
        self._run.add(event)
        if isinstance(event, Stepped) and not headless() and time.monotonic() - self._shown_at > _INTERVAL:
            self._update(self._words(said("step", step=event.step + 1, steps=self._run.num_steps)))

    def clear(self) -> None:
        """Empty the line, if there is one."""
        if self._shown:
            self._update("")

    def _words(self, step: str) -> str:
        return said("checking", run=self._runs, name=self._run.name, step=step)

    def _update(self, text: str, card: str = "") -> None:
        line = card or html.fill("paragraph", text)  # JupyterLab breaks plain text inside words
        show(text, html=line, display_id=self._display, update=self._shown)
        self._shown_at, self._shown = time.monotonic(), True


def card(run: Fold, told: str) -> str:
    """A finished run in one line, with a sparkline of its reward, which opens to the summary."""
    screen, found = run.screen(), outcome(run.events)
    held_out = not (found.by_training or math.isnan(found.gained))
    kind = "run_held_out" if held_out else "run_reward" if found.window > 1 else ""
    numbers = {name: f"{getattr(found, name):.2f}" for name in ("start", "end", "before", "after")}
    rewards = [said(kind, window=found.window, **numbers)] if kind and not math.isnan(found.first) else []
    more = [*rewards, said("run_step" if screen.completed == 1 else "run_steps", count=screen.completed)]
    curve = sparkline(screen.series.get("reward", Series()).values, 24)
    return html.fill("run", _TONES[tone(screen.status)], screen.name, status_words(screen.status), curve, more, told)


class RunLine(CheckLine):
    """A session's view: one line that follows the run and ends with its summary."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._run.name = config.run.name  # of a run that fails before it begins

    def show(self, event: Event) -> None:
        """Update the line for this event."""
        super().show(event)
        if isinstance(event, Ended):
            told = summary(self._run.events)
            self._update(f"{self._run.name}: {told}", card(self._run, told))

    def _words(self, step: str) -> str:
        return f"{self._run.name}: {step}, {self._run.news}"
