"""The measurement of a cell, from its events alone, and the file that keeps it at once."""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pandas as pd

from grpo_lab.analysis.matrix.cells import Cell
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import RunError
from grpo_lab.events import Ended, Evaluated, Event, Stepped, encodable
from grpo_lab.runs import first_break

GAIN = 0.15
"""Held-out reward that a run gains at least if it counts as one that learned."""


class Fate(StrEnum):
    """The result of a cell in one word; docs/matrix/findings.md explains each."""

    STOPPED = "stopped"
    REFUSED = "refused"
    IDLE = "idle"
    SHOWN = "shown"
    BROKEN = "broken"
    HALTED = "halted"
    CRASHED = "crashed"
    FAILED = "failed"


@dataclass(frozen=True)
class Measurement:
    """One row of the table: a cell and the measurements of its run, NaN if there are none."""

    key: str
    scenario: str
    column: str
    guards: str
    """The guards that were on, in order, joined by +."""
    seed: int
    asked: int
    """Steps asked for."""
    status: str
    """How the run ended: `done`, `stopped` (by a guard), `crashed`, `failed`, `hung`, or `died: SIGABRT`."""
    crash: str
    """The operator that raised the error, or an empty text."""
    message: str
    """Why the run ended, in one line."""
    fate: str
    """The result in one word; see `Fate`."""
    survived: bool
    """The run went through, and its last weights were finite."""
    shown: bool
    """The scenario's symptom showed, perhaps only in refused steps."""
    finished: int
    """Steps that ended without an error."""
    refused: int
    """Of these, steps that a guard refused or rolled back. On a healthy run each is a false alarm."""
    changed: int
    """Of these, steps in which a guard changed a value and did not refuse."""
    updates: int
    """Updates that were kept."""
    first_break: str
    """The first link that was not finite, or an empty text."""
    caught_by: str
    """The guard that caught it there, or an empty text."""
    grad_norm: float
    """Largest gradient norm before clipping; infinite if one was NaN."""
    before: float
    """Mean reward of held-out problems before the first step."""
    after: float
    """The same after the last step of a run that went through."""
    seconds: float
    """Median seconds a step."""

    @property
    def gained(self) -> float:
        """Held-out reward gained."""
        return self.after - self.before

    @property
    def learned(self) -> bool:
        """Whether the held-out reward rose by GAIN or more."""
        return self.gained >= GAIN

    @property
    def stopped(self) -> bool:
        """Whether the failure was stopped."""
        return self.fate == Fate.STOPPED


def measure(cell: Cell, events: Sequence[Event], status: str, message: str = "") -> Measurement:
    """The measurement of a run from its events; `status` and `message` come from the parent of its process."""
    steps = [event for event in events if isinstance(event, Stepped)]
    whole = [event for event in steps if not event.failed]
    kept = [event for event in steps if not event.refused]
    ended = next((event for event in events if isinstance(event, Ended)), None)
    crash = ended.crash.operator if ended and ended.crash else ""
    finite = _finite_at_the_end(whole)
    updates = sum(event.updates for event in steps)
    shown, counted = (_shown(cell, crash, some) for some in (steps, kept))
    found = first_break.first_break(steps)
    norms = [event.metrics["grad_norm"] for event in steps if "grad_norm" in event.metrics]
    rewards = [event.reward for event in events if isinstance(event, Evaluated)]
    return Measurement(
        key=cell.key,
        scenario=cell.scenario,
        column=cell.column,
        guards="+".join(cell.config.guards),
        seed=cell.seed,
        asked=cell.config.run.num_steps,
        status=status,
        crash=crash,
        message=message,
        fate=_fate(status, finite, shown, counted, updates),
        survived=status == "done" and finite,
        shown=shown,
        finished=len(whole),
        refused=sum(event.refused for event in whole),
        changed=sum(event.verdict == Verdict.CHANGED for event in whole),
        updates=updates,
        first_break=found.link if found else "",
        caught_by=found.caught_by if found else "",
        grad_norm=max((math.inf if math.isnan(norm) else norm for norm in norms), default=math.nan),
        before=rewards[0] if rewards else math.nan,
        after=rewards[1] if len(rewards) > 1 else math.nan,
        seconds=statistics.median(event.metrics["step_time"] for event in whole) if whole else math.nan,
    )


def _shown(cell: Cell, crash: str, steps: Sequence[Stepped]) -> bool:
    """Whether the symptom showed within the steps that the scenario's file asks for, or over the whole run."""
    first = [event.metrics for event in steps if event.step < cell.within]
    whole = [event.metrics for event in steps]
    return bool(cell.expect) and any(cell.expect.shown(crash, metrics) for metrics in (first, whole))


def _fate(status: str, finite: bool, shown: bool, counted: bool, updates: int) -> Fate:
    ends = {"stopped": Fate.HALTED, "failed": Fate.FAILED}
    if status != "done":
        return ends.get(status, Fate.CRASHED)
    if not finite:
        return Fate.BROKEN
    if counted:
        return Fate.SHOWN
    if not updates:
        return Fate.IDLE
    return Fate.REFUSED if shown else Fate.STOPPED


def _finite_at_the_end(steps: Sequence[Stepped]) -> bool:
    """Whether the last noted weights were finite, or were rolled back."""
    last = next((event for event in reversed(steps) if "weights/nonfinite" in event.metrics), None)
    return not last or not last.metrics["weights/nonfinite"] or last.verdict >= Verdict.ROLL_BACK


class Journal:
    """Finished cells in a file, one JSON line each; a line that was cut off at the end is dropped.

    Raises RunError for any other line that is no finished cell.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.results: dict[str, Measurement] = {}
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith(b"\n"):
            path.write_bytes(b"".join(lines := lines[:-1]))
        for number, line in enumerate(lines, start=1):
            try:
                result = from_json(line.decode())
            except (ValueError, TypeError) as error:
                raise RunError(f"{path}:{number}: not a finished cell ({error}); delete that line") from error
            self.results[result.key] = result

    def add(self, result: Measurement) -> None:
        """Keep a result, on disk first."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(encodable(dataclasses.asdict(result)), allow_nan=False) + "\n")
        self.results[result.key] = result

    def has(self, cell: Cell) -> bool:
        """Whether a cell is finished. A failed cell is not, because its mistake may have been corrected."""
        return cell.key in self.results and self.results[cell.key].fate != Fate.FAILED

    def of(self, cells: Iterable[Cell]) -> list[Measurement]:
        """The results of the finished cells, each with the scenario and column of its cell."""
        known = [(cell, self.results[cell.key]) for cell in cells if cell.key in self.results]
        return [dataclasses.replace(result, scenario=c.scenario, column=c.column) for c, result in known]


def from_json(line: str) -> Measurement:
    """The result in a line. Raises ValueError or TypeError for a line without one."""
    tree = json.loads(line)
    if not isinstance(tree, dict):
        raise TypeError("no table of names and values")
    for field in dataclasses.fields(Measurement):
        if field.type is float and field.name in tree:
            tree[field.name] = float(tree[field.name])
    return Measurement(**tree)


def to_csv(results: Sequence[Measurement]) -> str:
    """A tidy table, one row a cell; a field is empty if there is no measurement."""
    names = [field.name for field in dataclasses.fields(Measurement)]
    return pd.DataFrame(results, columns=names).to_csv(index=False, lineterminator="\n")
