"""Several runs in one log: their rows apart, found where the step, the epoch or the learning rate starts again."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_lab.analysis.logs.names import STEP_NAMES, bare, choose
from grpo_lab.analysis.logs.rows import Columns, Log, make, size

COUNTERS = ("num_tokens", "epoch")
"""What else grows from the start of a run to its end: TRL counts num_tokens over the whole run."""
NOTHING: Mapping[int, str] = MappingProxyType({})
TOO_MANY = 1000
"""Rows out of order from which on they tell nothing."""


def logs_of(
    columns: Columns, format: str, notes: Sequence[str] = (), crashes: Mapping[int, str] = NOTHING, **about: Any
) -> list[Log]:
    """The runs in a table, in order, each with a note on its place if there are several; see `rows.make`.

    `crashes` are the exceptions of a console's tracebacks, by the number of rows before each.
    """
    edges = [0, *_restarts(columns), size(columns)]
    logs = [make(_between(columns, low, high), format, notes, **about) for low, high in itertools.pairwise(edges)]
    logs = [replace(log, crash=crashes.get(end, "")) for log, end in zip(logs, edges[1:], strict=True)]
    if len(logs) > 1:
        said = f"the log holds {len(logs)} runs, one after another; this is number "
        logs = [replace(log, notes=(*log.notes, f"{said}{number}")) for number, log in enumerate(logs, start=1)]
    return logs


def _between(columns: Columns, low: int, high: int) -> Columns:
    """The rows from low to high, which is excluded, as rows from 0."""
    if low == 0 and high == size(columns):
        return columns
    kept = {name: (rows >= low) & (rows < high) for name, (rows, _) in columns.items()}
    return {name: (rows[kept[name]] - low, numbers[kept[name]]) for name, (rows, numbers) in columns.items()}


def _restarts(columns: Columns) -> list[int]:
    """The rows at which a new run begins, without the first one. The first column that grows decides."""
    chosen = choose(columns)
    metrics = [columns[name][0] for name in chosen.values()]
    measured = np.unique(np.concatenate(metrics)) if metrics else np.array([], dtype=np.int64)
    named = {bare(name): name for name in columns} | {name: name for name in STEP_NAMES if name in columns}
    for name in (*STEP_NAMES, *COUNTERS):
        if name in named and name not in chosen:
            rows, values = columns[named[name]]
            kept = np.isin(rows, measured) & np.isfinite(values)
            rows, values = rows[kept], values[kept]
            if len(values) and values.min() < values.max():
                return [int(rows[place]) for place in _falls(values, slack=1 if name in STEP_NAMES else 2)]
    return []


def _falls(values: NDArray[Any], slack: int) -> list[int]:
    """The places at which values that grow start again from about their beginning.

    A run that was resumed goes back a little, and repeats some values; a row out of order is followed by the next.
    """
    found, first = [], 0
    places = np.flatnonzero(values[1:] < values[:-1]) + 1
    for place in places if len(places) < TOO_MANY else ():
        before, after = values[first:place], values[place:]
        if len(after) == 1:
            break
        pace = float(np.median(np.diff(before))) if len(before) > 1 else 0.0
        beginning = after[0] <= max(before[0], slack * max(pace, after[1] - after[0]))
        goes_on = before.max() < after[1] <= before.max() + pace
        if beginning and not goes_on:
            found.append(int(place))
            first = int(place)
    return found
