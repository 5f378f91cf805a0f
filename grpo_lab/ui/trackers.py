"""Experiment trackers as views of a run: TensorBoard, Weights & Biases, trackio.

Each writes in a thread of its own, from a queue of bounded length: a tracker that is slow, hangs or fails never holds
training up. Metrics keep their names; a number that is NaN or inf is written as it is, and `nonfinite/<metric>` is 1.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import queue
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_lab.config.fields import listed
from grpo_lab.errors import ConfigError, RunError, check_known
from grpo_lab.events import Ended, Evaluated, Event, Resumed, Stepped, encodable
from grpo_lab.runs.first_break import first_break
from grpo_lab.runs.session import Record

PROJECT = "grpo_lab"
MOST = 4096
"""Events that wait for a tracker; later ones are dropped and counted."""
PATIENCE = 30.0
"""Seconds that the end of a run waits for a tracker."""


class Tracker:
    """A view that hands events to a tracker in another thread, and tells in the end what that could not take."""

    def __init__(self, name: str, record: Record) -> None:
        self.name, self.dropped = name, 0
        self._writing, self._problem = TRACKERS[name](record), ""
        self._events: queue.Queue[Event] = queue.Queue(MOST)
        self._idle = threading.Event()
        threading.Thread(target=self._write_all, name=f"tracker {name}", daemon=True).start()

    def show(self, event: Event) -> None:
        """Take an event, and wait for the tracker at the end of the run alone. Raises RuntimeError once it failed."""
        if self._problem:
            raise RuntimeError(self._problem)
        self._idle.clear()
        try:
            self._events.put(event, block=isinstance(event, Ended), timeout=PATIENCE)
        except queue.Full:
            self.dropped += 1
        if isinstance(event, Ended):
            there = self._idle.wait(PATIENCE)
            if self._problem:
                raise RuntimeError(self._problem)
            if lost := self.dropped + (0 if there else self._events.qsize() + 1):
                said = f"{self.name}: {lost} events were not written; `grpo-lab export` writes them later"
                warnings.warn(said, stacklevel=2)

    def _write_all(self) -> None:
        try:
            while True:
                self._writing.show(event := self._events.get())
                if isinstance(event, Ended):
                    self._idle.set()  # a run that goes on has events after this one
        except Exception as error:  # whatever a tracker raises, its view reports it, and training goes on
            self._problem = f"{self.name}: {type(error).__name__}: {error}"
            self._idle.set()


class Writing:
    """A view that writes each event at once; `Tracker` puts it into a thread, and an export needs none."""

    def __init__(self, record: Record) -> None:
        self.record, self._folder = record, record.directory
        self._config = encodable(record.config.to_dict())
        self._run: Any = None
        """What the tracker gave for the run."""
        self._begun = False
        self._steps: list[Stepped] = []

    def _begin(self, again_from: int | None = None) -> None:
        """Open the run, or let it go on from a step, in place of what was written from that step on."""
        raise NotImplementedError

    def _log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write numbers and texts of a step."""
        raise NotImplementedError

    def _close(self, facts: dict[str, str]) -> None:
        """End the run, with facts about its end."""
        raise NotImplementedError

    def show(self, event: Event) -> None:
        """Write an event. Raises whatever the tracker raises."""
        if isinstance(event, Resumed):
            self._begin(event.step)
        elif not self._begun:
            self._begin()
        self._begun = True
        if isinstance(event, Stepped):
            self._steps.append(event)
            broken = {f"nonfinite/{name}": 1.0 for name, value in event.metrics.items() if not math.isfinite(value)}
            state = {"verdict": float(event.verdict), "updates": float(event.updates)}
            acted = {f"guards/{each.name}": f"{each.verdict.name}: {each.reason}" for each in event.actions}
            self._log(event.step, {**event.metrics, **broken, **state, **acted})
        elif isinstance(event, Evaluated):
            self._log(event.step, {"held_out_reward": event.reward})
        elif isinstance(event, Resumed):
            self._steps = [step for step in self._steps if step.step < event.step]
            self._log(event.step, {"resumed": event.reason})
        elif isinstance(event, Ended):
            found = first_break(self._steps)
            where = f"step {found.step}: {found.link}" if found else "none"
            self._begun = False
            self._close({"end": event.status, "message": event.message, "first_break": where})


class TensorBoard(Writing):
    """Event files in the run's folder, under `tensorboard`."""

    def _begin(self, again_from: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = self._folder / "tensorboard"
        if self._begun:
            self._run.close()
        # With purge_step, TensorBoard leaves out what older files hold from that step on.
        self._run = SummaryWriter(str(folder), purge_step=(again_from or 0) if folder.exists() else None)
        if not self._begun:
            self._log(0, {"config": json.dumps(self._config, indent=1)})

    def _log(self, step: int, values: Mapping[str, float | str]) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self._run.add_text(name, f"```\n{value}\n```", step)
            else:
                self._run.add_scalar(name, value, step)

    def _close(self, facts: dict[str, str]) -> None:
        self._log(0, facts)
        self._run.close()


class WandB(Writing):
    """A run of Weights & Biases, found again by the run's folder when it goes on; files are under `wandb` there.

    Steps that it has already are left out; both points of a step that was made twice stay.
    """

    _from = 0

    def _begin(self, again_from: int | None = None) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        if not self._begun:
            self._run = wandb.init(
                project=PROJECT,
                name=self._folder.name,
                id=_identity(self._folder),
                resume="allow",
                dir=str(self._folder),
                config=self._config,
                settings=wandb.Settings(silent=True, console="off"),
            )
            self._run.define_metric("*", step_metric="step")
            last = self._run.summary.get("step") if self._run.resumed else None
            self._from = 0 if last is None else int(last) + 1
        if again_from is not None:
            self._from = min(self._from, again_from)

    def _log(self, step: int, values: Mapping[str, float | str]) -> None:
        if step >= self._from:
            self._run.log({"step": step, **values})

    def _close(self, facts: dict[str, str]) -> None:
        self._run.summary.update(facts)
        self._run.finish(exit_code=int(facts["end"] in ("crashed", "failed")))


class Trackio(Writing):
    """A run of trackio, in its own local database; both points of a step that was made twice stay."""

    def _begin(self, again_from: int | None = None) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._run = trackio
        if not self._begun:
            name = f"{self._folder.name}-{_identity(self._folder)}"
            trackio.init(project=PROJECT, name=name, config=self._config, resume="allow", embed=False)

    def _log(self, step: int, values: Mapping[str, float | str]) -> None:
        self._run.log(dict(values), step=step)

    def _close(self, facts: dict[str, str]) -> None:
        self._run.log(facts)
        self._run.finish()


TRACKERS: dict[str, type[Writing]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
"""By the name that `--track` takes."""


def check(names: Sequence[str]) -> None:
    """Raise ConfigError for a tracker that does not exist, or is not installed."""
    for name in names:
        check_known("tracker", [name], TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"tracker {name} is not installed: pip install {name}")


def views(names: str, record: Record) -> list[Tracker]:
    """A view for each of these trackers, as `a,b`. Raises ConfigError as `check` does.

    >>> views("", Record(None, Path("runs/a")))  # type: ignore[arg-type]
    []
    """
    check(wanted := listed(names))
    return [Tracker(name, record) for name in wanted]


def export(name: str, record: Record, folder: Path) -> None:
    """Write a run that is over, or was cut off, to a tracker, whose files are in `folder`.

    Raises ConfigError as `check` does, and RunError where the tracker cannot write.
    """
    check([name])
    view = TRACKERS[name](Record(record.config, folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for event in record.events if record.ended else [*record.events, Ended("stopped", "cut off")]:
            view.show(event)
    except Exception as error:  # whatever a tracker raises: the user's set-up lacks something
        raise RunError(f"{name} cannot write to {folder}: {type(error).__name__}: {error}") from error


def _identity(folder: Path) -> str:
    """An id of a run that its folder keeps when it goes on."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
