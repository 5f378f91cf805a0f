"""The record of a run: its config and events, as they are in memory or in a folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pandas as pd

from grpo_lab.config.schema import Config
from grpo_lab.events import Crash, Ended, Event, Stepped
from grpo_lab.runs import run_folder, step_table
from grpo_lab.runs.first_break import ChainBreak, first_break


class View(Protocol):
    """An object that shows events. A view that raises is reported once and left out; training goes on."""

    def show(self, event: Event) -> None:
        """Show one event; `run` calls it in the order of the events."""


class Record:
    """Config, folder and events of a run; without those events that a later resume replaced."""

    def __init__(self, config: Config, directory: Path) -> None:
        self.config, self.directory = config, directory
        self.events: list[Event] = []

    def replay(self, view: View, speed: float = 0.0) -> Iterator[Event]:
        """Show the recorded events to a view and yield them, `speed` times as fast as they came; 0 does not wait."""
        for event in self.events:
            if speed and isinstance(event, Stepped):
                time.sleep(event.metrics["step_time"] / speed)
            view.show(event)
            yield event

    @property
    def ended(self) -> Ended | None:
        """The event that closed the run, if it was closed."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Ended) else None

    @property
    def status(self) -> str:
        """The state: `new`, `running` (or cut off), `done`, `stopped`, `crashed` or `failed`.

        `stopped` is by a guard or the user, with the weights as they were, or a run in which nothing was trained;
        `failed` is a mistake in config, model, data, rewards or folder, which `run` raises too.
        """
        return self.ended.status if self.ended else "running" if self.events else "new"

    @property
    def crash(self) -> Crash | None:
        """The classified error that ended the run, if one did."""
        return self.ended.crash if self.ended else None

    @property
    def saved_model(self) -> Path | None:
        """The folder of the final weights, if they were saved."""
        path = self.directory / run_folder.MODEL
        return path if path.is_dir() else None

    @property
    def records(self) -> pd.DataFrame:
        """One row a step: verdict, committed updates and every metric; see `step_table.of`."""
        return step_table.of(self.events)

    def first_break(self) -> ChainBreak | None:
        """The first link of the chain that was not finite."""
        return first_break(self.events)
