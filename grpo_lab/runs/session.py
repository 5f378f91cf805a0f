"""One run as an experiment: its config, its events on disk and in memory, and methods to start, stop and reopen it."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError, GrpoLabError, RunError
from grpo_lab.events import Crash, Ended, Event, Stepped
from grpo_lab.models import loading
from grpo_lab.runs import run_folder, step_table
from grpo_lab.runs.child import Child
from grpo_lab.runs.commands import CommandQueue, Stopped, signals
from grpo_lab.runs.crashes import classify_crash, context_lost
from grpo_lab.runs.first_break import ChainBreak, first_break
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training.given import checked
from grpo_lab.training.registry import needs_reference, validated
from grpo_lab.training.trainer import train

BY_THE_USER, AT_ONCE = "by the user", "by the user, at once"


class View(Protocol):
    """An object that shows events. A view that raises is reported once and left out; training goes on."""

    def show(self, event: Event) -> None:
        """Show one event; `run` calls it in the order of the events."""


class Session:
    """A run: configured, going on, over, crashed, or read back from its folder.

    `run` makes the folder; without `directory` it is runs/<time>-<name>, with a number if another run has it.
    `child=True` trains in a child process, so that a CUDA assert does not end this one; None, the default, does so on
    CUDA alone. A `Child` is used for this run and left ready for the next.
    `model`, `tasks` and `rewards` replace the configured ones; then the run is in this process.

    Raises ConfigError for a bad setting and for a value of a wrong type; RunError for these objects with a child.
    """

    @checked
    def __init__(
        self,
        config: Config,
        directory: str | Path | None = None,
        model: tuple[Any, Any] | None = None,
        tasks: Tasks | None = None,
        rewards: Sequence[Callable[..., Any]] | None = None,
        child: bool | Child | None = None,
        save_model: bool = False,
    ) -> None:
        validated(config)
        given = bool(model or tasks or rewards)
        if child and given:
            raise RunError("a child process loads its own model, tasks and rewards: name them in the config")
        child = not given and loading.device_type(config.run.device) == "cuda" if child is None else child
        self.config = config
        self.directory = Path(directory) if directory else run_folder.default_folder(config)
        self._any_free = not directory
        self.events: list[Event] = []
        self.views: list[View] = []
        self._given = (model, tasks, rewards)
        self._in_child, self._save_model = bool(child), save_model
        self._lent_child = child if isinstance(child, Child) else None
        self._child: Child | None = None
        self._commands = CommandQueue()
        self._before_child: list[tuple[str, Sequence[str]]] = []
        self._commanding = threading.RLock()  # reentrant, for a signal handler in a commanding thread
        self.leave: Callable[[str], None] = lambda error: None  # called when the CUDA context is lost, before `Ended`

    @staticmethod
    def open(directory: str | Path) -> Session:
        """The session of a folder, whose run is finished, crashed, or cut off in the middle of a line.

        Raises RunError when the folder holds no run or one that cannot be read.
        """
        config, events = run_folder.read(Path(directory))
        try:
            session = Session(config, directory, child=False)
        except GrpoLabError as error:
            raise RunError(f"{directory} cannot be read: {run_folder.CONFIG} is damaged: {error}") from error
        session.events = events
        return session

    def run(self, check: bool = False) -> Session:
        """Train to the end and return, also when the run crashed.

        Ctrl-C, SIGTERM and SIGHUP end it after the current step (see `signals`); a second one at once. Raises RunError
        for a crash when `check` is set, and GrpoLabError for a mistake in model, data or rewards; both are recorded.
        """
        with signals(self.stop, self._commands.stopping):
            try:
                with self._writer() as write:
                    for event in self._child_events() if self._in_child else self._events_here():
                        write(event)
                        self._keep(event)
            except KeyboardInterrupt:
                self._end_at_once()
                raise
            except GrpoLabError as error:
                if not self.ended:
                    self._keep(Ended("failed", str(error)))
                raise
        if check and self.crash:
            raise RunError(f"the run crashed: {self.crash.operator}: {self.crash.text}")
        return self

    def start(self) -> threading.Thread:
        """The thread in which `run` goes on. Raises RunError without a child process."""
        if not self._in_child:
            raise RunError("only a session with child=True can start in the background")

        def run() -> None:
            with suppress(GrpoLabError):  # the views have shown it; a thread cannot raise to a caller
                self.run()

        thread = threading.Thread(target=run, name=f"session {self.directory.name}", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """End the run after the current step; called again, a child process ends at once."""
        self.command("stop")

    def pause(self) -> None:
        """Wait at the top of the next step."""
        self.command("pause")

    def resume(self) -> None:
        """Go on after `pause`."""
        self.command("resume")

    def advance(self) -> None:
        """One step while paused."""
        self.command("step")

    def set(self, *overrides: str) -> None:
        """Change settings of the running model at the top of the next step, with overrides as `Config.with_` takes.

        Raises ConfigError for a setting that is fixed during a run and for a bad value; the run goes on.
        """
        changed = self.config.changed_live(*overrides)
        validated(changed, own=True)
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

        `stopped` is by a guard or the user, with the weights as they were; `failed` is a mistake in config, model,
        data, rewards or folder, which `run` raises too.
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

    def _events_here(self) -> Iterator[Event]:
        """The events of training in this process; the last one says how it ended. Then the weights are saved."""
        model, tasks, rewards = self._given
        config, lost, mistake = self.config, False, None
        try:
            model = model or loading.load(config.model.name, config.model.precision, config.run.device)
            for event in train(config, model, tasks, rewards, controls=self._commands):
                yield event
                if self._commands.stopping.is_set() and not isinstance(event, Ended):
                    raise Stopped
        except Stopped:
            yield Ended("stopped", BY_THE_USER)
        except GrpoLabError as error:
            yield Ended("failed", str(error))
            mistake = error
        except (Exception, SystemExit) as error:  # a reward function may call exit()
            ended = run_folder.write_crash(self.directory, error)
            if lost := context_lost(error):
                self.leave(ended.message)
            yield ended
        if self._save_model and model and not lost and (not mistake or len(self.records)):
            run_folder.save_model(self.directory, *model, merge=self.config.lora.save_merged)
        if mistake:
            raise mistake

    def _child_events(self) -> Iterator[Event]:
        """The events of a child process, and the end that a dead child could not write."""
        with self._commanding:
            if not self._commands.stopping.is_set():
                self._child = self._lent_child or Child()
                self._child.begin(self.config, self.directory, self._save_model, last=not self._lent_child)
                for command in self._before_child:
                    self._child.command(*command)
        if self._child:
            yield from self._child.events()
        if not self.ended and (self.directory / run_folder.EVENTS).exists():
            yield from run_folder.whole_events(self.directory)[len(self.events) :]  # written before the child died
        if not self.ended:
            ended = self._end_of_child()
            run_folder.write_last(self.directory, ended)
            yield ended

    def _end_of_child(self) -> Ended:
        """The end of a run whose child recorded none."""
        if self._commands.stopping.is_set() and (not self._child or self._child.signal):
            return Ended("stopped", AT_ONCE if self._child else BY_THE_USER)
        assert self._child is not None
        stderr, error = self._child.stderr, run_folder.read_crash(self.directory)
        message = stderr.splitlines()[-1] if error and stderr and not self._child.signal else self._child.last_words
        return Ended("crashed", message, classify_crash(stderr + error))

    def _end_at_once(self) -> None:
        """End the child after a second Ctrl-C, and record the end."""
        if self._child:
            self._child.stop(at_once=True)
            self._child.wait()
        if not self.ended:
            ended = Ended("stopped", AT_ONCE)
            run_folder.write_last(self.directory, ended)
            self._keep(ended)

    @contextmanager
    def _writer(self) -> Iterator[Callable[[Event], None]]:
        """Make the folder, and yield a function that appends events to its file. Raises RunError if that fails."""
        try:
            if self._any_free:
                self.directory, self._any_free = run_folder.new_folder(self.directory), False
            run_folder.begin(self.directory, self.config)
            here = not self._in_child
            with run_folder.writer(self.directory, self.config) if here else nullcontext(lambda event: None) as append:
                yield append
        except OSError as error:
            done = sum(isinstance(event, Stepped) for event in self.events)
            raise RunError(
                f"{self.directory} cannot be written after {done} steps: {error.strerror or error}; "
                "earlier events are intact. Choose a folder with room and permission (--out)"
            ) from error

    def _keep(self, event: Event) -> None:
        """Keep the event, then show it to the views."""
        self.events.append(event)
        for view in list(self.views):
            try:
                view.show(event)
            except Exception as error:
                self.views.remove(view)
                warnings.warn(f"{type(view).__name__} failed and was left out: {error!r}", stacklevel=2)
