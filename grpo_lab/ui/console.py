"""The output of the command line: progress of a run, tables, and messages in one line."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import Box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from grpo_lab.events import Event, Resumed, encodable, to_json

if TYPE_CHECKING:  # torch takes seconds to import, and lists of names need none of it
    from grpo_lab.config.schema import Config
    from grpo_lab.runs.session import Session

NARROW = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")
"""A rule below the header, and blanks between columns."""
WHOLE = 10_000
"""Columns where no terminal reads: lines stay whole in pipes and files, whatever COLUMNS says."""
EVERY = 10.0
"""Seconds between two lines of progress where standard error is no terminal."""


class _Lines(Console):
    """A console that leaves lines whole, and without blanks at their ends, where it is no terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        if self.is_terminal:
            return super().print(*objects, **options)
        with self.capture() as text:
            super().print(*objects, **options)
        self.file.write("\n".join(line.rstrip(" ") for line in text.get().split("\n")))


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return _Lines(stderr=stderr, highlight=False, width=None if stream and stream.isatty() else WHOLE)


out, err = _console(stderr=False), _console(stderr=True)


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


def say_json(tree: Any) -> None:
    """Print values as JSON on standard output; NaN and inf are strings."""
    print(json.dumps(encodable(tree), indent=2, allow_nan=False, ensure_ascii=False))


def say_list(as_json: bool, trees: Iterable[Any], header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a list on standard output: `trees` as JSON, or else `rows` as a table."""
    if as_json:
        say_json(list(trees))
    else:
        out.print(table([header, *rows]))


class _Bars(Progress):
    """Bars in a terminal; elsewhere a plain line at most every EVERY seconds."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._due = time.monotonic() + EVERY

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Update a bar, or print its line where there are no bars and one is due."""
        super().update(task_id, **changes)
        if self.disable and time.monotonic() >= self._due:
            self._due, task = time.monotonic() + EVERY, self.tasks[self.task_ids.index(task_id)]
            total = "" if task.total is None else f" of {task.total:,.0f}"
            left = "" if task.time_remaining is None else f", ETA {task.time_remaining:,.0f} s"
            note = task.fields.get("note", "")
            report(f"{task.description}: {task.completed:,.0f}{total}{left}  {note}".rstrip())


def progress() -> Progress:
    """Progress on standard error, bars in a terminal and lines elsewhere; standard output is for results."""
    count = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn())
    note = TextColumn("{task.fields[note]}", markup=False)  # may contain a user's name
    return _Bars(*count, *times, note, console=err, disable=not err.is_terminal)


class ProgressView:
    """A session's view: a bar, and the last event in one line."""

    def __init__(self, bars: Progress, title: str) -> None:
        from grpo_lab.analysis.run_state import Fold

        self._bars, self._run = bars, Fold()
        self._task: TaskID = bars.add_task(title, total=None, note="loading")

    def show(self, event: Event) -> None:
        """Move the bar to this event."""
        self._run.add(event)
        if isinstance(event, Resumed):  # the time that is left is of the steps since then
            self._bars.reset(self._task, completed=self._run.completed)
        run = self._run
        self._bars.update(self._task, total=run.num_steps or None, completed=run.completed, note=run.news)


def table(rows: Iterable[Sequence[str]], title: str | None = None, gap: int = 2) -> Table:
    """A table whose first row is the header, with `gap` blanks between columns."""
    header, *body = rows
    box, padding = (NARROW, gap - 1) if out.is_terminal else (None, gap)  # a rule is no row where a program reads
    grid = Table(
        title=title, title_justify="left", box=box, pad_edge=False, padding=(0, padding, 0, 0), show_edge=False
    )
    for index, name in enumerate(header):
        is_name = index == 0 and all(" " not in row[0] for row in body)
        grid.add_column(name, overflow="fold", no_wrap=is_name)
    for row in body:
        grid.add_row(*(escape(cell) for cell in row))
    return grid


def say_warnings() -> None:
    """Show each later warning as one line on standard error, without file and line number."""
    warnings.showwarning = lambda message, *_, **__: report(f"warning: {message}")


def notes(config: Config) -> list[str]:
    """The algorithm whose formulas a config has, if it is one, and what has no effect under them, a line each.

    >>> from grpo_lab.config.schema import Config
    >>> notes(Config().with_algorithm("cispo").with_("guards.dual_clip=on"))
    ['algorithm: cispo', 'guards.dual_clip has no effect under loss.surrogate=cispo']
    """
    from grpo_lab.config.algorithms import algorithm_of
    from grpo_lab.training.registry import doubts

    name = algorithm_of(dataclasses.asdict(config.loss))
    return [*([f"algorithm: {name}"] if name else []), *doubts(config)]


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
    from grpo_lab.analysis.healing import in_words, suggest
    from grpo_lab.runs.outcome import Learned, outcome
    from grpo_lab.runs.summary import summary

    out.print(summary(session.events), markup=False)
    fine = not session.crash and outcome(session.events).learned is Learned.LEARNED
    if not fine and (found := suggest(session.config, session.events)):
        say(in_words(found, out.width))


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
