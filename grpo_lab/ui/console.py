"""The output of the command line: progress of a run, tables, and messages in one line."""

import sys
import warnings
from collections.abc import Iterable, Sequence

from rich.box import Box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from grpo_lab.analysis.healing import in_words, suggest
from grpo_lab.config.schema import planned_steps
from grpo_lab.events import Ended, Evaluated, Event, Started, Stepped, to_json
from grpo_lab.runs.session import Session
from grpo_lab.runs.summary import Learned, progress_of, summary

NARROW = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")
"""A rule below the header, and blanks between columns."""
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def say(text: str = "") -> None:
    """Print a line on standard output, without markup and wrapping."""
    out.print(text, markup=False, soft_wrap=True)


def say_report(text: str) -> None:
    """Print paragraphs on standard output; in a terminal, lines that begin at the left are bold."""
    for line in text.split("\n"):
        out.print(line, markup=False, soft_wrap=True, style="" if line.startswith(" ") else "bold")


def report(text: str) -> None:
    """Print a line on standard error, without markup and wrapping."""
    err.print(text, markup=False, soft_wrap=True)


def progress() -> Progress:
    """A progress bar on standard error, if that is a terminal; standard output is for results."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    note = TextColumn("{task.fields[note]}", markup=False)  # may contain a user's name
    return Progress(*columns, note, console=err, disable=not err.is_terminal)


class ProgressView:
    """A session's view: a bar, and the step in numbers."""

    def __init__(self, bars: Progress, title: str) -> None:
        self._bars = bars
        self._task: TaskID = bars.add_task(title, total=None, note="loading")

    def show(self, event: Event) -> None:
        """Move the bar to this event."""
        if isinstance(event, Started):
            self._bars.update(self._task, total=sum(planned_steps(event.config).values()), note="")
        elif isinstance(event, Stepped):
            self._bars.update(self._task, completed=event.step + (not event.failed), note=in_numbers(event))
        elif isinstance(event, Evaluated):
            self._bars.update(self._task, note=f"held-out reward {event.reward:.3f}")
        elif isinstance(event, Ended):
            self._bars.update(self._task, note=event.status)


def in_numbers(event: Stepped) -> str:
    """A step in numbers: reward or accuracy, gradient norm, KL, and the verdict if the step was refused."""
    names = {"reward": "reward", "sft/accuracy": "accuracy", "grad_norm": "norm", "kl": "kl"}
    shown = [f"{label} {event.metrics[name]:.3g}" for name, label in names.items() if name in event.metrics]
    return " ".join([*shown, event.verdict.name] if event.refused else shown)


def table(rows: Iterable[Sequence[str]], title: str | None = None, gap: int = 2) -> Table:
    """A table whose first row is the header, with `gap` blanks between columns."""
    header, *body = rows
    grid = Table(
        title=title, title_justify="left", box=NARROW, pad_edge=False, padding=(0, gap - 1, 0, 0), show_edge=False
    )
    for index, name in enumerate(header):
        is_name = index == 0 and all(" " not in row[0] for row in body)
        grid.add_column(name, overflow="fold", no_wrap=is_name)
    for row in body:
        grid.add_row(*(escape(cell) for cell in row))
    return grid


def indented(text: str, by: int) -> Padding:
    """Text with every line indented, as wide as the terminal."""
    return Padding(Text(text), (0, 0, 0, by))


def say_warnings() -> None:
    """Show each later warning as one line on standard error, without file and line number."""

    warnings.showwarning = lambda message, *_, **__: report(f"warning: {message}")


class JsonView:
    """A session's view: events as JSON lines on the standard output at the time of its creation."""

    def __init__(self) -> None:
        self._stream = sys.stdout

    def show(self, event: Event) -> None:
        """Print the event as one line of JSON."""
        print(to_json(event), file=self._stream, flush=True)


def say_end(session: Session) -> None:
    """Print the result of a run, how to heal it if it did not learn, and its folder."""
    say_summary(session)
    say(f"run: {session.directory}")
    if session.saved_model:
        say(f"model: {session.saved_model}")


def say_summary(session: Session) -> None:
    """Print the result of a run, and what stops and heals its cause if it did not learn."""
    out.print(summary(session.events), markup=False)
    fine = not session.crash and progress_of(session.events).learned is Learned.LEARNED
    if not fine and (found := suggest(session.config, session.events)):
        out.print(in_words(found), markup=False)


def say_verified(target: str, settings: Sequence[str]) -> int:
    """Print the checks of a trainer, a line each; return the exit code: 1 if one failed."""
    from grpo_lab.analysis.verification import verify

    lines, marks = verify(target, settings), {True: "✔", False: "✘", None: "–"}
    for line in lines:
        number = f"not checked: {line.measured}" if line.ok is None else line.measured
        say(f"{marks[line.ok]} {line.name:<19} {number}" + (f"  (limit: {line.limit})" if line.limit else ""))
    held, failed, left = ([line.name for line in lines if line.ok is ok] for ok in (True, False, None))
    lists = (("failed", failed), ("not checked", left))
    say(f"{len(held)} of {len(lines)} checks hold" + "".join(f"; {k}: {', '.join(v)}" for k, v in lists if v))
    return 1 if failed else 0
