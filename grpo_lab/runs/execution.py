"""A run in this process: train, put each event into the folder, write checkpoints, tell how it ended, save the weights.

A Session does so for a run in its own process, and the child process for a Session of its parent.

A checkpoint is a snapshot on disk: the state before a step, written only where weights and moments are finite and a
snapshot is due. So neither the writing of checkpoints nor a resume changes what is trained.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_lab.config import user_code
from grpo_lab.config.schema import Config, planned_steps
from grpo_lab.errors import GrpoLabError, ModelError, RunError
from grpo_lab.events import Checkpointed, Ended, Event, Resumed, Stepped
from grpo_lab.models import loading
from grpo_lab.runs import checkpoints, environment, run_folder
from grpo_lab.runs.commands import CommandQueue, Stopped
from grpo_lab.runs.crashes import Resume, context_lost
from grpo_lab.runs.processes import first_of_several, placed
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training import saved_state
from grpo_lab.training.distributed import SharedTraining
from grpo_lab.training.state import Model, Training
from grpo_lab.training.torch_settings import own_settings
from grpo_lab.training.trainer import events

BY_THE_USER, AT_ONCE = "by the user", "by the user, at once"
"""Messages of a run that was stopped: after its step, or in the middle of it."""
VERSION = 1
"""Of the state in a checkpoint."""


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

    def run(self) -> Generator[Event]:
        """Train and yield the events, each of which is on disk by then.

        Raises RunError for a folder that cannot be written or that another process writes, and the GrpoLabError that
        ended the run, after `Ended`.
        """
        try:
            with run_folder.writer(self.directory, self.config) as append:
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
            if (lost := context_lost(error)) and self.leave:
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
        return Resumed(max(0, state["step"]), state["events"], "; ".join(filter(None, why)), overrides)

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
            for event in events(training, self.commands):
                yield event
                if isinstance(event, Stepped):
                    at_top = None if event.failed else event.step + 1
                    if at_top is not None and at_top in training.steps:
                        yield from self._checkpoint(training, at_top)
        except Exception:  # stopped, perhaps while it was paused: then no checkpoint was due before
            if at_top is not None:
                yield from self._checkpoint(training, at_top)
            raise

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
            model = partial(run_folder.write_model, policy=training.policy, tokenizer=training.tokenizer)
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
