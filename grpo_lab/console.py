"""What the command line shows: progress while a run goes on, tables, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from grpo_lab.events import Ended, Evaluated, Event, Started, Stepped, to_json

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def progress() -> Progress:
    """A progress bar on standard error, so that standard output stays what was asked for."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=err, transient=not err.is_terminal)


class ProgressView:
    """A session's view: one bar, and the numbers that tell whether it is well."""

    def __init__(self, bars: Progress, title: str) -> None:
        self._bars = bars
        self._task: TaskID = bars.add_task(title, total=None, note="loading")

    def show(self, event: Event) -> None:
        if isinstance(event, Started):
            self._bars.update(self._task, total=event.config["run"]["num_steps"], note="")
        elif isinstance(event, Stepped):
            names = {"reward": "reward", "grad_norm": "norm", "kl": "kl"}
            shown = [f"{label} {event.metrics[name]:.3g}" for name, label in names.items() if name in event.metrics]
            verdict = [] if event.verdict in ("KEEP", "CHANGED") else [event.verdict]
            self._bars.update(self._task, completed=event.step + (not event.failed), note=" ".join([*shown, *verdict]))
        elif isinstance(event, Evaluated):
            self._bars.update(self._task, note=f"held-out reward {event.reward:.3f}")
        elif isinstance(event, Ended):
            self._bars.update(self._task, note=event.status)


def table(rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A table whose first row is the header."""
    header, *body = rows
    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        grid.add_column(name, overflow="fold", no_wrap=index == 0)
    for row in body:
        grid.add_row(*row)
    return grid


class JsonView:
    """A session's view: its events as JSON lines on standard output."""

    def show(self, event: Event) -> None:
        print(to_json(event), flush=True)
