"""One run: its config, its events on disk and in memory; methods to start, steer and reopen it.

A Session is the run as a caller has it. An Execution trains in this process for a Session, or, in a child process, for
the Session of the parent: it puts each event into the folder, writes checkpoints and saves the weights.

A checkpoint is a snapshot on disk: the state before a step, written only where weights and moments are finite and a
snapshot is due. So neither the writing of checkpoints nor a resume changes what is trained.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch

from grpo_lab.config import user_code
from grpo_lab.config.schema import Config, planned_steps, resized
from grpo_lab.errors import ConfigError, GrpoLabError, ModelError, RunError
from grpo_lab.events import Changed, Checkpointed, Crash, Ended, Event, Forked, Resumed, Started, Stepped, lineage
from grpo_lab.models import loading
from grpo_lab.runs import checkpoints, crashes, environment, run_folder
from grpo_lab.runs.child import Child
from grpo_lab.runs.commands import CommandQueue, Stopped, signals
from grpo_lab.runs.crashes import Resume
from grpo_lab.runs.first_break import ChainBreak, first_break
from grpo_lab.runs.processes import first_of_several, placed
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training import saved_state
from grpo_lab.training.argument_types import checked
from grpo_lab.training.distributed import SharedTraining
from grpo_lab.training.registry import check, needs_reference, validated
from grpo_lab.training.state import Model, Training
from grpo_lab.training.torch_settings import own_settings
from grpo_lab.training.trainer import events

if TYPE_CHECKING:
    import pandas as pd

BY_THE_USER, AT_ONCE = "by the user", "by the user, at once"
"""Messages of a run that was stopped: after its step, or in the middle of it."""
VERSION = 1
"""Of the state in a checkpoint."""


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
        """One row a step: verdict, committed updates and every metric.

        `attrs["not_logged"]` has, for each metric that some steps do not log, the rows whose NaN means just that.
        """
        import pandas as pd  # a child process trains without it

        steps = [event for event in self.events if isinstance(event, Stepped)]
        own = [{"step": e.step, "verdict": e.verdict.name, "updates": e.updates, "failed": e.failed} for e in steps]
        rows = [{**row, **e.metrics} for row, e in zip(own, steps, strict=True)]
        frame = pd.DataFrame(rows)
        absent = {name: [place for place, row in enumerate(rows) if name not in row] for name in frame.columns}
        frame.attrs["not_logged"] = {name: places for name, places in absent.items() if places}
        return frame

    def changes(self) -> list[tuple[int, tuple[str, ...]]]:
        """The changes of the running model: (step, overrides)."""
        changed = (event for event in self.events if isinstance(event, Changed | Resumed) and event.overrides)
        return [(event.step, event.overrides) for event in changed]

    def settings_before(self, step: int) -> Config:
        """The settings with which the step before this one was made; for step 0 those of the beginning."""
        return self.config.changed_live(*(each for at, row in self.changes() if at < step for each in row))

    def first_break(self) -> ChainBreak | None:
        """The first link of the chain that was not finite."""
        return first_break(self.events)


class Session(Record):
    """A run: configured, going on, over, crashed, or read back from its folder.

    `run` makes the folder; without `directory` it is runs/<time>-<name>, with a number if another run has it.
    `child=True` trains in a child process, so that a CUDA assert does not end this one; None, the default, does so on
    CUDA alone. A `Child` is used for this run and left ready for the next.
    `model`, `tasks` and `rewards` replace the configured ones; then the run is in this process.
    `fit=True` halves `data.micro_batch_prompts` where memory runs out, and goes on from the newest checkpoint.
    Another thread may stop, pause and change the run at the top of its next step.

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
        fit: bool = False,
    ) -> None:
        check(config)
        check(config.changed_live(*config.run.recover))
        replaced = bool(model or tasks or rewards)
        if replaced and (child or config.run.processes > 1):
            raise RunError("another process loads model, tasks and rewards itself: name them in the config")
        if model and (config.run.max_restarts or fit):
            raise RunError("run.max_restarts or fit: a restart loads the model again: name it in the config")
        super().__init__(config, Path(directory) if directory else run_folder.default_folder(config.run.name))
        self.views: list[View] = []
        self._any_free = not directory
        self._replaced = (model, tasks, rewards)
        self._save_model, self._fit = save_model, fit
        self._resume: Resume | None = None
        self._restarts_left = config.run.max_restarts
        self._commands = CommandQueue()
        on_cuda = loading.device_type(config.run.device) == "cuda"
        self._in_child = not replaced and on_cuda if child is None else bool(child)
        self._lent_child = child if isinstance(child, Child) else None
        self._child: Child | None = None
        self._before_child: list[tuple[str, Sequence[str]]] = []
        self._commanding = threading.RLock()  # reentrant, for a signal handler in a commanding thread

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

    @classmethod
    @checked
    def resume(
        cls,
        directory: str | Path = "",
        recover: Sequence[str] = (),
        model: tuple[Any, Any] | None = None,
        tasks: Tasks | None = None,
        rewards: Sequence[Callable[..., Any]] | None = None,
        child: bool | Child | None = None,
        save_model: bool = False,
        processes: int | None = None,
    ) -> Self:
        """The session whose `run` goes on with a run that was killed, stopped or crashed, from its newest checkpoint.

        Without one it begins again, and so does the rest of a run that was killed before it saved its model.
        `recover` changes settings of the running model, as `set` does. Give again what the run was given in place of
        names; the model as it was at the first step. Another number of `processes` rounds in another way.

        Raises RunError for a folder without a run, one that is done and one that another process writes; ConfigError
        for a setting that is fixed during a run.
        """
        if not directory:
            raise RunError("Session.resume goes on with the run of a folder: name it; after pause(), call go_on()")
        folder = Path(directory)
        run_folder.reopen(folder)
        config, events = run_folder.read(folder)
        session = cls(resized(config, processes), folder, model, tasks, rewards, child, save_model)
        session.events, session._resume = events, Resume(overrides=tuple(recover))
        if session.status == "done" and (session.saved_model or not save_model):
            way_out = f"to train its weights further: --model {folder / run_folder.MODEL}"
            raise RunError(f"{folder} is done, after {len(session.records)} steps; {way_out}")
        validated(session.config.changed_live(*recover))
        return session

    @classmethod
    @checked
    def fork(
        cls,
        parent: str | Path,
        step: int,
        overrides: Sequence[str] = (),
        directory: str | Path | None = None,
        model: tuple[Any, Any] | None = None,
        tasks: Tasks | None = None,
        rewards: Sequence[Callable[..., Any]] | None = None,
        child: bool | Child | None = None,
        save_model: bool = False,
    ) -> Self:
        """The session of a new run that is a copy of the run in the folder `parent` until a step, and then differs.

        `run` goes on from the parent's newest checkpoint before `step`, or begins where there is none. It makes the
        steps from there again, with the same bits on a CPU, and changes the settings of `overrides` at `step`, as `set`
        does. Without any it stays the same run. Its first event `Forked` tells parent and step. The parent stays as it
        is. Give again what it was given in place of names.

        Raises RunError for a folder without a run and for a step that the run did not reach; ConfigError for a setting
        that is fixed during a run.
        """
        old = Session.open(parent)
        made = sum(isinstance(event, Stepped) and not event.failed for event in old.events)
        last = min(made, sum(planned_steps(old.config.to_dict()).values()) - 1)
        if not made or not 0 <= step <= last:
            raise RunError(f"{parent} has {made} steps: fork it before a step from 0 to {last}, not {step}")
        config, old.config = old.config, old.settings_before(step)
        old.check_live(*overrides)
        if not config.run.threads:
            config = config.with_(f"run.threads={next(e.threads for e in old.events if isinstance(e, Started))}")
        folder = Path(directory) if directory else run_folder.new_folder(run_folder.default_folder(config.run.name))
        run_folder.begin(folder, config)
        state = checkpoints.copied(old.directory / checkpoints.FOLDER, folder / checkpoints.FOLDER, step)
        began, kept = (state["step"], state["events"]) if state else (0, 0)
        changes = [*(each for each in old.changes() if began <= each[0] < step), (step, overrides)]
        fork = run_folder.Fork(old.directory.name, step, began, changes)
        run_folder.write_fork(folder, fork, old.events[:kept])
        session = cls.resume(folder, (), model, tasks, rewards, child, save_model)
        session._resume = Resume(f"a fork of {fork.parent} before step {step}")
        return session

    def run(self, check: bool = False) -> Session:
        """Train to the end and return, also when the run crashed.

        Ctrl-C, SIGTERM and SIGHUP end it after the current step (see `signals`); a second one at once. Raises RunError
        for a crash when `check` is set, and GrpoLabError for a mistake in model, data or rewards; both are recorded.
        """
        with signals(self.stop, self._commands.stopping):
            try:
                self._make_folder()
                for event in self.events:  # of before, which no view has seen
                    self._show(event)
                with closing(self._attempts()) as events:
                    for event in events:
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

    def stop(self) -> None:
        """End the run after the current step; called again, a child process ends at once."""
        self.command("stop")

    def pause(self) -> None:
        """Wait at the top of the next step."""
        self.command("pause")

    def go_on(self) -> None:
        """Go on after `pause`."""
        self.command("resume")

    def advance(self) -> None:
        """One step while paused."""
        self.command("step")

    def set(self, *overrides: str) -> None:
        """Change settings of the running model at the top of the next step, with overrides as `Config.with_` takes.

        Raises ConfigError for a setting that is fixed during a run and for a bad value; the run goes on.
        """
        self.check_live(*overrides)
        self.command("set", overrides)

    def check_live(self, *overrides: str) -> None:
        """Raise ConfigError for overrides that `set` refuses."""
        changed = self.config.changed_live(*overrides)
        validated(changed)
        if needs_reference(changed) and not needs_reference(self.config):
            raise ConfigError("this run has no reference model: it started with loss.beta = 0; start it with more")

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

    def _make_folder(self) -> None:
        """Make the folder and write the config. Raises RunError if that fails."""
        try:
            if self._any_free:
                self.directory, self._any_free = run_folder.new_folder(self.directory), False
            (run_folder.write_config if self._resume else run_folder.begin)(self.directory, self.config)
        except OSError as error:
            steps = sum(isinstance(event, Stepped) for event in self.events)
            raise run_folder.unwritable(self.directory, steps, error) from error

    def _attempts(self) -> Generator[Event]:
        """The events of the run and of its restarts, without the end of an attempt that is followed by another one."""
        while True:
            again, earlier = None, self.directory / run_folder.TRACEBACK
            if self._resume and earlier.exists():  # a next crash must not replace it
                earlier.rename(run_folder.next_free(earlier))
            here = Execution(
                self.config, self.directory, self._commands, self._resume, self._save_model, *self._replaced
            )
            for event in self._child_events() if self._in_child else here.run():
                if isinstance(event, Ended) and event.crash and not self._commands.stopping.is_set():
                    again = self._after(event)
                if again is None:
                    yield event
            if again is None:
                return
            self._resume = again

    def _after(self, crashed: Ended) -> Resume | None:
        """How the run goes on after a crash: in smaller passes where memory ran out, else by a restart; None: not."""
        restarts = self.config.run.max_restarts - self._restarts_left
        if self._fit and crashes.out_of_memory(crashed) and (smaller := crashes.in_smaller_passes(self.config)):
            self.config, now = smaller, f"data.micro_batch_prompts={smaller.data.micro_batch_prompts}"
            run_folder.write_config(self.directory, smaller)
            warnings.warn(f"memory ran out: the run goes on with {now}", stacklevel=2)
            return Resume(f"{now} after a crash: {crashed.message}", (), restarts)
        if not self._restarts_left:
            return None
        self._restarts_left -= 1
        return crashes.after_a_crash(crashed.message, restarts + 1, self.events)

    def _child_events(self) -> Iterator[Event]:
        """The events of a child process, and the end that a dead child could not write."""
        seen, last = run_folder.num_lines(self.directory), None
        with self._commanding:
            if not self._commands.stopping.is_set():
                lent = self._lent_child
                if self._resume and lent and not lent.alive:
                    lent = None  # it died with the attempt before
                self._child = lent or Child()
                self._child.begin(self.config, self.directory, self._save_model, lent is None, self._resume)
                for command in self._before_child:
                    self._child.command(*command)
        for event in self._child.events() if self._child else ():
            seen, last = seen + 1, event
            yield event
        if not isinstance(last, Ended) and (self.directory / run_folder.EVENTS).exists():
            for event in run_folder.whole_events(self.directory)[seen:]:  # written before the child died
                last = event
                yield event
        if not isinstance(last, Ended):
            ended = self._end_of_child()
            run_folder.write_last(self.directory, ended)
            yield ended

    def _end_of_child(self) -> Ended:
        """The end of a run whose child recorded none."""
        if self._commands.stopping.is_set() and (not self._child or self._child.signal):
            return Ended("stopped", AT_ONCE if self._child else BY_THE_USER)
        assert self._child is not None
        stderr, error = self._child.stderr, ""
        if (traceback := self.directory / run_folder.TRACEBACK).exists():
            error = traceback.read_text(encoding="utf-8")
        message = stderr.splitlines()[-1] if error and stderr and not self._child.signal else self._child.last_words
        crash = crashes.classify_crash(stderr + error)
        if crash.kind == crashes.HANG:
            traceback.write_text(stderr, encoding="utf-8")
            message = f"no event for {self.config.run.hang_minutes:g} minutes; the child was ended"
        return Ended("crashed", message, crash)

    def _end_at_once(self) -> None:
        """End the child after a second Ctrl-C, and record the end."""
        if self._child:
            self._child.stop(at_once=True)
            self._child.wait()
        if not self.ended:
            ended = Ended("stopped", AT_ONCE)
            run_folder.write_last(self.directory, ended)
            self._keep(ended)

    def _keep(self, event: Event) -> None:
        """Keep the event, without those that a resume replaces, then show it to the views."""
        self.events.append(event)
        if isinstance(event, Resumed):
            self.events[:] = lineage(self.events)
        self._show(event)

    def _show(self, event: Event) -> None:
        for view in list(self.views):
            try:
                view.show(event)
            except Exception as error:
                self.views.remove(view)
                warnings.warn(f"{type(view).__name__} failed and was left out: {error!r}", stacklevel=2)


@dataclass
class Execution:
    """Training into a folder that is there, with its config; with `resume` the run in it goes on."""

    config: Config
    directory: Path
    commands: CommandQueue
    resume: Resume | None = None
    save_model: bool = False
    model: Model = None
    tasks: Tasks | None = None
    rewards: Sequence[Callable[..., Any]] | None = None
    leave: Callable[[str], None] | None = None
    """Called with the message of an error that cost the CUDA context, before `Ended`."""
    num_events: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    """Events and steps in the folder, without those that a resume replaced."""
    restarts: int = field(default=0, init=False)
    written_at: float = field(default_factory=time.monotonic, init=False)
    """When the last checkpoint was written."""
    origin: dict[str, Any] = field(default_factory=dict, init=False)
    """The model with which the run began, and its surroundings, as checkpoints tell them."""
    fork: run_folder.Fork | None = field(default=None, init=False)
    """The origin of a run that is a fork."""

    def run(self) -> Generator[Event]:
        """Train and yield the events, each of which is on disk by then.

        Raises RunError for a folder that cannot be written or that another process writes, and the GrpoLabError that
        ended the run, after `Ended`.
        """
        try:
            with run_folder.writer(self.directory, self.config) as append:
                self.fork = run_folder.read_fork(self.directory)
                for event in self._train():
                    append(event)
                    if isinstance(event, Resumed):
                        self.num_events, self.steps = event.kept, event.step
                    self.num_events += 1
                    self.steps += isinstance(event, Stepped)
                    yield event
        except OSError as error:
            raise run_folder.unwritable(self.directory, self.steps, error) from error

    def _train(self) -> Iterator[Event]:
        """The events of training; the last one says how it ended. Then the weights are saved."""
        config, model, lost, mistake = self.config, self.model, False, None
        stopping, steps = self.commands.stopping.is_set, sum(planned_steps(config.to_dict()).values())
        try:
            model = model or loading.load(config.model.name, config.model.precision, config.run.device)
            for event in self._trained(model):
                yield event
                more = isinstance(event, Stepped) and event.step + 1 < steps  # and a checkpoint before the next step
                if stopping() and not (more or isinstance(event, Ended)):
                    raise Stopped
        except Stopped:
            yield Ended("stopped", BY_THE_USER)
        except GrpoLabError as error:
            yield Ended("failed", str(error))
            mistake = error
        except (Exception, SystemExit) as error:  # a reward function may call exit()
            ended = run_folder.write_crash(self.directory, error)
            if (lost := crashes.context_lost(error)) and self.leave:
                self.leave(ended.message)
            yield ended
        if self.save_model and model and not lost and (self.steps or not mistake):
            run_folder.save_model(self.directory, *model, merge=config.lora.save_merged)
        if mistake:
            raise mistake

    @own_settings
    def _trained(self, model: Model) -> Iterator[Event]:
        """The events of training, by as many processes as the config says."""
        config = self.config
        if config.run.processes == 1:
            training = Training(config, model, self.tasks, self.rewards)
            yield from self._begin(training)
            yield from self._steps(training)
            return
        with first_of_several(config) as processes:
            training = SharedTraining(processes, placed(config, processes.rank), model, self.tasks, self.rewards)
            yield from self._begin(training)
            overrides = training.saved.get("overrides", ())
            processes.hear(lambda: (str(self._folder.resolve()), training.resumed_at, overrides))
            yield from self._steps(training)

    @property
    def _folder(self) -> Path:
        return self.directory / checkpoints.FOLDER

    def _begin(self, training: Training) -> Iterator[Event]:
        """Yield the event with which the run begins or goes on, and give it the state of the checkpoint.

        Raises RunError where all checkpoints are broken or of another version, and ModelError for another model.
        """
        checkpoints.sweep(self._folder)
        if self.resume or self.config.run.checkpoint_minutes is not None:
            self.origin = {"model": _digest(training.policy), "surroundings": _surroundings(training)}
        if self.resume:
            yield self._resumed(training, self.resume)
        if training.resumed_at < 0:
            yield training.started()

    def _resumed(self, training: Training, resume: Resume) -> Resumed:
        """Read the newest checkpoint, and say from where and with which changes the run goes on."""
        state, problems = checkpoints.newest_whole(self._folder, resume.below, saved_state.check_finite)
        why = [resume.reason, *problems]
        if state is None:
            state, why = {"step": -1, "events": 0, "restarts": 0}, [*why, "there is no checkpoint: from the start"]
        else:
            self._check(state)
            surroundings = self.origin["surroundings"]
            if not training.config.run.threads:
                torch.set_num_threads(state["surroundings"]["threads"])
                surroundings["threads"] = torch.get_num_threads()
            why += _differences(state["surroundings"], surroundings)
        checkpoints.remove_after(self._folder, state["step"])
        self.restarts = state["restarts"] if resume.restarts is None else resume.restarts
        again = max(0, self.restarts - state["restarts"])
        overrides = (*(training.config.run.recover * again), *resume.overrides)
        training.resumed_at, training.saved = state["step"], state | {"overrides": overrides}
        event = Resumed(max(0, state["step"]), state["events"], "; ".join(filter(None, why)), overrides)
        if self.fork and event.step <= self.fork.began:  # later on, the events that are kept tell of the fork
            return Forked(*astuple(event), parent=self.fork.parent, at=self.fork.step)
        return event

    def _check(self, state: dict[str, Any]) -> None:
        if state.get("version") != VERSION:
            raise RunError(
                f"{self._folder} holds checkpoints of format {state.get('version')}, and this version reads {VERSION}: "
                "resume with the version of grpo_lab that wrote them"
            )
        if state["model"] != self.origin["model"]:
            raise ModelError(
                f"{self.directory}: model.name holds other weights than those that the run began with; put those "
                "back, or begin another run"
            )

    def _steps(self, training: Training) -> Iterator[Event]:
        """The events of the steps, with checkpoints between them."""
        at_top: int | None = max(0, training.resumed_at)
        try:
            for event in events(training, self._controls):
                yield event
                if isinstance(event, Stepped):
                    at_top = None if event.failed else event.step + 1
                    if at_top is not None and at_top in training.steps:
                        yield from self._checkpoint(training, at_top)
        except Exception:  # stopped, perhaps while it was paused: then no checkpoint was due before
            if at_top is not None:
                yield from self._checkpoint(training, at_top)
            raise

    def _controls(self, step: int) -> list[str]:
        """The overrides for a step: of the commands, and of a fork those that it repeats or begins with.

        A fork makes the steps of its parent again at full speed.
        """
        if not self.fork or step > self.fork.step:
            return self.commands(step)
        if step < self.fork.step and self.commands.stopping.is_set():
            raise Stopped
        planned = [each for at, overrides in self.fork.changes if at == step for each in overrides]
        return planned if step < self.fork.step else [*planned, *self.commands(step)]

    def _checkpoint(self, training: Training, index: int) -> Iterator[Event]:
        """Write a checkpoint of the state before step `index` if one is due; a full disk stops no training."""
        minutes = self.config.run.checkpoint_minutes
        if minutes is None:
            return
        due = self.commands.stopping.is_set() or time.monotonic() - self.written_at >= 60 * minutes
        place = checkpoints.place(self._folder, index)
        if not due or place.exists() or not saved_state.may_be_taken(training, index):
            return
        begun, size, problem = time.monotonic(), 0, ""
        about = {"version": VERSION, "step": index, "stage": training.stage, "events": self.num_events}
        state = {**about, "restarts": self.restarts, **self.origin, **saved_state.taken(training)}
        try:
            model = partial(loading.save, model=training.policy, tokenizer=training.tokenizer)
            size = checkpoints.write(place, state, model)
            checkpoints.rotate(self._folder)
        except OSError as error:
            problem = error.strerror or str(error)
        self.written_at = time.monotonic()
        yield Checkpointed(index, self.written_at - begun, size, problem)


def _surroundings(training: Training) -> dict[str, Any]:
    """What the last bits of a step depend on beside the state; only texts and numbers."""
    here = environment.describe(torch.get_num_threads(), str(training.policy.device))
    files = [path for path in user_code.files_of(training.config.to_dict()) if path.is_file()]
    problems = [problem for tasks in training.tasks.values() for problem in tasks.train]
    told = json.dumps([(problem.prompt, problem.columns) for problem in problems], default=repr)
    return {
        "torch": here["packages"]["torch"],
        "transformers": here["packages"]["transformers"],
        "device": here["device"],
        "threads": here["threads"],
        "number of processes": training.config.run.processes,
        **{str(path): loading.sha256(path) for path in files},
        "tasks": hashlib.sha256(told.encode()).hexdigest(),
    }


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A sentence on each part of the surroundings that is another one."""
    changed = [name for name in old if old[name] != new.get(name)]
    short = {name: "" if len(str(old[name])) == 64 else f" ({old[name]}, now {new.get(name)})" for name in changed}
    return [f"not bit-exact from here: another {name}{short[name]}" for name in changed]


def _digest(policy: Any) -> str:
    """SHA-256 of the bits of a policy's weights."""
    found = hashlib.sha256()
    for tensor in policy.parameters():
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
