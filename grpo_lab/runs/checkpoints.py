"""The checkpoints of a run: when one is written, and how a run goes on from one, to the bit.

A checkpoint is a snapshot on disk: the state before a step, written only where weights and moments are finite and a
snapshot is due. So neither the writing of checkpoints nor a resume changes what is trained.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_lab.config import user_code
from grpo_lab.config.schema import Config
from grpo_lab.errors import ModelError, RunError
from grpo_lab.events import Checkpointed, Event, Resumed, Stepped
from grpo_lab.models import loading
from grpo_lab.runs import checkpoint_files, environment, run_folder
from grpo_lab.runs.crashes import Resume
from grpo_lab.training import saved_state
from grpo_lab.training.state import Controls, Training
from grpo_lab.training.trainer import events

FOLDER = "checkpoints"
VERSION = 1
"""Of the state in a checkpoint."""


class Checkpoints:
    """Writes and reads the checkpoints of one run folder.

    `num_events` tells the length of the log so far, and `stopping` whether the run is to end at this step.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        resume: Resume | None,
        num_events: Callable[[], int],
        stopping: Callable[[], bool],
    ) -> None:
        self.folder, self._minutes, self._resume = folder / FOLDER, config.run.checkpoint_minutes, resume
        self._num_events, self._stopping = num_events, stopping
        self._written_at, self._restarts = time.monotonic(), 0
        self._model = ""
        self._surroundings: dict[str, Any] = {}

    def begin(self, training: Training) -> Iterator[Event]:
        """Yield the event with which the run begins or goes on, and give it the state of the checkpoint.

        Raises RunError where all checkpoints are broken or of another version, and ModelError for another model.
        """
        checkpoint_files.sweep(self.folder)
        if self._minutes is not None or self._resume:
            self._model, self._surroundings = _digest(training.policy), _surroundings(training)
        if self._resume:
            yield self._resumed(training, self._resume)
        if training.resumed_at < 0:
            yield training.started()

    def events(self, training: Training, controls: Controls) -> Iterator[Event]:
        """Yield the events of a run, and write checkpoints between its steps."""
        at_top: int | None = max(0, training.resumed_at)
        try:
            for event in events(training, controls):
                yield event
                if isinstance(event, Stepped):
                    at_top = None if event.failed else event.step + 1
                if isinstance(event, Stepped) and event.step + 1 in training.steps and not event.failed:
                    yield from self.offer(training, event.step + 1)
        except Exception:  # stopped, perhaps while it was paused: then no checkpoint was due before
            if at_top is not None:
                yield from self.offer(training, at_top)
            raise

    def _resumed(self, training: Training, resume: Resume) -> Resumed:
        """Read the newest checkpoint, and say from where and with which changes the run goes on."""
        state, problems = checkpoint_files.newest_whole(self.folder, resume.below, saved_state.check_finite)
        why = [resume.reason, *problems]
        if state is None:
            state, why = {"step": -1, "events": 0, "restarts": 0}, [*why, "there is no checkpoint: from the start"]
        else:
            self._check(state)
            if not training.config.run.threads:
                torch.set_num_threads(state["surroundings"]["threads"])
                self._surroundings["threads"] = torch.get_num_threads()
            why += _differences(state["surroundings"], self._surroundings)
        checkpoint_files.remove_after(self.folder, state["step"])
        self._restarts = state["restarts"] if resume.restarts is None else resume.restarts
        again = max(0, self._restarts - state["restarts"])
        overrides = (*(training.config.run.recover * again), *resume.overrides)
        training.resumed_at, training.saved = state["step"], state | {"overrides": overrides}
        return Resumed(max(0, state["step"]), state["events"], "; ".join(filter(None, why)), overrides)

    def _check(self, state: dict[str, Any]) -> None:
        if state.get("version") != VERSION:
            raise RunError(
                f"{self.folder} holds checkpoints of format {state.get('version')}, and this version reads {VERSION}: "
                "resume with the version of grpo_lab that wrote them"
            )
        if state["model"] != self._model:
            raise ModelError(
                f"{self.folder.parent}: model.name holds other weights than those that the run began with; put those "
                "back, or begin another run"
            )

    def offer(self, training: Training, index: int) -> Iterator[Event]:
        """Write a checkpoint of the state before step `index` if one is due; a full disk stops no training."""
        due = self._minutes is not None and time.monotonic() - self._written_at >= 60 * self._minutes
        stopping = self._minutes is not None and self._stopping()
        wanted = (due or stopping) and not checkpoint_files.exists(self.folder, index)
        if not wanted or not saved_state.may_be_taken(training, index):
            return
        begun, size, problem = time.monotonic(), 0, ""
        also = partial(run_folder.write_model, policy=training.policy, tokenizer=training.tokenizer)
        try:
            size = checkpoint_files.write(self.folder, index, self._state(training, index), also)
        except OSError as error:
            problem = error.strerror or str(error)
        self._written_at = time.monotonic()
        yield Checkpointed(index, self._written_at - begun, size, problem)

    def _state(self, training: Training, index: int) -> dict[str, Any]:
        return {
            "version": VERSION,
            "step": index,
            "stage": training.stage,
            "events": self._num_events(),
            "restarts": self._restarts,
            "model": self._model,
            "surroundings": self._surroundings,
            **saved_state.taken(training),
        }


def _surroundings(training: Training) -> dict[str, Any]:
    """What the last bits of a step depend on beside the state; only texts and numbers."""
    here = environment.describe(torch.get_num_threads(), str(training.policy.device))
    files = {
        str(path): loading.sha256(path) for path in user_code.files_of(training.config.to_dict()) if path.is_file()
    }
    problems = [problem for tasks in training.tasks.values() for problem in tasks.train]
    told = json.dumps([(problem.prompt, problem.columns) for problem in problems], default=repr)
    versions = {name: here["packages"][name] for name in ("torch", "transformers")}
    tasks = hashlib.sha256(told.encode()).hexdigest()
    counts = {"threads": here["threads"], "number of processes": training.config.run.processes}
    return {**versions, "device": here["device"], **counts, **files, "tasks": tasks}


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
