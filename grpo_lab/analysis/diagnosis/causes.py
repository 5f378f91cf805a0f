"""Causes that metrics can tell apart: each is a table of conditions on symptoms, with suspects and remedies."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from grpo_lab.analysis.diagnosis.symptoms import Seen, Sighting, Symptom, Unknown
from grpo_lab.errors import ConfigError, unknown
from grpo_lab.paths import data_directory

Sightings = Mapping[str, Sighting]
LEVELS = ("failure", "warning")
"""A warning is named after every failure, even if it began earlier."""


@dataclass(frozen=True)
class Remedy:
    """One change to try, and the name of its setting here, in TRL and in verl."""

    do: str
    here: str = ""
    trl: str = ""
    verl: str = ""


@dataclass(frozen=True)
class Condition:
    """`a`, `not a`, `a before b`, `a with b` (in the same step) or `a by b` (not after it); a and b are symptoms."""

    text: str
    negated: bool
    symptom: str
    relation: str = ""
    other: str = ""

    @staticmethod
    def read(text: str, symptoms: Mapping[str, Symptom]) -> Condition:
        """A condition from its text.

        Raises ConfigError for a symptom or relation that does not exist, or a text with another number of words.
        """
        words = text.split()
        negated = words[0] == "not"
        words = words[1:] if negated else words
        if len(words) not in (1, 3):
            raise ConfigError(f"condition {text!r}: write a, not a, a before b, a with b, or a by b")
        if len(words) == 3 and words[1] not in _RELATIONS:
            raise unknown(f"relation in condition {text!r}", words[1], _RELATIONS)
        for name in words[::2]:
            if name not in symptoms:
                raise unknown(f"symptom in condition {text!r}", name, symptoms)
        return Condition(text, negated, *words)

    def holds(self, seen: Sightings) -> bool | None:
        """Whether the condition holds; None if the log does not show it."""
        first, second = seen[self.symptom], seen[self.other] if self.other else None
        if isinstance(first, Unknown):
            return None
        if first is None or not self.relation:
            return (first is not None) is not self.negated
        if isinstance(second, Unknown):
            return None
        return _RELATIONS[self.relation](first, second) is not self.negated

    def unknown(self, seen: Sightings) -> list[Unknown]:
        """The metrics that the log lacks to decide the condition."""
        found = [seen[name] for name in (self.symptom, self.other) if name]
        return [sighting for sighting in found if isinstance(sighting, Unknown)]


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
    all: tuple[Condition, ...]
    any: tuple[Condition, ...] = ()
    level: str = "failure"
    fallback: bool = False
    """Reported only if no other cause is found."""
    also: tuple[str, ...] = ()
    """Symptoms that are evidence if seen, and are not conditions."""
    suspects: tuple[str, ...] = ()
    tell_apart: str = ""
    remedies: tuple[Remedy, ...] = ()
    lab: str = ""
    scenarios: tuple[str, ...] = ()
    together: str = ""

    @staticmethod
    def read(name: str, tree: Mapping[str, Any], symptoms: Mapping[str, Symptom]) -> Cause:
        """A cause from its table. Raises ConfigError for an unknown setting, symptom, relation or level."""
        known = {f.name for f in fields(Cause)} - {"name"}
        for key in tree:
            if key not in known:
                raise unknown(f"setting of cause {name}", key, known)
        for symptom in tree.get("also", ()):
            if symptom not in symptoms:
                raise unknown(f"symptom of cause {name}", symptom, symptoms)
        read: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in tree.items()}
        for kind in ("all", "any"):
            read[kind] = tuple(Condition.read(text, symptoms) for text in tree.get(kind, ()))
        read["remedies"] = tuple(Remedy(**remedy) for remedy in tree.get("remedies", ()))
        cause = Cause(name=name, **read)
        if not cause.all or cause.all[0].negated or cause.level not in LEVELS:
            raise ConfigError(f"cause {name}: its first condition must be a symptom, its level one of {LEVELS}")
        return cause

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
        names = [c.symptom for c in (*self.all, *self.any) if not c.negated and c.holds(seen)]
        found = [(name, seen[name]) for name in dict.fromkeys([*names, *self.also])]
        return [(name, sighting) for name, sighting in found if isinstance(sighting, Seen)]

    def lacks(self, seen: Sightings) -> list[Unknown]:
        """The metrics that would have to be logged to decide."""
        found = [missing for c in (*self.all, *self.any) if c.holds(seen) is None for missing in c.unknown(seen)]
        return list(dict.fromkeys(found))


@functools.cache
def known_symptoms() -> Mapping[str, Symptom]:
    """Every symptom of data/diagnosis/symptoms.toml. Raises ConfigError for a file that cannot be read."""
    return {name: Symptom.read(name, table) for name, table in _tables("symptoms").items()}


@functools.cache
def known_causes() -> Sequence[Cause]:
    """Every cause of data/diagnosis/causes.toml, the more specific first. Raises ConfigError as `known_symptoms`."""
    return tuple(Cause.read(name, table, known_symptoms()) for name, table in _tables("causes").items())


def _tables(name: str) -> dict[str, dict[str, Any]]:
    """The tables of a file. Raises ConfigError for one that cannot be read."""
    path = data_directory() / "diagnosis" / f"{name}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}; mend the file or install grpo_lab again") from error
