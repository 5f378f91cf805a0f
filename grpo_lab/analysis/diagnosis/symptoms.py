"""Symptoms: properties of one curve, the step that shows them first, and the logs that cannot show them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_lab.analysis.diagnosis.curves import (
    PLACES,
    STATES,
    UNITS,
    WHOLES,
    Curve,
    Mask,
    finite,
    first_true,
    noise,
    quotient_spread,
    start,
)
from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.logs.table import Fact, fact
from grpo_lab.config.algorithms import algorithm_of
from grpo_lab.errors import ConfigError, unknown
from grpo_lab.metrics import METRICS, of_run
from grpo_lab.paths import data_directory, read_toml

FIELDS = ("here", "trl", "verl")
"""The fields of a remedy that name its setting, in each trainer."""
FIELD_OF = {"grpo_lab": "here", "trl": "trl", "ms-swift": "trl", "verl": "verl"}
"""The field of each trainer; ms-swift builds on TRL's."""
OWN = "loss."
NAME, IDLE = "algorithm", "without_effect"
"""The keys of data/diagnosis/algorithms.toml that are no settings of `loss`."""


def formulas_in(log: Log) -> dict[str, Any]:
    """The formulas of a log's run as settings of `loss`; empty if nothing tells them.

    >>> formulas_in(Log({}, settings={"importance_sampling_level": "sequence"}))
    {'importance_sampling_level': 'sequence'}
    """
    found = {name: value for told in told_by(log).values() for name, value in told.items() if name not in (NAME, IDLE)}
    return found | {name.removeprefix(OWN): value for name, value in log.settings.items() if name.startswith(OWN)}


def algorithm_in(log: Log) -> str:
    """The algorithm of a log's run: that of its formulas, or else the trainer's own name for it; "" if unknown.

    >>> algorithm_in(Log({}, settings={"loss_type": "grpo", "importance_sampling_level": "sequence"}))
    'gspo'
    """
    formulas, named = formulas_in(log), [told[NAME] for told in told_by(log).values() if NAME in told]
    known = "surrogate" in formulas or "aggregation" in formulas
    return (algorithm_of(formulas) if known else "") or (named[-1] if named else "")


def told_by(log: Log) -> dict[str, Mapping[str, Any]]:
    """What each setting or metric of a log tells, by its name."""
    given = {**dict.fromkeys(log.metrics, True), **log.settings}
    found = {name: values.get(str(given[name]), values.get("*")) for name, values in _table().items() if name in given}
    return {name: told for name, told in found.items() if told is not None}


def settings_that_tell(log: Log) -> dict[str, Any]:
    """The settings of a log's run that tell its formulas, under the trainer's own names and under ours."""
    theirs = {name: log.settings[name] for name in told_by(log) if name in log.settings}
    return theirs | {OWN + name: value for name, value in formulas_in(log).items()}


@functools.cache
def _table() -> Mapping[str, Any]:
    return read_toml(data_directory() / "diagnosis" / "algorithms.toml")


@dataclass(frozen=True)
class Seen:
    """A symptom was seen: its first step, and the value there."""

    step: int
    value: float
    metric: str = field(default="", compare=False)
    """The curve that showed it, as kl/F."""


@dataclass(frozen=True)
class Unknown:
    """The log cannot show a symptom: the metric that it lacks, and why."""

    metric: str
    why: Fact


Sighting = Seen | Unknown | None
"""None: the log would show the symptom, and does not."""

SINCE: dict[str, Callable[[Curve], float]] = {
    "": lambda values: 0.0,
    "start": start,
    "first": lambda values: float(values[0]),
}
"""For each `since` of a symptom, the number of which the values are the differences."""
ENDS = "ends"
"""The state of a curve that is logged no more while others are."""


@dataclass(frozen=True)
class Symptom:
    """A condition on one curve, one setting or the crash; the comments of symptoms.toml explain the settings."""

    says: str
    metric: str = ""
    setting: Sequence[str] = ()
    like: str = ""
    crash: str = ""
    function: str = ""
    is_: str = ""
    over: float | str | None = None
    under: float | str | None = None
    of: str = ""
    since: str = ""
    least: float = -math.inf
    constant: float = math.inf
    when: str = "once"
    steps: int = 1
    where: Mapping[str, Any] = field(default_factory=dict)
    steady: Sequence[str] = ()
    objective: str = ""
    void: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def read(name: str, tree: Mapping[str, Any]) -> Symptom:
        """A symptom from its table. Raises ConfigError for an unknown setting, metric or state, or a missing limit."""
        check_names(f"setting of symptom {name}", tree, [f.name.strip("_") for f in fields(Symptom)])
        symptom = Symptom(**{"is_" if key == "is" else key: value for key, value in tree.items()})
        if symptom.metric:
            named = (symptom.metric, *symptom.steady, symptom.where.get("metric", symptom.metric))
            check_names(f"metric of symptom {name}", named, METRICS)
        for key, value, choices in (
            ("when", symptom.when, [*PLACES, *WHOLES]),
            ("objective", symptom.objective, ["", "lowest"]),
            ("function", symptom.function, ["", "any"]),
            ("since", symptom.since, SINCE),
            ("is", symptom.is_, ["", *STATES, ENDS]),
        ):
            check_names(f"{key} of symptom {name}", [value], choices)
        if not (symptom.is_ or symptom.crash or symptom.like or symptom.over is not None or symptom.under is not None):
            raise ConfigError(f"symptom {name} has no condition: give `is`, `over`, `under` or `crash`")
        return symptom

    def look(self, log: Log) -> Sighting:
        """The first step that shows the symptom, None if no step does, or `Unknown` if the log cannot show it."""
        if self.crash:
            found = re.search(self.crash, log.crash) if self.when != "first" or not len(log.steps) else None
            return Seen(_step(log, -1), math.nan, found[0]) if found else None
        if self.setting:
            return self._of_settings(log)
        if self.function:
            seen = [self._of_curve(log, series) for _, series in sorted(log.functions.items()) if len(series)]
            return next((each for each in seen if isinstance(each, Seen)), None)
        if why := self._void(log):
            return Unknown(self.metric, fact("void", setting=why))
        series = log.metrics.get(self.metric)
        if self.objective:
            of_each = [curve for name, curve in log.metrics.items() if name != self.metric == of_run(name)]
            series = min(of_each, key=lambda curve: curve.median(), default=None)
        if series is None or not len(series):
            return None if self.objective else Unknown(self.metric, fact("not_logged"))
        return _end(log, series) if self.is_ == ENDS else self._of_curve(log, series)

    def _of_settings(self, log: Log) -> Sighting:
        """The sighting in the settings that were found beside the log, the first of the names that is there."""
        settings = {**settings_that_tell(log), **log.settings}
        name = next((name for name in self.setting if name in settings), None)
        if name is None:
            return Unknown(self.setting[0], fact("no_settings"))
        if self._void(log):
            return None
        given = settings[name]
        if self.like:
            return Seen(_step(log, 0), math.nan, f"{name}={given}") if re.search(self.like, str(given)) else None
        try:
            value = float(given)
        except (TypeError, ValueError):
            return None
        return Seen(_step(log, 0), value, name) if self.compare(np.array([value])).any() else None

    def _void(self, log: Log) -> str:
        """The formula under which the symptom tells of no failure, as "loss.surrogate=cispo"; "" if there is none."""
        given = formulas_in(log) if self.void else {}
        fits = (name for name, pattern in self.void.items() if re.fullmatch(pattern, str(given.get(name, ""))))
        return next((f"{OWN}{name}={given[name]}" for name in fits), "")

    def _of_curve(self, log: Log, series: pd.Series) -> Sighting:
        for other in (name for name in (self.of, self.where.get("metric", "")) if name in METRICS):
            if other not in log.metrics:
                return Unknown(other, fact("not_logged"))
        if len(series) < self.steps:
            return None
        steps, values = series.index.to_numpy(), series.to_numpy(np.float64)
        late = log.begins_late or (len(steps) == 1 and steps[0] > 1)  # TRL and verl count from 1
        if late and self.when in ("first", "nearly always"):
            return Unknown(self.metric, fact("begins_at", step=int(steps[0])))
        if self.when == "first" and log.updates_a_row > 1:
            return Unknown(self.metric, fact("mean_of_updates", updates=log.updates_a_row))
        kept = finite(values)
        unit = UNITS[self.of](kept) if self.of in UNITS and len(kept) else 1.0
        measured = values - SINCE[self.since](kept) if len(kept) else values
        place = self._place(self._mask(log, steps, measured, unit), measured, unit)
        if place is not None and all(_steady(log, name, steps[place]) for name in self.steady):
            return Seen(int(steps[place]), float(values[place]), str(series.name))
        if self.metric == "loss" and self.is_ and log.hides_nan:
            norm = log.metrics.get("grad_norm")  # it is not filtered, and would show that the loss is not finite
            if norm is None or not bool(np.isfinite(norm).all()):
                return Unknown("loss", fact("may_hide"))
        return None

    def _place(self, mask: Mask, values: Curve, unit: float) -> int | None:
        """The place of the step that shows the symptom."""
        if self.when in PLACES:
            return PLACES[self.when](mask, values)
        kept = finite(values)
        if len(kept) < self.steps:
            return None
        whole = np.array([WHOLES[self.when](kept)])
        return (first_true(mask) or 0) if self.compare(whole, 1.0 if self.when == "trend" else unit).any() else None

    def compare(self, values: Curve, unit: Curve | float = 1.0) -> Mask:
        """Where values, of shape (steps,), are over or under the bound times the unit. NaN is neither.

        The bound "healthy" is the end of the metric's healthy range. Below 0, as rewards may be, a fall is a larger
        number: 0.75 of -0.6 is a quarter below it, -0.75.
        """

        def times(bound: float | str, end: str) -> Curve | float:
            limit = float(getattr(METRICS[self.metric], end) if bound == "healthy" else bound)
            return np.where(np.asarray(unit) < 0, 2 - limit, limit) * unit

        with np.errstate(invalid="ignore"):
            over = values > times(self.over, "high") if self.over is not None else values == values
            under = values < times(self.under, "low") if self.under is not None else values == values
            return over & under & (values > self.least)

    def _mask(self, log: Log, steps: NDArray[Any], values: Curve, unit: float) -> Mask:
        if self.is_:
            mask = STATES[self.is_](values)
        elif self.of in METRICS:
            other = log.metrics[self.of].reindex(steps).to_numpy(np.float64)
            mask = self.compare(values, other) & (quotient_spread(values, other) <= self.constant)
        else:
            mask = self.compare(values, unit)
        if self.where:
            other = log.metrics[self.where["metric"]].reindex(steps).to_numpy(np.float64)
            bounds = {key: value for key, value in self.where.items() if key != "metric"}
            mask = mask & Symptom("", self.where["metric"], **bounds).compare(other)
        return mask


def check_names(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError for a name in a table of data/diagnosis that is none of the known ones."""
    for name in names:
        if name not in known:
            raise unknown(kind, name, [each for each in known if each])


def _end(log: Log, series: pd.Series) -> Sighting:
    """The first step after the last value of a curve, if four rows follow, and three times its widest gap."""
    steps = log.steps
    places = np.searchsorted(steps, series.index.to_numpy())
    missing = len(steps) - 1 - int(places[-1])
    gap = int(np.diff(places).max()) if len(places) > 1 else 1
    return Seen(int(steps[places[-1] + 1]), math.nan, str(series.name)) if missing >= max(4, 3 * gap) else None


def _step(log: Log, place: int) -> int:
    """The step at a place of a log; 0 for a log without steps."""
    return int(log.steps[place]) if len(log.steps) else 0


def _steady(log: Log, name: str, step: int) -> bool:
    """Whether the means of two steps before and after a step differ by noise only, or the curve was not logged."""
    series = log.metrics.get(name)
    if series is None:
        return True
    steps, values = series.index.to_numpy(), series.to_numpy(np.float64)
    before, after = finite(values[steps < step]), finite(values[steps >= step])
    if len(before) < 2 or len(after) < 2:
        return True
    jump = abs(float(after[:2].mean() - before[-2:].mean()))
    usual = METRICS[name].high if math.isfinite(METRICS[name].high) else 0.0
    return jump <= max(3 * noise(before), 0.15 * abs(float(np.median(before))), 0.05 * usual)
