"""The commands that a run takes while it goes on, in this process or in a child."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError
from grpo_lab.runs.child import Child
from grpo_lab.runs.commands import CommandQueue
from grpo_lab.runs.record import Record
from grpo_lab.training.registry import needs_reference, validated


class Steered(Record):
    """A run that can be stopped, paused and changed at the top of its next step, from any thread."""

    def __init__(self, config: Config, directory: Path, in_child: bool) -> None:
        super().__init__(config, directory)
        self._in_child = in_child
        self._child: Child | None = None
        self._commands = CommandQueue()
        self.controls: Callable[[int], Sequence[str]] = self._commands  # a watchdog may stand before them
        self._before_child: list[tuple[str, Sequence[str]]] = []
        self._commanding = threading.RLock()  # reentrant, for a signal handler in a commanding thread

    def stop(self) -> None:
        """End the run after the current step; called again, a child process ends at once."""
        self.command("stop")

    def pause(self) -> None:
        """Wait at the top of the next step."""
        self.command("pause")

    def go_on(self) -> None:
        """Go on after `pause`; `session.resume()` is the same."""
        self.command("resume")

    def advance(self) -> None:
        """One step while paused."""
        self.command("step")

    def set(self, *overrides: str) -> None:
        """Change settings of the running model at the top of the next step, with overrides as `Config.with_` takes.

        Raises ConfigError for a setting that is fixed during a run and for a bad value; the run goes on.
        """
        changed = self.config.changed_live(*overrides)
        validated(changed)
        if needs_reference(changed) and not needs_reference(self.config):
            raise ConfigError("this run has no reference model: it started with loss.beta = 0; start it with more")
        self.command("set", overrides)

    def command(self, name: str, overrides: Sequence[str] = ()) -> None:
        """Give one of the commands that `runs.commands` lists; the overrides of `set` are not checked here."""
        with self._commanding:
            again = name == "stop" and self._commands.stopping.is_set()
            self._commands.command(name, overrides)
            if self._child and name == "stop":
                self._child.stop(at_once=again or not self.events)
            elif self._child:
                self._child.command(name, overrides)
            elif self._in_child:
                self._before_child.append((name, overrides))
