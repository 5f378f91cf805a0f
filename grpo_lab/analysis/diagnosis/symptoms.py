"""Symptoms: properties of one curve, the step that shows them first, and the logs that cannot show them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_lab.analysis.logs import Log
from grpo_lab.errors import ConfigError, unknown
from grpo_lab.metrics import METRICS, of_run

Curve = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Seen:
    """A symptom was seen: its first step, the value there, and the metric, where that of an objective shows it."""

    step: int
    value: float
    metric: str = ""


@dataclass(frozen=True)
class Unknown:
    """The log cannot show a symptom: the metric that it lacks, and why."""

    metric: str
    why: str


Sighting = Seen | Unknown | None
"""None: the log would show the symptom, and does not."""

_STATES: dict[str, Callable[[Curve], Mask]] = {
    "nan": np.isnan,
    "inf": np.isinf,
    "nonfinite": lambda values: ~np.isfinite(values),
    "whole": lambda values: np.isfinite(values) & (values == np.round(values)),
}
_OWN: dict[str, Callable[[Curve], float]] = {
    "median": lambda values: float(np.median(values)),
    "start": lambda values: float(np.mean(values[: max(2, len(values) // 10)])),
    "largest": lambda values: float(np.max(values)),
}
"""The units of a limit that are computed from the finite values of the curve itself."""
_FIRST_STEPS = 1
"""A log that begins after this step does not hold the run's first step. TRL and verl count from 1."""


@dataclass(frozen=True)
class Symptom:
    """A condition on one curve; the comments of symptoms.toml explain the settings."""

    metric: str
    says: str
    is_: str = ""
    over: float | str | None = None
    under: float | str | None = None
    of: str = ""
    least: float = -math.inf
    when: str = "once"
    steps: int = 1
    where: Mapping[str, Any] = field(default_factory=dict)
    objective: str = ""

    @staticmethod
    def read(name: str, tree: Mapping[str, Any]) -> Symptom:
        """A symptom from its table. Raises ConfigError for an unknown setting, metric or state, or a missing limit."""
        known = [f.name.strip("_") for f in fields(Symptom)]
        for key in tree:
            if key not in known:
                raise unknown(f"setting of symptom {name}", key, known)
        symptom = Symptom(**{"is_" if key == "is" else key: value for key, value in tree.items()})
        for metric in (symptom.metric, *([symptom.where["metric"]] if symptom.where else [])):
            if metric not in METRICS:
                raise unknown(f"metric of symptom {name}", metric, METRICS)
        if symptom.when not in _WHEN:
            raise unknown(f"when of symptom {name}", symptom.when, _WHEN)
        if symptom.objective not in ("", "lowest"):
            raise unknown(f"objective of symptom {name}", symptom.objective, ["lowest"])
        if symptom.is_ and symptom.is_ not in _STATES:
            raise unknown(f"is of symptom {name}", symptom.is_, _STATES)
        if not symptom.is_ and symptom.over is None and symptom.under is None:
            raise ConfigError(f"symptom {name} has no condition: give `is`, `over` or `under`")
        return symptom

    def look(self, log: Log) -> Sighting:
        """The first step that shows the symptom, None if no step does, or `Unknown` if the log cannot show it."""
        series = self._lowest(log) if self.objective else log.metrics.get(self.metric)
        if series is None or not len(series):
            return None if self.objective else Unknown(self.metric, "not logged")
        others = [name for name in (self.of, self.where.get("metric", "")) if name in METRICS]
        for other in others:
            if other not in log.metrics:
                return Unknown(other, "not logged")
        if len(series) < self.steps:
            return None
        steps, values = series.index.to_numpy(), series.to_numpy(np.float64)
        if self.when == "first" and steps[0] > _FIRST_STEPS:
            return Unknown(self.metric, f"the log begins at step {steps[0]}")
        if self.when == "first" and log.updates_a_row > 1:
            return Unknown(self.metric, f"the first row is a mean over up to {log.updates_a_row} updates")
        place = _WHEN[self.when](self, self._mask(log, steps, values), values)
        if place is not None:
            return Seen(int(steps[place]), float(values[place]), str(series.name) if self.objective else "")
        if self.metric == "loss" and self.is_ and _may_hide(log):
            return Unknown("loss", "the logger may replace NaN and inf (logging_nan_inf_filter)")
        return None

    def _lowest(self, log: Log) -> pd.Series | None:
        """The curve of the objective whose median is the lowest; None in the log of a run that lists no objectives."""
        curves = [curve for name, curve in log.metrics.items() if name != self.metric == of_run(name)]
        return min(curves, key=lambda curve: curve.median(), default=None)

    def limit(self, bound: float | str) -> float:
        """A bound as a number; "healthy" is the end of the metric's healthy range."""
        if bound == "healthy":
            return METRICS[self.metric].high if self.over == "healthy" else METRICS[self.metric].low
        return float(bound)

    def compare(self, values: Curve, unit: Curve | float = 1.0) -> Mask:
        """Where values, of shape (steps,), are over or under the bound times the unit. NaN is neither.

        Below 0, as rewards may be, a fall is a larger number: 0.75 of -0.6 is a quarter below it, -0.75.
        """

        def times(bound: float | str) -> Curve | float:
            limit = self.limit(bound)
            return np.where(np.asarray(unit) < 0, 2 - limit, limit) * unit

        with np.errstate(invalid="ignore"):
            over = values > times(self.over) if self.over is not None else values == values
            under = values < times(self.under) if self.under is not None else values == values
            return over & under & (values > self.least)

    def unit(self, values: Curve) -> float:
        """The unit of the bound, from the curve itself; 1 if the bound is absolute."""
        finite = values[np.isfinite(values)]
        return _OWN[self.of](finite) if self.of in _OWN and len(finite) else 1.0

    def _mask(self, log: Log, steps: NDArray[Any], values: Curve) -> Mask:
        if self.is_:
            mask = _STATES[self.is_](values)
        elif self.of in METRICS:
            mask = self.compare(values, log.metrics[self.of].reindex(steps).to_numpy(np.float64))
        else:
            mask = self.compare(values, self.unit(values))
        if self.where:
            other = log.metrics[self.where["metric"]].reindex(steps).to_numpy(np.float64)
            bounds = {key: value for key, value in self.where.items() if key != "metric"}
            mask = mask & Symptom(self.where["metric"], "", **bounds).compare(other)
        return mask


def _may_hide(log: Log) -> bool:
    """Whether the log may hold a number in place of a loss that was not finite. An unfiltered norm would show it."""
    norm = log.metrics.get("grad_norm")
    return log.hides_nan and (norm is None or not bool(np.isfinite(norm).all()))


Judge = Callable[[Symptom, Mask, Curve], int | None]


def _first_true(mask: Mask) -> int | None:
    return int(np.argmax(mask)) if mask.any() else None


def _share(least: float) -> Judge:
    return lambda symptom, mask, values: _first_true(mask) if mask.mean() >= least else None


def _late(symptom: Symptom, mask: Mask, values: Curve) -> int | None:
    """The first step that shows it, if the median of the second half does, which no single spike moves."""
    finite = values[np.isfinite(values)]
    if len(finite) < symptom.steps:
        return None
    late = np.array([np.median(finite[len(finite) // 2 :])])
    return _first_true(mask) if symptom.compare(late, symptom.unit(values)).any() else None


def _alone(symptom: Symptom, mask: Mask, values: Curve) -> int | None:
    """A jump of at most two steps, not in the first step, over before the end, and only a few times."""
    place = _first_true(mask)
    if place is None or place == 0 or mask.sum() > max(2, len(mask) // 10):
        return None
    back = np.flatnonzero(~mask[place:])
    return place if len(back) and back[0] <= 2 and np.isfinite(values[place + back[0]]) else None


_WHEN: dict[str, Judge] = {
    "once": lambda symptom, mask, values: _first_true(mask),
    "first": lambda symptom, mask, values: 0 if mask[0] else None,
    "mostly": _share(0.5),
    "always": _share(1.0),
    "late": _late,
    "alone": _alone,
    "later": lambda symptom, mask, values: _first_true(mask) if mask[len(mask) // 2 :].any() else None,
}
