"""What a cell showed, read from its events alone, and the file that keeps it as soon as it is known."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from grpo_lab.analysis.matrix.cells import Cell
from grpo_lab.errors import RunError
from grpo_lab.events import Ended, Evaluated, Event, Stepped, Verdict, encodable
from grpo_lab.runs import first_break


class Fate(StrEnum):
    """What became of a cell, in a word."""

    STOPPED = "stopped"
    """The run went through, trained, and the symptom showed in no step: the failure was stopped."""
    REFUSED = "refused"
    """The run went through and trained; the symptom showed only in steps that a guard refused."""
    IDLE = "idle"
    """The run went through without the symptom, but not one update was kept: nothing was trained."""
    SHOWN = "shown"
    """The run went through, and the symptom showed in a step that counted."""
    BROKEN = "broken"
    """The run went through, and left weights that are not finite."""
    HALTED = "halted"
    """A guard ended the run, the last healthy weights in place."""
    CRASHED = "crashed"
    """The run ended in an error, killed its process, or hung."""
    FAILED = "failed"
    """Nothing was measured: a mistake in model, data or rewards, which the message names."""


@dataclass(frozen=True)
class Result:
    """One row of the table: a cell and what its run showed. NaN where there is nothing to tell."""

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
    """The operator it died in, or nothing."""
    message: str
    """Why it ended, in a line."""
    fate: str
    """The row in a word; see `Fate`."""
    survived: bool
    """It went through, and the weights were finite at the end."""
    shown: bool
    """The scenario's symptom showed, in refused steps too."""
    finished: int
    """Steps that came to their end."""
    refused: int
    """Of these, steps that a guard refused or took back. On a healthy run each is a false alarm."""
    changed: int
    """Of these, steps in which a guard changed a value and let it go on."""
    updates: int
    """Updates that were kept."""
    first_break: str
    """The first link that was not finite, or nothing."""
    caught_by: str
    """The guard that caught it there, or nothing."""
    grad_norm: float
    """Largest gradient norm before clipping; infinite where one was not a number."""
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


def measure(cell: Cell, events: Sequence[Event], status: str, message: str = "") -> Result:
    """Read the events of a cell's run; `status` and `message` as the parent of its process knows them."""
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
    return Result(
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
    """Whether the symptom showed within the steps that its file speaks of, or over the whole run."""
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
    """Whether the last weights noted were finite, or were taken back."""
    last = next((event for event in reversed(steps) if "weights/nonfinite" in event.metrics), None)
    return not last or not last.metrics["weights/nonfinite"] or last.verdict >= Verdict.ROLL_BACK


class Journal:
    """Finished cells in a file, one JSON line each, written as they come; what was cut off at its end is dropped."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes() if path.exists() else b""
        self.results: dict[str, Result] = {}
        for number, line in enumerate(text.split(b"\n")[:-1], start=1):
            try:
                result = from_json(line.decode())
            except (ValueError, TypeError) as error:
                raise RunError(f"{path}:{number}: not a finished cell ({error}); delete that line") from error
            self.results[result.key] = result
        self._file = path.open("ab")
        self._file.truncate(text.rfind(b"\n") + 1)

    def add(self, result: Result) -> None:
        """Keep a result, on disk first."""
        self._file.write(json.dumps(encodable(dataclasses.asdict(result)), allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.results[result.key] = result

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def has(self, cell: Cell) -> bool:
        """Whether a cell is finished. One that failed is not: its mistake may be mended."""
        return cell.key in self.results and self.results[cell.key].fate != Fate.FAILED

    def of(self, cells: Iterable[Cell]) -> list[Result]:
        """The results of those cells that are finished, each under its cell's own names."""
        known = [(cell, self.results[cell.key]) for cell in cells if cell.key in self.results]
        return [dataclasses.replace(result, scenario=c.scenario, column=c.column) for c, result in known]


def from_json(line: str) -> Result:
    """The result that a line holds. Raises ValueError or TypeError when it holds none."""
    tree = json.loads(line)
    if not isinstance(tree, dict):
        raise TypeError("no table of names and values")
    for field in dataclasses.fields(Result):
        if field.type == "float" and field.name in tree:
            tree[field.name] = float(tree[field.name])
    return Result(**tree)


def to_csv(results: Iterable[Result]) -> str:
    """A tidy table, a row a cell; an empty field where there is nothing to tell."""
    names = [field.name for field in dataclasses.fields(Result)]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(names)
    for result in results:
        values = (getattr(result, name) for name in names)
        table.writerow(["" if isinstance(value, float) and math.isnan(value) else value for value in values])
    return text.getvalue()
