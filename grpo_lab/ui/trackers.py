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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from grpo_lab.errors import ConfigError, RunError, unknown
from grpo_lab.events import Ended, Evaluated, Event, Resumed, Started, Stepped, encodable
from grpo_lab.runs.first_break import first_break
from grpo_lab.runs.session import Record

PROJECT = "grpo_lab"
MOST = 4096
"""Events that wait for a tracker; later ones are dropped and counted."""
PATIENCE = 30.0
"""Seconds that the end of a run waits for a tracker."""


class Writer(Protocol):
    """A run in a tracker."""

    def begin(self, config: str) -> None:
        """Begin the run at its first step, with its config as text."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a step."""

    def text(self, step: int, name: str, value: str) -> None:
        """Write a text of a step."""

    def again_from(self, step: int) -> None:
        """Let the run go on from a step, in place of what was written from it on."""

    def close(self, facts: Mapping[str, str]) -> None:
        """End the run, with facts about its end."""


class Tracker:
    """A view that hands events to a writer in another thread, and tells in the end what that could not take."""

    def __init__(self, name: str, record: Record) -> None:
        self.name, self.dropped = name, 0
        self._writing, self._problem = Writing(name, record), ""
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
            self._finish()

    def _finish(self) -> None:
        there = self._idle.wait(PATIENCE)
        if self._problem:
            raise RuntimeError(self._problem)
        if lost := self.dropped + (0 if there else self._events.qsize() + 1):
            warnings.warn(
                f"{self.name}: {lost} events were not written; `grpo-lab export` writes them later", stacklevel=2
            )

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

    def __init__(self, name: str, record: Record) -> None:
        self._make, self._record = TRACKERS[name], record
        self._writer: Writer | None = None
        self._steps: list[Stepped] = []

    def show(self, event: Event) -> None:
        """Write an event. Raises whatever the tracker raises."""
        self._writer = writer = self._writer or self._make(self._record)
        if isinstance(event, Started):
            writer.begin(json.dumps(encodable(event.config), indent=1))
        elif isinstance(event, Stepped):
            self._steps.append(event)
            writer.numbers(event.step, numbers_of(event))
            for action in event.actions:
                writer.text(event.step, f"guards/{action.name}", f"{action.verdict.name}: {action.reason}")
        elif isinstance(event, Evaluated):
            writer.numbers(event.step, {"held_out_reward": event.reward})
        elif isinstance(event, Resumed):
            self._steps = [step for step in self._steps if step.step < event.step]
            writer.again_from(event.step)
            writer.text(event.step, "resumed", event.reason)
        elif isinstance(event, Ended):
            found = first_break(self._steps)
            where = f"step {found.step}: {found.link}" if found else "none"
            self._writer = None
            writer.close({"end": event.status, "message": event.message, "first_break": where})


def numbers_of(event: Stepped) -> dict[str, float]:
    """The metrics of a step, its verdict as a number, and a 1 for each metric that is not finite."""
    broken = {f"nonfinite/{name}": 1.0 for name, value in event.metrics.items() if not math.isfinite(value)}
    return {**event.metrics, **broken, "verdict": float(event.verdict), "updates": float(event.updates)}


class TensorBoard:
    """Event files in the run's folder, under `tensorboard`."""

    def __init__(self, record: Record) -> None:
        self._folder, self._writer = record.directory / "tensorboard", cast(Any, None)

    def begin(self, config: str) -> None:
        """See Writer."""
        self.again_from(0)
        self.text(0, "config", config)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """See Writer."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, step: int, name: str, value: str) -> None:
        """See Writer."""
        self._writer.add_text(name, f"```\n{value}\n```", step)

    def again_from(self, step: int) -> None:
        """See Writer; TensorBoard leaves out what older files hold from this step on."""
        from torch.utils.tensorboard import SummaryWriter

        if self._writer:
            self._writer.close()
        self._writer = SummaryWriter(str(self._folder), purge_step=step if self._folder.exists() else None)

    def close(self, facts: Mapping[str, str]) -> None:
        """See Writer."""
        for name, value in facts.items():
            self.text(0, name, value)
        self._writer.close()


class WandB:
    """A run of Weights & Biases, found again by the run's folder when it goes on; files are under `wandb` there."""

    def __init__(self, record: Record) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._run: Any = wandb.init(
            project=PROJECT,
            name=record.directory.name,
            id=_identity(record.directory),
            resume="allow",
            dir=str(record.directory),
            config=encodable(record.config.to_dict()),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric="step")
        last = self._run.summary.get("step") if self._run.resumed else None
        self._from = 0 if last is None else int(last) + 1

    def begin(self, config: str) -> None:
        """See Writer; the run has its config since it was made."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """See Writer; steps that the tracker has already are left out."""
        if step >= self._from:
            self._run.log({"step": step, **values})

    def text(self, step: int, name: str, value: str) -> None:
        """See Writer."""
        if step >= self._from:
            self._run.log({"step": step, name: value})

    def again_from(self, step: int) -> None:
        """See Writer; both points of a step that was written twice stay."""
        self._from = min(self._from, step)

    def close(self, facts: Mapping[str, str]) -> None:
        """See Writer."""
        self._run.summary.update(facts)
        self._run.finish(exit_code=int(facts["end"] in ("crashed", "failed")))


class Trackio:
    """A run of trackio, in its own local database."""

    def __init__(self, record: Record) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._trackio = trackio
        name, config = f"{record.directory.name}-{_identity(record.directory)}", encodable(record.config.to_dict())
        trackio.init(project=PROJECT, name=name, config=config, resume="allow", embed=False)

    def begin(self, config: str) -> None:
        """See Writer; the run has its config since it was made."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """See Writer."""
        self._trackio.log(dict(values), step=step)

    def text(self, step: int, name: str, value: str) -> None:
        """See Writer."""
        self._trackio.log({name: value}, step=step)

    def again_from(self, step: int) -> None:
        """See Writer; both points of a step that was written twice stay."""

    def close(self, facts: Mapping[str, str]) -> None:
        """See Writer."""
        self._trackio.log(dict(facts))
        self._trackio.finish()


TRACKERS: dict[str, Callable[[Record], Writer]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
"""By the name that `--track` takes: a writer for a run."""


def check(names: Sequence[str]) -> None:
    """Raise ConfigError for a tracker that does not exist, or is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"tracker {name} is not installed: pip install {name}")


def views(names: str, record: Record) -> list[Tracker]:
    """A view for each of these trackers, as `a,b`. Raises ConfigError as `check` does.

    >>> views("", Record(None, Path("runs/a")))  # type: ignore[arg-type]
    []
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    check(wanted)
    return [Tracker(name, record) for name in wanted]


def export(name: str, record: Record, folder: Path) -> None:
    """Write a run that is over, or was cut off, to a tracker, whose files are in `folder`.

    Raises ConfigError as `check` does, and RunError where the tracker cannot write.
    """
    check([name])
    view = Writing(name, Record(record.config, folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for event in record.events if record.ended else [*record.events, Ended("stopped", "cut off")]:
            view.show(event)
    except Exception as error:  # whatever a tracker raises: the user's set-up lacks something
        raise RunError(f"{name} cannot write to {folder}: {type(error).__name__}: {error}") from error


def _identity(folder: Path) -> str:
    """An id of a run that its folder keeps when it goes on."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
