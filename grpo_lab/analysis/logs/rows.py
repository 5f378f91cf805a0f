"""The rows of a log as one series a metric: NaN and inf are kept, values that were not logged are absent."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_lab.analysis.logs.names import STEP_NAMES, TRAINERS, choose, reward_functions, source_of
from grpo_lab.metrics import OF_THE_MACHINE, of_objective, of_run

Columns = dict[str, tuple[NDArray[Any], NDArray[Any]]]
"""For each name the numbers of its rows and its values there, both of shape (rows with the name,)."""


@dataclass(frozen=True)
class Log:
    """The metrics of one run by step. A NaN in a series was logged as NaN; a step that was not logged is absent."""

    metrics: Mapping[str, pd.Series]
    """By their name in `grpo_lab.metrics.METRICS`, or that of an objective, as kl/F; the index is the step."""
    format: str = "a table"
    """The format as which the log was read."""
    hides_nan: bool = False
    """Whether the writer may replace a loss of NaN by a finite number, as Hugging Face's Trainer does."""
    notes: tuple[str, ...] = ()
    """Notes on the lines that were left out, and why."""
    updates_a_row: int = 1
    """The most updates in a row, whose metrics are means over them: the first row is not the start."""
    source: str = ""
    """The framework that wrote it: grpo_lab, trl, verl, openrlhf or ms-swift; empty if its names tell none."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings found in the log or beside it, flat, under the framework's own names, as model_init_kwargs.dtype."""
    crash: str = ""
    """The last exception of a traceback at the end of a console log; empty if there is none."""
    functions: Mapping[str, pd.Series] = field(default_factory=dict)
    """The mean of each reward function by its name; the index is the step."""
    name: str = ""
    """The name of the run in a file of several runs; empty if it has none."""

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step with a metric other than its time, in order, of shape (steps,)."""
        indices = [series.index for name, series in self.metrics.items() if name not in OF_THE_MACHINE]
        return functools.reduce(pd.Index.union, indices, pd.Index([], dtype=np.int64)).to_numpy(np.int64)

    @property
    def objectives(self) -> list[str]:
        """The names of the objectives that have curves of their own."""
        return [name.removeprefix("kl/") for name in self.metrics if name != "kl" == of_run(name)]

    def of_objective(self, objective: str) -> "Log":
        """The log with an objective's curves in place of the run's."""
        run = {name: series for name, series in self.metrics.items() if name == of_run(name)}
        own = {name: of_objective(name, objective) for name in run}
        return replace(self, metrics={name: self.metrics.get(own[name], series) for name, series in run.items()})

    @property
    def frame(self) -> pd.DataFrame:
        """One row a step, one column a metric; NaN also for values that were not logged."""
        frame = pd.DataFrame(dict(self.metrics), index=pd.Index(self.steps, name="step"))
        return frame.reset_index()


@dataclass
class Rows:
    """Collects rows of names and values; rows with the same names in the same order are kept together."""

    _blocks: dict[tuple[str, ...], tuple[list[int], list[Any]]] = field(default_factory=dict)
    _parts: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]] = field(default_factory=dict)
    _count: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row; values that are no numbers are left out of the columns."""
        positions, values = self._blocks.setdefault(tuple(row), ([], []))
        positions.append(self._count)
        values.extend(row.values())
        self._count += 1

    def add_table(self, table: pd.DataFrame) -> None:
        """Add rows that hold only numbers."""
        positions = np.arange(self._count, self._count + len(table))
        for name in table.columns:
            self._parts.setdefault(name, []).append((positions, table[name].to_numpy(np.float64)))
        self._count += len(table)

    def columns(self) -> Columns:
        """The columns of all rows, each in the order of the rows."""
        parts = {name: list(found) for name, found in self._parts.items()}
        for names, (positions, values) in self._blocks.items():
            for place, name in enumerate(names):
                kept, numbers = numeric(values[place :: len(names)])
                parts.setdefault(name, []).append((np.array(positions, dtype=np.int64)[kept], numbers))
        joined: Columns = {}
        for name, found in parts.items():
            rows, numbers = (np.concatenate(pieces) for pieces in zip(*found, strict=True))
            if len(rows):
                order = np.argsort(rows, kind="stable")
                joined[name] = (rows[order], numbers[order])
        return joined


def numeric(values: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The positions of the values that are numbers, including texts such as "nan" and "Infinity", and the numbers."""
    try:
        if None not in values and (numbers := np.array(values, dtype=np.float64)).ndim == 1:
            return np.arange(len(values)), numbers
    except (ValueError, TypeError, OverflowError):
        pass  # a value that is no number: read them one by one
    kept: list[int] = []
    found: list[float] = []
    for place, value in enumerate(values):
        try:
            found.append(float(value))
        except (ValueError, TypeError, OverflowError):
            continue
        kept.append(place)
    return np.array(kept, dtype=np.int64), np.array(found, dtype=np.float64)


def of_frame(frame: pd.DataFrame) -> Columns:
    """The columns of a table. None and pd.NA mean not logged, NaN means logged as NaN; see also `step_table.of`."""
    columns: Columns = {}
    not_logged = frame.attrs.get("not_logged", {})
    if frame.index.name in STEP_NAMES:
        frame = frame.reset_index()
    for place, name in enumerate(frame.columns):  # a name may be there twice
        values = frame.iloc[:, place]
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiu":
            kept = np.flatnonzero(~frame.index.isin(not_logged.get(name, ())))
            columns[str(name)] = (kept, values.to_numpy(np.float64)[kept])
        elif not pd.api.types.is_bool_dtype(values.dtype):
            columns[str(name)] = numeric(values.astype(object).where(values.notna(), None).tolist())
    return columns


def without_blank_rows(columns: Columns) -> Columns:
    """The columns without the rows that hold no number: `Session.records` has one for a step that a crash cut short."""
    blank = np.ones(size(columns), dtype=bool)
    for metric, name in choose(columns).items():
        if metric not in OF_THE_MACHINE:
            rows, numbers = columns[name]
            blank[rows[~np.isnan(numbers)]] = False
    return {name: (rows[~blank[rows]], numbers[~blank[rows]]) for name, (rows, numbers) in columns.items()}


def make(
    columns: Columns, format: str, notes: Iterable[str] = (), hides_nan: bool = False, count_by: int = 0, **about: Any
) -> Log:
    """A log from columns: metrics by their names here, one value a step; of several values the last.

    Rows without a step are counted from 0, or from `count_by` in steps of it. `about` are more fields of the log; where
    no source is given, or TRL, the names may tell another one that uses the same Trainer.
    """
    columns = {name: column for name, column in columns.items() if len(column[0])}
    chosen = choose(columns, about.get("source", ""))
    steps = _steps(columns, measured_rows(columns, chosen), count_by)
    metrics = {metric: _series(columns[name], steps, metric) for metric, name in chosen.items()}
    for metric in ("reward", "kl"):  # a log may hold them for each objective alone
        own = [series for name, series in metrics.items() if name != metric == of_run(name)]
        if own and metric not in metrics:
            broken = {step for series in own for step in series.index[series.isna().to_numpy()]}
            mean = pd.concat(own, axis=1).mean(axis=1)  # of the objectives that a step has: they may take turns
            metrics[metric] = mean.where(~mean.index.isin(broken)).rename(metric)
    functions = {name: _series(columns[column], steps, name) for name, column in reward_functions(columns).items()}
    repeated = max((int(series.index.duplicated().sum()) for series in metrics.values()), default=0)
    said = [f"{repeated:,} steps were logged more than once; the last value is used"] if repeated else []
    given = about.get("source", "")
    about["source"] = given if given not in ("", TRAINERS[0]) else source_of(columns) or given
    return Log(
        {name: _last_of_each_step(series) for name, series in metrics.items()},
        format,
        hides_nan or about["source"] in TRAINERS,
        (*notes, *said),
        functions={name: _last_of_each_step(series) for name, series in functions.items()},
        **about,
    )


def _series(column: tuple[NDArray[Any], NDArray[Any]], steps: NDArray[np.float64], name: str) -> pd.Series:
    """The values of a column by step, in the order of their rows; rows without a step are left out."""
    rows, numbers = column
    order = np.argsort(rows, kind="stable")
    at = steps[rows[order]]
    known = np.abs(at) < 2**53  # a larger float is no exact number of a step
    return pd.Series(numbers[order][known], index=pd.Index(at[known].astype(np.int64), name="step"), name=name)


def _last_of_each_step(series: pd.Series) -> pd.Series:
    return series.loc[~series.index.duplicated(keep="last")].sort_index()


def measured_rows(columns: Columns, chosen: Mapping[str, str]) -> NDArray[np.int64]:
    """The rows that hold one of the chosen metrics, in order."""
    rows = [columns[name][0] for name in chosen.values()]
    return np.unique(np.concatenate(rows)) if rows else np.array([], dtype=np.int64)


def _steps(columns: Columns, measured: NDArray[np.int64], count_by: int) -> NDArray[np.float64]:
    """The step of every row, of shape (rows,), NaN for a row without one; rows are counted if no column has steps.

    The first column counts that has a step for at least half of the measured rows.
    """
    for name in STEP_NAMES:
        rows, numbers = columns.get(name, (measured[:0], measured[:0]))
        if len(rows) and 2 * np.isin(measured, rows).sum() >= len(measured):
            steps = np.full(size(columns), np.nan)
            steps[rows] = np.where(np.isfinite(numbers), numbers, np.nan)
            return steps
    return np.arange(size(columns), dtype=np.float64) * (count_by or 1) + count_by


def size(columns: Columns) -> int:
    """The number of rows."""
    return 1 + max((int(rows.max()) for rows, _ in columns.values() if len(rows)), default=-1)
