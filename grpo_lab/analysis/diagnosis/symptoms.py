"""Symptoms: properties of one curve, the step that shows them first, and the logs that cannot show them.

A curve has states of its values, units of limits, noise and trend; a symptom is a mask over it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.logs.table import Fact, fact
from grpo_lab.config.algorithms import algorithm_of
from grpo_lab.metrics import METRICS, of_run
from grpo_lab.paths import data_directory, read_toml

Curve = NDArray[np.float64]
Mask = NDArray[np.bool_]
SURE = 3.5
"""Standard errors by which two levels of a curve must differ: they are picked among many."""
TREND = 2.5
"""Standard errors of its slope from which on a curve rises or falls, whatever its levels."""


def finite(values: Curve) -> Curve:
    """The finite values of a curve, of shape (finite steps,)."""
    return values[np.isfinite(values)]


def start(values: Curve) -> float:
    """The level at which a curve begins: the mean of its first tenth, and of three values at least.

    If the first update changed the level already, the first value is the beginning.
    """
    first = values[: max(3, len(values) // 10)]
    changed = len(first) > 2 and abs(float(first[0] - first[1:].mean())) > 3 * noise(values[1:])
    return float(first[0] if changed else first.mean())


def noise(values: Curve) -> float:
    """The standard deviation of a curve about its own slow course, from the differences of neighbours; 0 for one value.

    Differences of normal noise have a mean magnitude of 2 / sqrt(pi) standard deviations. A course of many steps, and
    a few jumps, hardly change it.

    >>> round(noise(np.array([0.0, 1.0, 0.0, 1.0])), 2), noise(np.array([0.0, 0.0, 0.0]))
    (0.89, 0.0)
    """
    return float(np.mean(np.abs(np.diff(values)))) * math.sqrt(math.pi) / 2 if len(values) > 1 else 0.0


def trend(values: Curve) -> float:
    """The slope of a straight line through the curve, in its standard errors; 0 for less than four values.

    >>> trend(np.array([1.0, 2.0, 1.0, 2.0, 1.0])), trend(np.arange(9.0) + np.array([0.1, -0.1, 0.0] * 3)) > 50
    (0.0, True)
    """
    if len(values) < 4 or np.ptp(values) == 0:
        return 0.0
    steps = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(steps @ values / (steps @ steps))
    rest = values - values.mean() - slope * steps
    error = math.sqrt(float(rest @ rest) / (len(values) - 2) / float(steps @ steps))
    return slope / error if error > 0 else math.copysign(math.inf, slope)


@dataclass(frozen=True)
class Course:
    """The course of one curve: its levels at both ends, the highest in between, and where it was left."""

    first: float
    last: float
    top: float
    peak: int
    """The place of the highest level."""
    left: int
    """The first place that is clearly below the highest level."""
    dip: float
    """The lowest level between two higher ones; NaN without such a dip."""
    dip_place: int
    sure: float
    """The least difference of two levels that is none of the curve's noise."""
    trend: float
    """The slope of a straight line, in its standard errors."""

    @property
    def kind(self) -> str:
        """`fell` (by half of its gain, or below its start), `dipped` (and came back), `rose`, `declined` or `flat`."""
        lost, gained = self.top - self.last, self.top - self.first
        large = lost > max(self.sure, 0.1 * abs(self.top))
        if large and (gained <= self.sure or lost > 0.5 * gained):
            return "fell"
        if not math.isnan(self.dip):
            return "dipped"
        if abs(self.last - self.first) <= self.sure and abs(self.trend) <= TREND:
            return "flat"
        return "rose" if self.last > self.first else "declined"


def course(values: Curve) -> Course | None:
    """The course of finite values; None for less than six of them."""
    if len(values) < 6:
        return None
    width = min(20, max(3, len(values) // 10))
    level = np.convolve(values, np.ones(width) / width, "valid")
    bends = values[:-2] - 2 * values[1:-1] + values[2:]  # about straight lines: a steep course is no noise
    deviation = float(np.mean(np.abs(bends))) * math.sqrt(math.pi / 12)
    sure = max(SURE * deviation * math.sqrt(2 / width), 0.02 * float(np.abs(level).max()))
    top = int(np.argmax(level))
    lost = level[top] - level[-1]
    still_high = np.flatnonzero(level[top:] >= level[top] - 0.2 * lost)[-1] + top if lost > 0 else len(level) - 1
    left = min(len(values) - 1, int(still_high) + math.ceil(0.8 * width))
    depth = np.minimum(np.maximum.accumulate(level), np.maximum.accumulate(level[::-1])[::-1]) - level
    low = int(np.argmax(depth))
    dipped = depth[low] > max(1.5 * sure, 0.4 * abs(float(level[low] + depth[low])))
    return Course(
        float(level[0]),
        float(level[-1]),
        float(level[top]),
        min(top + width // 2, len(values) - 1),
        left,
        float(level[low]) if dipped else math.nan,
        low + width // 2,
        sure,
        trend(values),
    )


def at(place: int, values: Curve, shown: bool = True) -> Mask:
    """The mask of one place of a curve, if it shows the state."""
    return (np.arange(len(values)) == place) & shown


def fell(values: Curve) -> Mask:
    """The one value from which on a curve is below its highest level, and does not come back."""
    known = np.flatnonzero(np.isfinite(values))
    found = course(values[known])
    if found is None or found.kind != "fell":
        return at(0, values, False)
    return at(known[found.left], values, found.top - found.last > 0.3 * abs(found.top))


def same_to_the_end(values: Curve) -> Mask:
    """Which values are followed only by values equal to them."""
    return np.logical_and.accumulate((values == values[-1])[::-1])[::-1]


def level_noise(values: Curve) -> float:
    """The noise of a curve, at least a twentieth of its first level: a smaller change of a mean is none."""
    return max(noise(values), 0.05 * abs(start(values)))


def outlier(values: Curve) -> Mask:
    """Which values are farther from the median than 50 times the median distance, and farther than 3."""
    if not len(kept := finite(values)):
        return at(0, values, False)
    usual = float(np.median(np.abs(kept - np.median(kept))))
    return np.isfinite(values) & (np.abs(values - np.median(kept)) > max(50 * usual, 3))


def breaks(values: Curve) -> Mask:
    """The one value from which on the curve has another level, for good: it is constant, or lower at once.

    A mean of rewards that varied and is then exactly the same in each of four steps is not measured any more. A curve
    that comes to rest varies less and less before.
    """
    if len(values) < 8 or not np.isfinite(values).all():
        return at(0, values, False)
    constant = int(np.argmax(same_to_the_end(values)))
    if 3 <= constant <= len(values) - 4:
        before = values[:constant]
        new = float(np.mean(before == values[-1])) < 0.2
        lively = float(np.mean(np.abs(np.diff(values[constant - 3 : constant + 1])))) > 0.5 * noise(before) > 0
        return at(constant, values, new and lively)
    place = max(range(3, len(values) - 3), key=lambda k: float(values[k - 3 : k].mean() - values[k : k + 5].mean()))
    before, after = values[:place], values[place:]
    jump = float(np.median(before[-5:]) - np.median(after[:5]))
    at_once = float(before[-1] - after[1]) > 0.6 * jump  # a row may be the mean of steps before and after
    lower = float(np.max(after[1:])) < float(np.min(before[-5:]))
    return at(place, values, jump > 3.5 * max(level_noise(before), noise(after)) and at_once and lower)


def stops(values: Curve) -> Mask:
    """The one value from which on a share is 1, if each of the three before it was below 0.6."""
    place = int(np.argmax(same_to_the_end(values)))
    inside = 3 <= place <= len(values) - 4 and values[-1] == 1
    return at(place, values, inside and float(np.max(values[place - 3 : place])) < 0.6)


def below_first(values: Curve) -> Mask:
    """The second value, if the first is above all others."""
    return at(1, values, len(values) > 1 and float(np.max(values[1:])) < float(values[0]))


def vanishes(values: Curve) -> Mask:
    """The first of the values that are less than a fifth of the first one, if nearly all after it are."""
    small = values < 0.2 * values[0]
    place = first_true(small)
    return small & (place is not None and place <= 3 and bool(small[place:].mean() > 0.8))


def returns(values: Curve) -> Mask:
    """The one value from which on a curve that had left its first level is back there, at once."""
    if len(values) < 16 or not np.isfinite(values).all():
        return at(0, values, False)
    jumps = [abs(float(values[k : k + 3].mean() - values[k - 3 : k].mean())) for k in range(8, len(values) - 3)]
    place = 8 + int(np.argmax(jumps))
    began = float(values[:2].mean())
    away = float(np.median(values[place - 5 : place])) - began
    back = float(values[place : place + 2].mean()) - began
    least = 3 * max(noise(values[:place]), 0.02 * abs(began))
    return at(place, values, abs(away) > least and abs(back) < 0.4 * abs(away))


def quotient_spread(values: Curve, other: Curve) -> float:
    """The spread of a curve's quotient to another one, relative to its median; 0 where one is the other times a number.

    >>> quotient_spread(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    0.0
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = finite(values / other)
    middle = float(np.median(quotient)) if len(quotient) else 0.0
    return float(np.median(np.abs(quotient - middle))) / abs(middle) if middle else math.inf


STATES: dict[str, Callable[[Curve], Mask]] = {
    "nan": np.isnan,
    "inf": np.isinf,
    "nonfinite": lambda values: ~np.isfinite(values),
    "whole": lambda values: np.isfinite(values) & (values == np.round(values)),
    "same": same_to_the_end,
    "outlier": outlier,
    "breaks": breaks,
    "fell": fell,
    "stops": stops,
    "below first": below_first,
    "vanishes": vanishes,
    "returns": returns,
}
UNITS: dict[str, Callable[[Curve], float]] = {
    "median": lambda values: float(np.median(values)),
    "start": lambda values: float(np.mean(values[: max(2, len(values) // 10)])),
    "largest": lambda values: float(np.max(values)),
    "noise": level_noise,
}
"""The units of a limit that are computed from the finite values of the curve itself."""


def first_true(mask: Mask) -> int | None:
    """The first place where a mask is true."""
    return int(np.argmax(mask)) if mask.any() else None


def share(least: float) -> Callable[[Mask, Curve], int | None]:
    """The first place, if the mask is true for at least this share of the steps."""
    return lambda mask, values: first_true(mask) if mask.mean() >= least else None


def alone(mask: Mask, values: Curve) -> int | None:
    """A jump of at most two steps, not in the first step, over before the end, and only a few times."""
    place = first_true(mask)
    if place is None or place == 0 or mask.sum() > max(2, len(mask) // 10):
        return None
    back = np.flatnonzero(~mask[place:])
    return place if len(back) and back[0] <= 2 and np.isfinite(values[place + back[0]]) else None


def soon(mask: Mask, values: Curve) -> int | None:
    """The first place, if it is among the first tenth of the steps, or the first five."""
    place = first_true(mask)
    return place if place is not None and place < max(5, len(mask) // 10) else None


PLACES: dict[str, Callable[[Mask, Curve], int | None]] = {
    "once": lambda mask, values: first_true(mask),
    "first": lambda mask, values: 0 if mask[0] else None,
    "soon": soon,
    "mostly": share(0.5),
    "nearly always": lambda mask, values: share(0.9)(mask, values) if mask[0] else None,
    "always": share(1.0),
    "alone": alone,
    "later": lambda mask, values: first_true(mask) if mask[len(mask) // 2 :].any() else None,
}
"""For each `when` of a symptom that looks at steps, the step of a mask that shows it."""
WHOLES: dict[str, Callable[[Curve], float]] = {
    "late": lambda values: float(np.median(values[len(values) // 2 :])),
    "end": lambda values: float(np.mean(values[-max(2, len(values) // 10) :])),
    "trend": trend,
}
"""For each `when` of a symptom that looks at the whole curve, the number that its limits are compared with."""


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
    found = {
        name: values.get(str(given[name]), values.get("*"))
        for name, values in tables("algorithms").items()
        if name in given
    }
    return {name: told for name, told in found.items() if told is not None}


def settings_that_tell(log: Log) -> dict[str, Any]:
    """The settings of a log's run that tell its formulas, under the trainer's own names and under ours."""
    theirs = {name: log.settings[name] for name in told_by(log) if name in log.settings}
    return theirs | {OWN + name: value for name, value in formulas_in(log).items()}


@functools.cache
def tables(name: str) -> Mapping[str, Any]:
    """The tables of a file in data/diagnosis. Raises ConfigError for a file that cannot be read."""
    return read_toml(data_directory() / "diagnosis" / f"{name}.toml")


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

    def tree(self) -> dict[str, str]:
        """It as plain values."""
        return {"metric": self.metric, "why": self.why.said()}


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
    state: str = ""
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
        return _end(log, series) if self.state == ENDS else self._of_curve(log, series)

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
        if self.metric == "loss" and self.state and log.hides_nan:
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
        if self.state:
            mask = STATES[self.state](values)
        elif self.of in METRICS:
            other = log.metrics[self.of].reindex(steps).to_numpy(np.float64)
            mask = self.compare(values, other) & (quotient_spread(values, other) <= self.constant)
        else:
            mask = self.compare(values, unit)
        if self.where:
            other = log.metrics[self.where["metric"]].reindex(steps).to_numpy(np.float64)
            mask = mask & Symptom("", **self.where).compare(other)
        return mask


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


@functools.cache
def known_symptoms() -> Mapping[str, Symptom]:
    """Every symptom of data/diagnosis/symptoms.toml."""
    return {name: Symptom(**table) for name, table in tables("symptoms").items()}
