"""One run as an experiment: its config, its events on disk and in memory; methods to start, stop, reopen, resume it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from grpo_lab.config.schema import Config, planned_steps, resized
from grpo_lab.errors import GrpoLabError, RunError
from grpo_lab.events import Ended, Event, Resumed, Stepped, lineage
from grpo_lab.models import loading
from grpo_lab.runs import run_folder
from grpo_lab.runs.checkpoints import Checkpoints
from grpo_lab.runs.child import Child
from grpo_lab.runs.commands import Stopped, signals
from grpo_lab.runs.crashes import HANG, classify_crash, context_lost
from grpo_lab.runs.processes import trained
from grpo_lab.runs.record import View
from grpo_lab.runs.resume import Resume, after_a_crash, in_smaller_passes, out_of_memory
from grpo_lab.runs.steering import Steered
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training.given import checked
from grpo_lab.training.registry import check, validated

BY_THE_USER, AT_ONCE = "by the user", "by the user, at once"


class _Resuming:
    """`Session.resume(folder)` is the session that goes on with a run; `session.resume()` goes on after `pause`."""

    def __get__(self, session: Session | None, owner: type[Session]) -> Callable[..., Any]:
        return owner.reopened if session is None else session.go_on


class Session(Steered):
    """A run: configured, going on, over, crashed, or read back from its folder.

    `run` makes the folder; without `directory` it is runs/<time>-<name>, with a number if another run has it.
    `child=True` trains in a child process, so that a CUDA assert does not end this one; None, the default, does so on
    CUDA alone. A `Child` is used for this run and left ready for the next.
    `model`, `tasks` and `rewards` replace the configured ones; then the run is in this process.
    `fit=True` halves `data.micro_batch_prompts` where memory runs out, and goes on from the newest checkpoint.

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
        given = bool(model or tasks or rewards)
        if given and (child or config.run.processes > 1):
            raise RunError("another process loads model, tasks and rewards itself: name them in the config")
        if model and (config.run.max_restarts or fit):
            raise RunError("run.max_restarts or fit: a restart loads the model again: name it in the config")
        child = not given and loading.device_type(config.run.device) == "cuda" if child is None else child
        super().__init__(config, Path(directory) if directory else run_folder.default_folder(config), bool(child))
        self._any_free = not directory
        self._resume: Resume | None = None
        self._unseen = 0  # events of before, which no view has seen
        self.restarts_left = config.run.max_restarts
        self.views: list[View] = []
        self._given = (model, tasks, rewards)
        self._save_model, self._fit = save_model, fit
        self._lent_child = child if isinstance(child, Child) else None
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

    resume = _Resuming()

    @classmethod
    def reopened(
        cls,
        directory: str | Path,
        recover: Sequence[str] = (),
        model: tuple[Any, Any] | None = None,
        tasks: Tasks | None = None,
        rewards: Sequence[Callable[..., Any]] | None = None,
        child: bool | Child | None = None,
        save_model: bool = False,
        reason: str = "",
        processes: int | None = None,
    ) -> Session:
        """The session whose `run` goes on with a run that was killed, stopped or crashed, from its newest checkpoint.

        Without one it begins again, and so does the rest of a run that was killed before it saved its model.
        `recover` changes settings of the running model, as `set` does. Give again what the run was given in place of
        names; the model as it was at the first step. Another number of `processes` rounds in another way.

        Raises RunError for a folder without a run, one that is done and one that another process writes; ConfigError
        for a setting that is fixed during a run.
        """
        folder = Path(directory)
        run_folder.reopen(folder)
        config = resized(run_folder.read(folder)[0], processes)
        session = cls(config, folder, model, tasks, rewards, child, save_model)
        session.go_on_from(Resume(reason, tuple(recover)))
        if session.status == "done" and (session.saved_model or not save_model):
            way_out = f"to train its weights further: --model {folder / run_folder.MODEL}"
            raise RunError(f"{folder} is done, after {len(session.records)} steps; {way_out}")
        validated(config.changed_live(*recover))
        session._unseen = len(session.events)
        return session

    def go_on_from(self, resume: Resume) -> None:
        """Let `run` go on with the run in its folder."""
        self._resume, self.events = resume, run_folder.read(self.directory)[1]

    def run(self, check: bool = False) -> Session:
        """Train to the end and return, also when the run crashed.

        Ctrl-C, SIGTERM and SIGHUP end it after the current step (see `signals`); a second one at once. Raises RunError
        for a crash when `check` is set, and GrpoLabError for a mistake in model, data or rewards; both are recorded.
        """
        with signals(self.stop, self._commands.stopping):
            try:
                with self._writer() as write:
                    for event in self.events[: self._unseen]:
                        self._show(event)
                    for event in self._attempts():
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

    def _attempts(self) -> Iterator[Event]:
        """The events of the run and of its restarts, without the end of an attempt that is followed by another one."""
        while True:
            again = None
            if self._resume:
                run_folder.number_traceback(self.directory)
            for event in self._child_events() if self._in_child else self._events_here():
                if isinstance(event, Ended) and event.crash and not self._commands.stopping.is_set():
                    again = self._after(event)
                if again is None:
                    yield event
            if again is None:
                return
            self._resume = again

    def _after(self, crashed: Ended) -> Resume | None:
        """How the run goes on after a crash: in smaller passes where memory ran out, else by a restart; None: not."""
        restarts = self.config.run.max_restarts - self.restarts_left
        if self._fit and out_of_memory(crashed) and (smaller := in_smaller_passes(self.config)):
            self.config, now = smaller, f"data.micro_batch_prompts={smaller.data.micro_batch_prompts}"
            run_folder.go_on(self.directory, smaller)
            warnings.warn(f"memory ran out: the run goes on with {now}", stacklevel=2)
            return Resume(f"{now} after a crash: {crashed.message}", (), restarts)
        if not self.restarts_left:
            return None
        self.restarts_left -= 1
        return after_a_crash(crashed.message, restarts + 1, self.events)

    def _events_here(self) -> Iterator[Event]:
        """The events of training in this process; the last one says how it ended. Then the weights are saved."""
        model, tasks, rewards = self._given
        config, lost, mistake = self.config, False, None
        stopping, steps = self._commands.stopping.is_set, sum(planned_steps(config.to_dict()).values())
        checkpoints = Checkpoints(self.directory, config, self._resume, lambda: len(self.events), stopping)
        try:
            model = model or loading.load(config.model.name, config.model.precision, config.run.device)
            for event in trained(config, model, tasks, rewards, self.controls, checkpoints):
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
            if lost := context_lost(error):
                self.leave(ended.message)
            yield ended
        if self._save_model and model and not lost and (not mistake or len(self.records)):
            run_folder.save_model(self.directory, *model, merge=self.config.lora.save_merged)
        if mistake:
            raise mistake

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
        stderr, error = self._child.stderr, run_folder.read_crash(self.directory)
        message = stderr.splitlines()[-1] if error and stderr and not self._child.signal else self._child.last_words
        crash = classify_crash(stderr + error)
        if crash.kind == HANG:
            run_folder.write_traceback(self.directory, stderr)
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

    @contextmanager
    def _writer(self) -> Iterator[Callable[[Event], None]]:
        """Make the folder, and yield a function that appends events to its file. Raises RunError if that fails."""
        try:
            if self._any_free:
                self.directory, self._any_free = run_folder.new_folder(self.directory), False
            (run_folder.go_on if self._resume else run_folder.begin)(self.directory, self.config)
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
