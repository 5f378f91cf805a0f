"""The rules: symptoms of curves, settings and crashes, the causes that they tell, with suspects and remedies.

All are tables in data/diagnosis, and the comments of its files explain their settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_lab.analysis.diagnosis import curves
from grpo_lab.analysis.diagnosis.curves import Curve
from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.logs.table import HELD_OUT, Fact, fact, indices, number_in
from grpo_lab.analysis.logs.text import patterns, tables
from grpo_lab.config.algorithms import PART_OF, algorithm_of, unused
from grpo_lab.errors import ConfigError
from grpo_lab.metrics import METRICS, OF_THE_MACHINE, of_run

FIELDS = ("here", "trl", "verl")
"""The fields of a remedy that name its setting, in each trainer."""
TRAINERS = tables("trainers")
OWN = "loss."
NAME, IDLE = "algorithm", "without_effect"
"""The keys of data/diagnosis/algorithms.toml that are no settings of `loss`."""


def formulas_in(log: Log) -> dict[str, Any]:
    """The formulas of a log's run as settings of `loss`; empty if nothing tells them."""
    found = {name: value for told in told_by(log).values() for name, value in told.items() if name not in (NAME, IDLE)}
    return found | {name.removeprefix(OWN): value for name, value in log.settings.items() if name.startswith(OWN)}


def algorithm_in(log: Log) -> str:
    """The algorithm of a log's run: that of its formulas, or else the trainer's own name for it; "" if unknown."""
    formulas, named = formulas_in(log), [told[NAME] for told in told_by(log).values() if NAME in told]
    known = "surrogate" in formulas or "aggregation" in formulas
    return (algorithm_of(formulas) if known else "") or (named[-1] if named else "")


def told_by(log: Log) -> dict[str, Mapping[str, Any]]:
    """What each setting or metric of a log tells, by its name."""
    given = {**dict.fromkeys(log.metrics, True), **log.settings}
    known = {name: values for name, values in tables("algorithms").items() if name in given}
    found = {name: values.get(str(given[name]), values.get("*")) for name, values in known.items()}
    return {name: told for name, told in found.items() if told is not None}


def settings_that_tell(log: Log) -> dict[str, Any]:
    """The settings of a log's run that tell its formulas, under the trainer's own names and under ours."""
    theirs = {name: log.settings[name] for name in told_by(log) if name in log.settings}
    return theirs | {OWN + name: value for name, value in formulas_in(log).items()}


@dataclass(frozen=True)
class Evidence:
    """A symptom that a log shows: its first step, the value there, and the last value of that curve."""

    symptom: str
    metric: str
    """The curve that shows it, as kl/F."""
    step: int
    value: float
    last: float
    says: str

    @property
    def healthy(self) -> tuple[float, float]:
        """The metric's healthy range; a setting, a crash and a single reward function have none."""
        usual = METRICS.get(of_run(self.metric))
        return (usual.low, usual.high) if usual else (-math.inf, math.inf)


@dataclass(frozen=True)
class Unknown:
    """The log cannot show a symptom: the metric that it lacks, and why."""

    metric: str
    why: Fact

    def tree(self) -> dict[str, str]:
        """It as plain values."""
        return {"metric": self.metric, "why": self.why.said()}


Sighting = Evidence | Unknown | None
"""None: the log would show the symptom, and does not."""


@dataclass(frozen=True)
class Symptom:
    """A condition on one curve, one setting or the crash; the comments of symptoms.toml explain the settings."""

    name: str
    says: str = ""
    metric: str = ""
    or_metric: str = ""
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
        step, last = (int(log.steps[0]), int(log.steps[-1])) if len(log.steps) else (0, 0)
        if self.crash:
            found = re.search(self.crash, log.crash) if self.when != "first" or not len(log.steps) else None
            return self._seen(found[0], last) if found else None
        if self.setting:
            return self._of_settings(log, step)
        if self.function:
            seen = [self._of_curve(log, series) for _, series in sorted(log.functions.items()) if len(series)]
            return next((each for each in seen if isinstance(each, Evidence)), None)
        if why := self._void(log):
            return Unknown(self.metric, fact("void", setting=why))
        series = log.metrics.get(self.metric, log.metrics.get(self.or_metric))
        if self.objective:
            of_each = [curve for name, curve in log.metrics.items() if name != self.metric == of_run(name)]
            series = min(of_each, key=lambda curve: curve.median(), default=None)
        if series is None or not len(series):
            return None if self.objective else Unknown(self.metric, fact("not_logged"))
        return self._end(log, series) if self.state == "ends" else self._of_curve(log, series)

    def _end(self, log: Log, series: pd.Series) -> Sighting:
        """The first row of training after the last value of a curve, if four follow, and three times its widest gap."""
        steps = indices([each for name, each in log.metrics.items() if name not in (HELD_OUT, *OF_THE_MACHINE)])
        places = np.searchsorted(steps, series.index.to_numpy())
        missing = len(steps) - 1 - int(places[-1])
        gap = int(np.diff(places).max()) if len(places) > 1 else 1
        if missing < max(4, 3 * gap):
            return None
        return self._seen(str(series.name), int(steps[places[-1] + 1]), last=float(series.iloc[-1]))

    def _seen(self, metric: str, step: int, value: float = math.nan, last: float = math.nan) -> Evidence:
        return Evidence(self.name, metric, step, value, last, self.says)

    def _of_settings(self, log: Log, step: int) -> Sighting:
        """The sighting in the settings that were found beside the log, the first of the names that is there."""
        settings = {**settings_that_tell(log), **log.settings}
        name = next((name for name in self.setting if name in settings), None)
        if name is None:
            return Unknown(self.setting[0], fact("no_settings"))
        given = settings[name]
        if self.like:
            return self._seen(f"{name}={given}", step) if re.search(self.like, str(given)) else None
        value = number_in(given)
        if value is None or self._void(log) or not self.compare(np.array([value])).any():
            return None
        return self._seen(name, step, value)

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
        alone = len(steps) == 1 or self.when == "first update"  # TRL and verl count from 1
        if self.when in ("first", "first update", "nearly always") and (log.begins_late or (alone and steps[0] > 1)):
            missing = fact("begins_at", step=int(steps[0])) if steps[0] > 1 else fact("beginning_missing")
            return Unknown(self.metric, missing)
        if self.when in ("first", "first update") and log.updates_a_row > 1:
            return Unknown(self.metric, fact("mean_of_updates", updates=log.updates_a_row))
        place = self._place(log, steps, values)
        if self.steady and log.metrics.keys().isdisjoint(self.steady):
            return Unknown(self.steady[0], fact("not_logged"))
        if place is not None and all(_steady(log, name, steps[place]) for name in self.steady):
            return self._seen(str(series.name), int(steps[place]), float(values[place]), float(values[-1]))
        if self.metric == "loss" and self.state and log.hides_nan:
            norm = log.metrics.get("grad_norm")  # it is not filtered, and would show that the loss is not finite
            if norm is None or not bool(np.isfinite(norm).all()):
                return Unknown("loss", fact("may_hide"))
        return None

    def _place(self, log: Log, steps: NDArray[Any], values: Curve) -> int | None:
        """The place of the step that shows the symptom."""
        kept = curves.finite(values)
        unit = curves.UNITS[self.of](kept) if self.of in curves.UNITS and len(kept) else 1.0
        measured = values - curves.UNITS[self.since](kept) if self.since and len(kept) else values
        if self.state:
            mask = curves.STATES[self.state](measured) & ~(measured < self.least)
        elif self.of in METRICS:
            other = log.metrics[self.of].reindex(steps).to_numpy(np.float64)
            mask = self.compare(measured, other) & (curves.quotient_spread(measured, other) <= self.constant)
        else:
            mask = self.compare(measured, unit)
        if self.where:
            other = log.metrics[self.where["metric"]].reindex(steps).to_numpy(np.float64)
            every = max(1.0, float(np.median(np.diff(steps)))) if len(steps) > 1 else 1.0
            # It may be a mean over steps: only below one of them does it tell of the last step, whose norm is logged.
            mask = mask & Symptom("", **self.where).compare(other) & (other < 1 / every)
        if self.when in curves.PLACES:
            return curves.PLACES[self.when](mask, measured)
        kept = curves.finite(measured)
        if len(kept) < self.steps:
            return None
        whole = np.array([curves.WHOLES[self.when](kept)])
        shown = self.compare(whole, unit).any()
        return (0 if self.when in ("trend", "unrest") else curves.first_lasting(mask) or 0) if shown else None

    def compare(self, values: Curve, unit: Curve | float = 1.0) -> curves.Mask:
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


def _steady(log: Log, name: str, step: int) -> bool:
    """Whether the means of two steps before and after a step differ by noise only, or the curve was not logged."""
    series = log.metrics.get(name)
    if series is None:
        return True
    steps, values = series.index.to_numpy(), series.to_numpy(np.float64)
    before, after = curves.finite(values[steps < step]), curves.finite(values[steps >= step])
    if len(before) < 2 or len(after) < 2:
        return True
    jump = abs(float(after[:2].mean() - before[-2:].mean()))
    usual = METRICS[name].high if math.isfinite(METRICS[name].high) else 0.0
    return jump <= max(3 * curves.noise(before), 0.15 * abs(float(np.median(before))), 0.05 * usual)


SYMPTOMS = {name: Symptom(name, **table) for name, table in tables("symptoms").items()}
Sightings = Mapping[str, Sighting]


def look(log: Log) -> Sightings:
    """What a log shows of each symptom."""
    return {name: symptom.look(log) for name, symptom in SYMPTOMS.items()}


LEVELS = ("failure", "warning", "note")
"""A warning is named after every failure, even if it began earlier; a note alone leaves a run healthy."""


@dataclass(frozen=True)
class Remedy:
    """One change to try, and the name of its setting here, in TRL and in verl."""

    do: str
    here: str = ""
    trl: str = ""
    verl: str = ""
    against: str = ""
    """The suspect that it is for; empty if it is for the cause whichever suspect is right."""


@dataclass(frozen=True)
class Suspect:
    """A concrete cause behind a symptom, and the symptoms that speak for and against it."""

    says: str
    name: str = ""
    when: Sequence[str] = ()
    against: Sequence[str] = ()
    unless: Sequence[str] = ()
    needs: Sequence[str] = ()

    def rank(self, seen: Sightings) -> int | None:
        """0 with support in the log, 1 without, 2 if the log speaks against the suspect.

        None if the log rules it out, or does not show what it needs.
        """

        there = {name for name, sighting in seen.items() if isinstance(sighting, Evidence)}
        if not there.isdisjoint(self.unless) or not there.issuperset(self.needs):
            return None
        if not there.isdisjoint(self.against):
            return 2
        return 0 if self.needs or (self.when and there.issuperset(self.when)) else 1


SUSPECTS = {name: Suspect(name=name, **table) for name, table in tables("suspects").items()}


@dataclass(frozen=True)
class Condition:
    """`a`, `a before b`, `a with b` (in the same step) or `a by b` (not after it), where a and b are symptoms.

    After `not` it must not hold, and the log must show that; after `unless` a log that cannot show it is enough.
    """

    negation: str
    symptom: str
    relation: str
    other: str

    @staticmethod
    def read(text: str) -> Condition:
        """A condition from its text. Raises ConfigError for a text of another form."""
        if found := patterns("rules")["condition"].fullmatch(text):
            return Condition(**found.groupdict(""))
        raise ConfigError(f"condition {text!r}: write a, not a, unless a, a before b, a with b, or a by b")

    def holds(self, seen: Sightings) -> bool | None:
        """Whether the condition holds; None if the log does not show it."""
        first, second = seen[self.symptom], seen[self.other] if self.other else None
        if isinstance(first, Unknown) or (first and isinstance(second, Unknown)):
            return True if self.negation == "unless" else None
        other = second if isinstance(second, Evidence) else None
        related = first is not None and (not self.relation or _RELATIONS[self.relation](first, other))
        return related is not bool(self.negation)


_RELATIONS: dict[str, Callable[[Evidence, Evidence | None], bool]] = {
    "before": lambda first, second: second is None or first.step < second.step,
    "with": lambda first, second: second is not None and first.step == second.step,
    "by": lambda first, second: second is not None and first.step <= second.step,
}


@dataclass(frozen=True)
class Cause:
    """A cause: it holds if all conditions of `all` and one of `any` hold. It began with the first symptom of `all`.

    `scenarios` have this cause: several if no metric separates them; then `together` gives the reason.
    The comments of causes.toml explain the other fields.
    """

    name: str
    title: str
    what: str
    all: Sequence[Condition]
    any: Sequence[Condition] = ()
    level: str = "failure"
    fallback: bool = False
    also: Sequence[str] = ()
    suspects: Sequence[Suspect] = ()
    own_suspects: Sequence[Suspect] = ()
    tell_apart: str = ""
    remedies: Sequence[Remedy] = ()
    lab: str = ""
    scenarios: Sequence[str] = ()
    together: str = ""

    @staticmethod
    def read(name: str, table: Mapping[str, Any]) -> Cause:
        """A cause from its table. Raises ConfigError for a condition of another form."""
        read: dict[str, Any] = {**table, "remedies": [Remedy(**each) for each in table.get("remedies", ())]}
        for kind in ("all", "any"):
            read[kind] = [Condition.read(text) for text in table.get(kind, ())]
        for kind in ("suspects", "own_suspects"):
            read[kind] = [SUSPECTS.get(text, Suspect(text)) for text in table.get(kind, ())]
        return Cause(name, **read)

    def holds(self, seen: Sightings) -> bool | None:
        """Whether the log shows the cause; None if it lacks a metric to decide."""
        every = [condition.holds(seen) for condition in self.all]
        some = [condition.holds(seen) for condition in self.any] or [True]
        if False in every or not (True in some or None in some):
            return False
        return None if None in every or True not in some else True

    def evidence(self, seen: Sightings) -> list[Evidence]:
        """The symptoms that are evidence for the cause, its first condition first."""
        names = [c.symptom for c in (*self.all, *self.any) if not c.negation and c.holds(seen)]
        needed = [name for suspect in self.suspects if suspect.rank(seen) is not None for name in suspect.needs]
        found = [seen[name] for name in dict.fromkeys([*names, *needed, *self.also])]
        return [sighting for sighting in found if isinstance(sighting, Evidence)]

    def suspected(self, seen: Sightings, source: str) -> tuple[Suspect, ...]:
        """The suspects that the log does not rule out, those with support in it first."""
        possible = self.suspects if source in TRAINERS["frameworks"] else (*self.own_suspects, *self.suspects)
        kept = [suspect for suspect in possible if suspect.rank(seen) is not None]
        return tuple(sorted(kept, key=lambda suspect: suspect.rank(seen) or 0))

    def lacks(self, seen: Sightings) -> list[Unknown]:
        """The metrics that would have to be logged to decide."""
        undecided = [each for each in (*self.all, *self.any) if each.holds(seen) is None]
        found = [seen[name] for each in undecided for name in (each.symptom, each.other) if name]
        return list(dict.fromkeys(sighting for sighting in found if isinstance(sighting, Unknown)))


CAUSES: Sequence[Cause] = [Cause.read(name, table) for name, table in tables("causes").items()]
"""The more specific first."""


def advised(cause: Cause, suspects: Sequence[Suspect], log: Log) -> tuple[Remedy, ...]:
    """The remedies that can change the log's run, those of the likeliest suspects first, with the settings that can.

    What the loss of its algorithm does not use, or has already, is not advised. Those without settings stay.
    """
    beta = {"beta": 1} if log.objectives else {}  # each has its own
    parts = unused({"beta": log.settings.get("beta", 1), **formulas_in(log), **beta})
    idle = {name for told in told_by(log).values() for name in told.get(IDLE, ())}
    idle |= {name for part in parts for name in (f"loss.{part}", *TRAINERS["settings"].get(part, ()))}
    idle |= {f"guards.{name}" for name, part in PART_OF.items() if part in parts}
    settings = settings_that_tell(log)

    def acts(setting: str) -> bool:
        name, _, value = setting.partition("=")
        return idle.isdisjoint(re.findall(r"[\w.]+", setting)) and str(settings.get(name)) != (value.strip("'") or None)

    own, found = TRAINERS["field"].get(log.source), []
    names = [suspect.name for suspect in suspects if suspect.name]
    for remedy in (each for each in cause.remedies if each.against in ("", *names)):
        kept = {name: ", ".join(filter(acts, getattr(remedy, name).split(", "))) for name in FIELDS}
        asked = [name for name in ([own] if own else FIELDS) if getattr(remedy, name)]
        nothing_to_set = kept[own or "here"].startswith(("built in", "not with"))
        if not asked or (any(kept[name] for name in asked) and not nothing_to_set):
            found.append(replace(remedy, **kept))
    return tuple(sorted(found, key=lambda remedy: names.index(remedy.against) if remedy.against else 0))


@dataclass(frozen=True)
class DetectedCause:
    """A cause that the log shows or does not rule out, its first step and its evidence."""

    cause: Cause
    step: int
    evidence: Sequence[Evidence] = ()
    lacks: Sequence[Unknown] = ()
    """What would have to be logged to decide; empty for a cause that the log shows."""
    suspects: tuple[Suspect, ...] = ()
    """The suspects that log and trainer leave possible, the most likely first."""
    remedies: Sequence[Remedy] = ()
    """The remedies that can be set in the trainer that wrote the log, for the likeliest suspects first."""

    @property
    def objective(self) -> str:
        """The objective whose curves show the cause; empty if those of the run do."""
        names = [evidence.metric for evidence in self.evidence if of_run(evidence.metric) in METRICS]
        return next((name.rpartition("/")[2] for name in names if name != of_run(name)), "")
