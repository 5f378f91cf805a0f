"""The cells of the matrix: a scenario, or a healthy run, under guards or an algorithm, with one seed; their results.

Cells are made in processes that may die. A scenario's own claims are tried here too: it fails on every seed, each cure
stops it, each heal lets it learn, and no decoy helps.
"""

import dataclasses
import hashlib
import json
import math
import statistics
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from grpo_lab.analysis.markdown import plain
from grpo_lab.config.algorithms import algorithm_names, settings_for
from grpo_lab.config.catalog import Expectation, Scenario, guards_named, preset, preset_names, scenario, scenario_names
from grpo_lab.config.schema import Config, Switches
from grpo_lab.config.user_code import is_own
from grpo_lab.errors import GrpoLabError, RunError, check_known
from grpo_lab.events import Ended, Event, Stepped, encodable, read
from grpo_lab.runs.child import Child
from grpo_lab.runs.clusters import Cluster, WorkerLost, of_this_worker, side_by_side
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.runs.outcome import Learned, MeanReward, Outcome, change, outcome
from grpo_lab.runs.run_folder import cut_half_line, next_free
from grpo_lab.runs.session import Session
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.trainer import train

HEALTHY, NONE, STABLE, REPORTED = "healthy", "none", "stable", "reported_fix"
UNHEALED, HEALED = "unhealed", "healed"
"""Columns of the trial of a scenario's heal: the guards of `stable` without it and with it."""
STEPS, AT_LEAST = 30, 12
"""Default steps, above the 10 of a warm-up: of a healthy run, and of a scenario whose file asks for fewer."""
HELD_OUT = 250
"""Held-out problems before the first step and after the last, whose rewards show the progress."""
IDLES = {"kl_place": "kl_estimator"}
"""Settings of algorithms by which another setting has no effect: a KL in the reward leaves none in the loss."""


@dataclass(frozen=True)
class Cell:
    """One run of the matrix. `expect` is the symptom of its scenario; a healthy run has none.

    `within` is the number of steps in which the scenario's file expects the symptom.
    """

    scenario: str
    column: str
    seed: int
    config: Config
    expect: Expectation | None = None
    within: int = STEPS

    @cached_property
    def key(self) -> str:
        """A digest of the settings of the run and of its symptom, without the column's name."""
        expect = dataclasses.asdict(self.expect) if self.expect else None
        parts = [self.config.to_dict(), expect, self.within]
        return hashlib.sha256(json.dumps(encodable(parts), sort_keys=True).encode()).hexdigest()[:16]


def columns(guards: Sequence[str] = ()) -> dict[str, Switches]:
    """The columns: no guard, each alone, the reported guards, `stable`, and `stable` without each of its own.

    With `guards` only the columns about these: each alone, and `stable` without each; a preset's name or a user's
    `file.py:Mine` is a column too. Raises ConfigError for a guard that does not exist.

    >>> list(columns(["warm_up", "original"]))
    ['none', 'warm_up', 'original', 'stable', 'stable - warm_up']
    """
    known = [*GUARDS, *preset_names(), NONE]
    check_known("guard", (name for name in guards if not is_own(name)), known)
    stable, order = preset(STABLE).guards, list(GUARDS)
    wanted = sorted(guards or [*GUARDS, REPORTED], key=lambda name: order.index(name) if name in order else len(order))
    found: dict[str, Switches] = {NONE: {}} | {name: guards_named(name) for name in wanted} | {STABLE: stable}
    for name in stable:
        if name in wanted:
            found[without(name)] = {other: values for other, values in stable.items() if other != name}
    return found


def without(guard: str) -> str:
    """The name of the column that leaves a guard out of `stable`."""
    return f"{STABLE} - {guard}"


def replaced(case: Scenario, name: str) -> list[str]:
    """The settings of an algorithm that take the place of a scenario's cause: those that its cures and heals change.

    >>> replaced(scenario("kl-hinge"), "rloo"), replaced(scenario("train-001"), "rloo")
    (['loss.kl_place=reward'], [])
    """
    changes = [change for row in (*case.cures, *(heal.change for heal in case.heals)) for change in row]
    healing = {change.partition("=")[0] for change in changes}
    before = vars(case.config().loss)
    found = {key: value for key, value in settings_for(name, before).items() if value != before[key]}
    return [
        f"loss.{key}={plain(value)}"
        for key, value in found.items()
        if {f"loss.{key}", f"loss.{IDLES.get(key, key)}"} & healing
    ]


def visible(expect: Expectation | None, config: Config) -> Expectation | None:
    """The symptom without the metrics that a run of this config never logs: without PPO's clip no token is clipped."""
    if not expect or config.loss.surrogate == "clip":
        return expect
    logged = {name: value for name, value in expect.metrics.items() if not name.startswith("clip_ratio/")}
    return dataclasses.replace(expect, metrics=logged)


def rows(scenarios: Sequence[str] = ()) -> list[str]:
    """The given scenarios, or the healthy run and all scenarios. Raises ConfigError for an unknown one."""
    known = [HEALTHY, *scenario_names()]
    check_known("scenario", (name for name in scenarios if not name.endswith(".toml")), known)
    return list(scenarios) or known


def cells(
    scenarios: Iterable[str],
    guard_sets: Mapping[str, Switches],
    seeds: int = 3,
    steps: int | None = None,
    overrides: tuple[str, ...] = (),
    heals: bool = False,
    algorithms: Sequence[str] = (),
) -> list[Cell]:
    """Every scenario under every column with as many seeds; STEPS explains the default number of steps.

    With `heals` also under UNHEALED and HEALED, as long as the scenario's trial.
    Each of `algorithms` is a column without guards; it has no cell where it has replaced the scenario's cause.
    Raises ConfigError for an unknown scenario or algorithm.
    """
    length = [f"run.num_steps={steps}"] if steps else []
    shared = (*length, f"run.num_eval={HELD_OUT}", "run.threads=1", "run.device=cpu", *overrides)
    found = []
    for name in scenarios:
        case = None if name == HEALTHY else scenario(name)
        base = case.config() if case else preset(STABLE).with_(f"run.name={HEALTHY}", f"run.num_steps={STEPS}")
        expect, within = case.expect if case else None, base.run.num_steps
        base = base.with_(f"run.num_steps={max(within, AT_LEAST)}")
        configs = {column: base.with_guards(guards) for column, guards in guard_sets.items()}
        for each in algorithms:
            if not (case and replaced(case, each)):
                configs[each] = base.with_guards({}).with_algorithm(each)
        if heals and case and case.heals:
            configs[UNHEALED] = case.config(guards=STABLE).merged(case.trial)
            configs[HEALED] = case.config(guards=STABLE, heal=True)
        configs = {column: config.with_(*shared) for column, config in configs.items()}
        for seed in range(seeds):  # outside, so that a busy minute does not slow a whole column
            for column, config in configs.items():
                seeded = config.with_(f"run.seed={seed}")
                found.append(Cell(base.run.name, column, seed, seeded, visible(expect, config), within))
    return found


def only(columns: Sequence[str] | None, found: list[Cell]) -> list[Cell]:
    """The cells of these columns, or all. Raises ConfigError for a column that no cell has."""
    known = list(dict.fromkeys(cell.column for cell in found))
    check_known("column", columns or (), known)
    return [cell for cell in found if cell.column in (columns or known)]


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
    same = ("finished", "refused", "changed", "updates", "grad_norm", "before", "after", "problems", "noise")
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
        first_break=broken.link if broken else "",
        caught_by=broken.caught_by if broken else "",
        seconds=statistics.median(times) if times else math.nan,
        **{name: getattr(found, name) for name in same},
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
                result = read(Measurement, dict(json.loads(line)))
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


class Pool:
    """Child processes that run cell after cell, at most one for each thread that calls `run`.

    `limit` is the number of seconds that a cell may take. `keep` is a folder for the runs; without it they are removed.
    """

    def __init__(self, limit: float, keep: Path | None = None) -> None:
        self._limit, self._keep = limit, keep
        self._idle: list[Child] = []
        self._busy: set[Child] = set()

    def run(self, cell: Cell) -> Measurement:
        """The measurement of a cell, also if its process died or hung."""
        child = self._take()
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            child.stop(at_once=True)

        timer = threading.Timer(self._limit, give_up)
        timer.start()
        try:
            with self._folder(cell) as directory:
                session = Session(cell.config, directory, child=child)
                with suppress(GrpoLabError):  # a user's mistake, recorded in the session's last event
                    session.run()
        finally:
            timer.cancel()
            self._busy.discard(child)
            self._idle.append(child)
        if hung.is_set():
            child.wait()
            return measure(cell, session.events, "hung", f"no end within {self._limit:g} s")
        ended = session.ended or Ended("failed", "no end was recorded")
        died = not child.alive and ended.message == child.last_words
        status = f"died: {child.signal or f'exit code {child.process.returncode}'}" if died else ended.status
        return measure(cell, session.events, status, " ".join(ended.message.split())[:200])

    def stop(self) -> None:
        """End the running cells at once."""
        for child in list(self._busy):
            child.stop(at_once=True)

    def close(self) -> None:
        """End the idle children."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Child:
        child = None
        with suppress(IndexError):  # none is idle; another thread may have taken the last one
            child = self._idle.pop()
        if not child or not child.alive:
            child = Child()
            child.ready()  # imports take many seconds on a busy machine, and do not count towards the limit
        self._busy.add(child)
        return child

    def _folder(self, cell: Cell) -> AbstractContextManager[str | Path]:
        if self._keep:
            return nullcontext(next_free(self._keep / cell.scenario / f"{cell.column}, seed {cell.seed}"))
        return tempfile.TemporaryDirectory(prefix="grpo-lab-", ignore_cleanup_errors=True)


class FarPool:
    """Workers of a cluster that run cells, each in a child process of its own, as `Pool` does here."""

    def __init__(self, cluster: Cluster, limit: float, keep: Path | None = None) -> None:
        self._cluster, self._given = cluster, (limit, keep.resolve() if keep else None)

    def run(self, cell: Cell) -> Measurement:
        """The measurement of a cell, also if its workers died. Raises RunError for a worker with other code."""
        try:
            return self._cluster.run(run_cell, cell, *self._given)
        except WorkerLost as error:
            return measure(cell, [], "died: worker", str(error))

    def close(self) -> None:
        """Leave the cluster, and the running cells."""
        self._cluster.close()

    stop = close


def run_cell(cell: Cell, limit: float, keep: Path | None) -> Measurement:
    """The measurement of a cell, on a worker, whose child waits for the next cell."""
    return of_this_worker(Pool, limit, keep).run(cell)


def run_all(
    cells: Sequence[Cell],
    journal: Journal,
    pool: Pool | FarPool,
    jobs: int,
    tell: Callable[[Measurement], None] = lambda result: None,
) -> bool:
    """Run the cells that are not finished, `jobs` at a time, keep each result at once, and return whether all are.

    After Ctrl-C the running cells finish and no other starts; a second Ctrl-C ends them at once.
    """
    todo = {cell.key: cell for cell in cells if not journal.has(cell)}
    finished = 0
    with closing(side_by_side(list(todo.values()), pool.run, jobs, pool.stop)) as results:
        for result in results:
            journal.add(result)
            tell(result)
            finished += 1
    return finished == len(todo)


FAILS, STOPPED, LEARNS = "fails", "does not fail", "learns"
ALONE, CURE, HEAL, DECOY = "alone", "cure", "heal", "decoy"
EXPECTED = {ALONE: FAILS, CURE: STOPPED, HEAL: LEARNS, DECOY: FAILS}
"""The result that each claim of a scenario promises on every seed."""


class Claim(NamedTuple):
    """One claim of a scenario, and the result on each seed."""

    kind: str
    change: tuple[str, ...]
    results: tuple[str, ...]
    """`FAILS`, `STOPPED`, `LEARNS`, or another result in words, for each seed."""

    @property
    def holds(self) -> bool:
        """Whether every seed gave the promised result."""
        return all(result == EXPECTED[self.kind] for result in self.results)


def claims(case: Scenario, seeds: Sequence[int]) -> Iterator[Claim]:
    """Try every claim of a scenario on these seeds, with its own guards and length.

    A heal is tried as in `python -m benchmarks.runs heals`: with the guards of `stable` and the length and batch of
    [trial], where it has to learn.
    """
    heals = [heal.change for heal in case.heals]
    for kind, changes in ((ALONE, [()]), (CURE, case.cures), (HEAL, heals), (DECOY, case.decoys)):
        for each in changes:
            yield Claim(kind, each, tuple(_tried(case, kind, each, seed) for seed in seeds))


def _tried(case: Scenario, kind: str, change: tuple[str, ...], seed: int) -> str:
    """The result of one run: `FAILS` if it shows the symptoms, `STOPPED` if nothing is wrong, else the reason in words.

    Of a heal `LEARNS`, if the reward of held-out problems rises beyond chance. Refused steps do not count.
    """
    config = case.config()
    if kind == HEAL:
        config = case.config(guards=STABLE).merged(case.trial).with_(f"run.num_eval={HELD_OUT}")
    events, operator = list[Event](), ""
    try:
        for event in train(config.with_(*change, f"run.seed={seed}")):
            events.append(event)
    except GrpoLabError:
        raise
    except Exception as error:  # a crash is the symptom of some scenarios; any other is a result for the table
        operator = classify_crash(str(error)).operator
    if kind == HEAL and not operator:
        found = outcome(events)
        if found.status == "stopped":
            return "is stopped by a guard"
        return LEARNS if found.learned is Learned.LEARNED else f"{found.learned}: gains {found.gained:.2f}"
    metrics = [event.metrics for event in events if isinstance(event, Stepped) and not event.refused]
    if kind != HEAL and case.expect.shown(operator, metrics):
        return FAILS
    if operator:
        return f"crashes in {operator}"
    broken = metrics and not math.isfinite(metrics[-1].get("loss", 0.0))
    return "loss is not finite" if broken else STOPPED
