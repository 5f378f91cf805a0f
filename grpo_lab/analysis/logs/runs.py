"""Several runs in one log: their rows apart, found where the step, the epoch or the learning rate starts again."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_lab.analysis.logs.names import STEP_NAMES, bare, choose
from grpo_lab.analysis.logs.rows import Columns, Log, Rows, make, measured_rows, size

COUNTERS = (*STEP_NAMES, "num_tokens")
"""Columns that grow over a run, as TRL counts num_tokens; the first one that was logged decides."""
NOTHING: Mapping[int, str] = MappingProxyType({})
FAR = 5
"""Steps that a last row must go back to be the first of a new run, not one out of order."""
TOO_MANY = 1000
"""Rows out of order from which on they tell nothing."""


def of_dicts(found: Iterable[Mapping[str, Any]], format: str, notes: Sequence[str] = (), **about: Any) -> list[Log]:
    """The runs in dictionaries of metrics, one a step; see `logs_of`."""
    rows = Rows()
    for row in found:
        rows.add(row)
    return logs_of(rows.columns(), format, notes, **about)


def logs_of(
    columns: Columns,
    format: str,
    notes: Sequence[str] = (),
    crashes: Mapping[int, str] = NOTHING,
    starts: Sequence[int] = (),
    **about: Any,
) -> list[Log]:
    """The runs in a table, in order, each with a note on its place if there are several; see `rows.make`.

    `crashes` are the exceptions of a console's tracebacks, by the number of rows before each; `starts` the numbers of
    rows before each start of a training that a console shows, which count where no column tells of a start.
    """
    edges = [0, *_restarts(columns, choose(columns, about.get("source", "")), starts), size(columns)]
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


def _restarts(columns: Columns, chosen: Mapping[str, str], starts: Sequence[int]) -> list[int]:
    """The rows at which a new run begins, without the first one.

    Where neither a step nor num_tokens was logged, all of epoch, learning rate and console tell.
    """
    measured = measured_rows(columns, chosen)
    named = {bare(name): name for name in columns} | {name: name for name in STEP_NAMES if name in columns}

    def starts_in(name: str, places: Callable[[NDArray[Any]], list[int]]) -> list[int] | None:
        if name not in named:
            return None
        rows, values = columns[named[name]]
        kept = np.isin(rows, measured) & np.isfinite(values)
        varies = 2 * kept.sum() >= len(measured) > 0 and values[kept].min() < values[kept].max()
        return [int(rows[kept][place]) for place in places(values[kept])] if varies else None

    for name in COUNTERS:
        slack = 1 if name in STEP_NAMES else 2
        if (
            name not in chosen
            and (found := starts_in(name, lambda values, slack=slack: _falls(values, slack))) is not None
        ):
            return found
    of_epoch = starts_in("epoch", lambda values: _falls(values, 2)) or []
    of_rate = starts_in("learning_rate", _schedule_restarts) or []
    places = sorted({*of_epoch, *of_rate, *(start for start in starts if 0 < start < size(columns))})
    return [place for place in places if place - 1 not in places]  # a last rate of 0 before a first one of 0


def _falls(values: NDArray[Any], slack: int) -> list[int]:
    """The places at which values that grow start again from about their beginning.

    A run that was resumed goes back a little, and repeats some values; a row out of order is followed by the next.
    """
    found, first = [], 0
    places = np.flatnonzero(values[1:] < values[:-1]) + 1
    disordered = 3 * len(places) > len(values) or len(places) > TOO_MANY
    for place in () if disordered else places:
        before, after = values[first:place], values[place:]
        pace = float(np.median(np.diff(before))) if len(before) > 1 else 0.0
        ahead = after[1] - after[0] if len(after) > 1 else 0.0
        alone = (
            before.max() - after[0] < FAR * pace if len(after) == 1 else before.max() < after[1] <= before.max() + pace
        )
        if ahead >= 0 and after[0] <= max(before[0], slack * max(pace, ahead)) and not alone:
            found.append(int(place))
            first = int(place)
    return found


def _schedule_restarts(rates: NDArray[Any]) -> list[int]:
    """The places at which a schedule starts again that rises at most once and then falls at most once.

    A rate that rises after it fell is a new start, but for one that jumps to the peak after a warm-up: a cosine with
    restarts. A rate that falls to the first value at once and rises from there is a new warm-up.
    """
    found, fell = [], False
    first = peak = rates[0]
    for place in range(1, len(rates) - 1):
        before, now, after = rates[place - 1 : place + 2]
        to_the_start = now <= first < before and after > now
        cosine = first < now == peak
        if to_the_start or (fell and now > before and not cosine):
            found.append(place)
            first, peak, fell = now, now, False
        else:
            peak, fell = max(peak, now), fell or now < before
    return found
