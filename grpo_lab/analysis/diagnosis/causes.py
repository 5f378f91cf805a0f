"""Causes that metrics can tell apart: each is a table of conditions on symptoms, with suspects and remedies."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_lab.analysis.diagnosis.symptoms import (
    FIELD_OF,
    FIELDS,
    IDLE,
    Seen,
    Sighting,
    Unknown,
    formulas_in,
    settings_that_tell,
    tables,
    told_by,
)
from grpo_lab.analysis.logs import Log
from grpo_lab.config.algorithms import PART_OF, unused
from grpo_lab.errors import ConfigError
from grpo_lab.metrics import METRICS, metric, of_run

Sightings = Mapping[str, Sighting]
ELSEWHERE = {
    "delta": ("delta", "actor_rollout_ref.actor.clip_ratio_c"),
    "epsilon": ("epsilon", "actor_rollout_ref.actor.clip_ratio"),
    "kl": ("actor_rollout_ref.actor.kl_loss_type",),
}
"""The settings of other trainers that change a part of the loss."""
FRAMEWORKS = ("trl", "ms-swift", "verl", "openrlhf")
"""Trainers whose loop cannot make the mistakes of an own loop."""
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

    def fits(self, source: str) -> bool:
        """Whether the trainer that wrote the log leaves anything to set."""
        return not getattr(self, FIELD_OF.get(source, "here")).startswith(("built in", "not with"))


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

        def shown(names: Sequence[str]) -> list[bool]:
            return [isinstance(seen[name], Seen) for name in names]

        if any(shown(self.unless)) or not all(shown(self.needs)):
            return None
        if any(shown(self.against)):
            return 2
        return 0 if self.needs or (self.when and all(shown(self.when))) else 1


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
        if found := _CONDITION.fullmatch(text):
            return Condition(**found.groupdict(""))
        raise ConfigError(f"condition {text!r}: write a, not a, unless a, a before b, a with b, or a by b")

    def holds(self, seen: Sightings) -> bool | None:
        """Whether the condition holds; None if the log does not show it."""
        first, second = seen[self.symptom], seen[self.other] if self.other else None
        if isinstance(first, Unknown) or (first and isinstance(second, Unknown)):
            return True if self.negation == "unless" else None
        other = second if isinstance(second, Seen) else None
        related = first is not None and (not self.relation or _RELATIONS[self.relation](first, other))
        return related is not bool(self.negation)

    def unknown(self, seen: Sightings) -> list[Unknown]:
        """The metrics that the log lacks to decide the condition."""
        found = [seen[name] for name in (self.symptom, self.other) if name]
        return [sighting for sighting in found if isinstance(sighting, Unknown)]


_CONDITION = re.compile(
    r"(?:(?P<negation>not|unless) )?(?P<symptom>\w+)(?: (?P<relation>before|with|by) (?P<other>\w+))?"
)
_RELATIONS: dict[str, Callable[[Seen, Seen | None], bool]] = {
    "before": lambda first, second: second is None or first.step < second.step,
    "with": lambda first, second: second is not None and first.step == second.step,
    "by": lambda first, second: second is not None and first.step <= second.step,
}


@dataclass(frozen=True)
class Cause:
    """A cause: it holds if all conditions of `all` and one of `any` hold. It began with the first symptom of `all`.

    `scenarios` have this cause: several if no metric separates them; then `together` gives the reason.
    """

    name: str
    title: str
    what: str
    all: Sequence[Condition]
    any: Sequence[Condition] = ()
    level: str = "failure"
    fallback: bool = False
    """Reported only if no other cause is found."""
    also: Sequence[str] = ()
    """Symptoms that are evidence if seen, and are not conditions."""
    suspects: Sequence[Suspect] = ()
    """The most likely first, before the log is asked."""
    own_suspects: Sequence[Suspect] = ()
    """Mistakes of an own training loop, named first; they are ruled out in `FRAMEWORKS`."""
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
            read[kind] = [known_suspects().get(text, Suspect(text)) for text in table.get(kind, ())]
        return Cause(name, **read)

    def holds(self, seen: Sightings) -> bool | None:
        """Whether the log shows the cause; None if it lacks a metric to decide."""
        every = [condition.holds(seen) for condition in self.all]
        some = [condition.holds(seen) for condition in self.any] or [True]
        if False in every or not (True in some or None in some):
            return False
        return None if None in every or True not in some else True

    def onset(self, seen: Sightings) -> Seen | None:
        """The sighting of its first symptom, or None."""
        first = seen[self.all[0].symptom]
        return first if isinstance(first, Seen) else None

    def evidence(self, seen: Sightings) -> list[tuple[str, Seen]]:
        """The symptoms that are evidence for the cause, its first condition first."""
        names = [c.symptom for c in (*self.all, *self.any) if not c.negation and c.holds(seen)]
        needed = [name for suspect in self.suspects if suspect.rank(seen) is not None for name in suspect.needs]
        found = [(name, seen[name]) for name in dict.fromkeys([*names, *needed, *self.also])]
        return [(name, sighting) for name, sighting in found if isinstance(sighting, Seen)]

    def suspected(self, seen: Sightings, source: str) -> tuple[Suspect, ...]:
        """The suspects that the log does not rule out, those with support in it first."""
        possible = self.suspects if source in FRAMEWORKS else (*self.own_suspects, *self.suspects)
        ranks = [(suspect.rank(seen), suspect) for suspect in possible]
        kept = [(rank, suspect) for rank, suspect in ranks if rank is not None]
        return tuple(suspect for _, suspect in sorted(kept, key=lambda pair: pair[0]))

    def advised(self, suspected: Sequence[Suspect], source: str) -> tuple[Remedy, ...]:
        """The remedies that can be set in the trainer that wrote the log, those of the likeliest suspects first."""
        order = [suspect.name for suspect in suspected if suspect.name]
        fitting = [remedy for remedy in self.remedies if remedy.fits(source)]
        fitting = [remedy for remedy in fitting if not remedy.against or remedy.against in order]
        return tuple(sorted(fitting, key=lambda remedy: order.index(remedy.against) if remedy.against else 0))

    def lacks(self, seen: Sightings) -> list[Unknown]:
        """The metrics that would have to be logged to decide."""
        found = [missing for c in (*self.all, *self.any) if c.holds(seen) is None for missing in c.unknown(seen)]
        return list(dict.fromkeys(found))


@functools.cache
def known_suspects() -> Mapping[str, Suspect]:
    """Every suspect of data/diagnosis/suspects.toml."""
    return {name: Suspect(name=name, **table) for name, table in tables("suspects").items()}


@functools.cache
def known_causes() -> Sequence[Cause]:
    """Every cause of data/diagnosis/causes.toml, the more specific first."""
    return [Cause.read(name, table) for name, table in tables("causes").items()]


def effective(remedies: Iterable[Remedy], log: Log) -> tuple[Remedy, ...]:
    """The remedies that can change the log's run, each with the settings that can; those without settings stay.

    What the loss of its algorithm does not use, or has already, is not advised.
    """
    beta = {"beta": 1} if log.objectives else {}  # each has its own
    parts = unused({"beta": log.settings.get("beta", 1), **formulas_in(log), **beta})
    idle = {name for told in told_by(log).values() for name in told.get(IDLE, ())}
    idle |= {name for part in parts for name in (f"loss.{part}", *ELSEWHERE.get(part, ()))}
    idle |= {f"guards.{name}" for name, part in PART_OF.items() if part in parts}
    settings = settings_that_tell(log)

    def acts(setting: str) -> bool:
        name, _, value = setting.partition("=")
        return idle.isdisjoint(re.findall(r"[\w.]+", setting)) and str(settings.get(name)) != (value.strip("'") or None)

    own = FIELD_OF.get(log.source)
    found = []
    for remedy in remedies:
        given = {name: text for name in FIELDS if (text := getattr(remedy, name))}
        kept = {name: ", ".join(filter(acts, text.split(", "))) for name, text in given.items()}
        asked = list(given) if not own else [own] if own in given else []
        changed = replace(remedy, **kept)
        if not asked or (any(kept[name] for name in asked) and changed.fits(log.source)):
            found.append(changed)
    return tuple(found)


@dataclass(frozen=True)
class Evidence:
    """One symptom: the step that showed it first, the value there, and the last value of that curve."""

    symptom: str
    metric: str
    step: int
    value: float
    last: float
    says: str
    medians: str = ""
    """The medians of the same curve of each objective, as "F 0.032, H 0"; empty for a curve of the run."""

    @property
    def healthy(self) -> tuple[float, float]:
        """The metric's healthy range; a setting, a crash and a single reward function have none."""
        if of_run(self.metric) not in METRICS:
            return -math.inf, math.inf
        usual = metric(self.metric)
        return usual.low, usual.high


@dataclass(frozen=True)
class DetectedCause:
    """A cause that the log shows, its first step and its evidence."""

    cause: Cause
    step: int
    evidence: tuple[Evidence, ...]
    suspects: tuple[Suspect, ...] = ()
    """The suspects that log and trainer leave possible, the most likely first."""
    remedies: tuple[Remedy, ...] = ()
    """The remedies that can be set in the trainer that wrote the log, for the likeliest suspects first."""

    @property
    def objective(self) -> str:
        """The objective whose curves show the cause; empty if those of the run do."""
        names = [evidence.metric for evidence in self.evidence if of_run(evidence.metric) in METRICS]
        return next((name.rpartition("/")[2] for name in names if name != of_run(name)), "")


@dataclass(frozen=True)
class PossibleCause:
    """A cause that the log cannot rule out, and the metrics that it lacks."""

    cause: Cause
    step: int
    lacks: tuple[Unknown, ...]
