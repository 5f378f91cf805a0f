"""The measurement of a cell from its events alone, the file that keeps it at once, and the table of all."""

import dataclasses
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pandas as pd

from grpo_lab.analysis.matrix.cells import HEALTHY, HELD_OUT, NONE, REPORTED, STABLE, Cell
from grpo_lab.config.algorithms import algorithm_names
from grpo_lab.errors import RunError
from grpo_lab.events import Event, Stepped, encodable
from grpo_lab.runs.outcome import Learned, MeanReward, Outcome, change, outcome
from grpo_lab.runs.run_folder import cut_half_line
from grpo_lab.training.guards import GUARDS


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
    problems: int = HELD_OUT
    """Held-out problems, of which the rewards are means."""
    noise: float = 0.0
    """Variance of the reward of one problem, by the steps; 0 in older rows."""

    @property
    def gained(self) -> float:
        """Held-out reward gained."""
        return self.after - self.before

    @property
    def learned(self) -> bool:
        """Whether the held-out reward rose by more than two standard errors."""
        before, after = (MeanReward(reward, self.problems) for reward in (self.before, self.after))
        return change(before, after, self.noise) is Learned.LEARNED

    @property
    def stopped(self) -> bool:
        """Whether the failure was stopped."""
        return self.fate == Fate.STOPPED


def measure(cell: Cell, events: Sequence[Event], status: str, message: str = "") -> Measurement:
    """The measurement of a run from its events; `status` and `message` come from the parent of its process."""
    found = outcome(events)
    steps = [event for event in events if isinstance(event, Stepped)]
    kept = [event for event in steps if not event.refused]
    times = [event.metrics["step_time"] for event in steps if not event.failed]
    crash = found.crash.operator if found.crash else ""
    shown, counted = (_shown(cell, crash, some) for some in (steps, kept))
    broken = found.first_break if found.first_break and found.first_break.step >= 0 else None
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
        fate=_fate(status, found, shown, counted),
        survived=status == "done" and not found.poisoned,
        shown=shown,
        finished=found.finished,
        refused=found.refused,
        changed=found.changed,
        updates=found.updates,
        first_break=broken.link if broken else "",
        caught_by=broken.caught_by if broken else "",
        grad_norm=found.grad_norm,
        before=found.before,
        after=found.after,
        seconds=statistics.median(times) if times else math.nan,
        problems=found.problems,
        noise=found.noise,
    )


def _shown(cell: Cell, crash: str, steps: Sequence[Stepped]) -> bool:
    """Whether the symptom showed within the steps that the scenario's file asks for, or over the whole run."""
    first = [event.metrics for event in steps if event.step < cell.within]
    whole = [event.metrics for event in steps]
    return bool(cell.expect) and any(cell.expect.shown(crash, metrics) for metrics in (first, whole))


def _fate(status: str, found: Outcome, shown: bool, counted: bool) -> Fate:
    ends = {"stopped": Fate.HALTED, "failed": Fate.FAILED}
    if status != "done":
        return ends.get(status, Fate.CRASHED)
    if found.poisoned:
        return Fate.BROKEN
    if counted:
        return Fate.SHOWN
    if not found.updates:
        return Fate.IDLE
    return Fate.REFUSED if shown else Fate.STOPPED


class Journal:
    """Finished cells in a file, one JSON line each; a line that was cut off at the end is dropped.

    Raises RunError for any other line that is no finished cell.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.results: dict[str, Measurement] = {}
        cut_half_line(path)
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
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


class Findings:
    """Results by scenario and column.

    A run that went well counts for its guards only if the unguarded run of the same seed failed.
    """

    def __init__(self, results: Sequence[Measurement]) -> None:
        self._cells: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
        for result in results:
            self._cells[result.scenario, result.column].append(result)
        self.results = list(results)
        found = dict.fromkeys(result.scenario for result in results)
        self.scenarios = [name for name in found if name != HEALTHY]
        self.has_healthy = HEALTHY in found
        self.columns = list(dict.fromkeys(result.column for result in results))
        self.seeds = len({result.seed for result in results})
        self.guards = [name for name in self.columns if name in GUARDS]
        """The columns that hold one guard alone."""
        known = algorithm_names()
        self.algorithms = [name for name in self.columns if name in known or name.endswith(".toml")]
        """The columns that hold an algorithm."""
        self.of_guards = bool(self.guards or STABLE in self.columns or not self.algorithms)
        """Whether guards were measured, and not algorithms alone."""

    def cells(self, scenario: str, column: str) -> list[Measurement]:
        """The runs of a scenario under a column, one a seed."""
        return self._cells[scenario, column]

    def telling(self, scenario: str, column: str) -> list[Measurement]:
        """The runs that count: those that failed, and those that went well although the unguarded run failed."""
        failing = {result.seed for result in self.cells(scenario, NONE) if not result.stopped}
        return [result for result in self.cells(scenario, column) if not result.stopped or result.seed in failing]

    def fates(self, scenario: str, column: str) -> Counter[str]:
        """The number of runs with each fate, among those that count."""
        return Counter(result.fate for result in self.telling(scenario, column))

    def share(self, scenario: str, column: str) -> float:
        """The share of runs that stopped the failure, among those that count; NaN if none counts."""
        fates = self.fates(scenario, column)
        return fates[Fate.STOPPED] / fates.total() if fates else math.nan

    def stoppers(self, scenario: str, columns: Sequence[str]) -> list[str]:
        """Those of the columns that stop the failure in every run that counts."""
        return [name for name in columns if self.share(scenario, name) == 1]

    def alarms(self, column: str) -> int:
        """Steps of the healthy run that were refused, over all seeds."""
        return sum(result.refused for result in self.cells(HEALTHY, column))

    def word(self, scenario: str, column: str) -> str:
        """The fate of a scenario under a column, or `stopped 2, crashed 1` if the seeds differ."""
        cells = self.cells(scenario, column)
        fates = self.fates(scenario, column) if self.cells(scenario, NONE) else Counter(each.fate for each in cells)
        if not fates:
            return "did not fail here" if cells else "-"
        return ", ".join(f"{fate} {count}" if len(fates) > 1 else fate for fate, count in fates.most_common())


def summary(found: Findings) -> list[list[str]]:
    """A table for the terminal, its header first: the guards, or the algorithms, that stop each failure."""
    alone, more = (found.guards, [REPORTED, STABLE]) if found.of_guards else (found.algorithms, [])
    rows = [["scenario", "no guard", "stopped by one guard" if found.of_guards else "stopped by an algorithm", *more]]
    for name in found.scenarios:
        stoppers = ", ".join(found.stoppers(name, alone)) or "none"
        rows.append([name, found.word(name, NONE), stoppers, *(found.word(name, column) for column in more)])
    return rows
