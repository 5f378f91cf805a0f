"""Causes: classes that metrics can tell apart, each a table of conditions on symptoms, with what to do about it."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from grpo_lab.analysis.diagnosis.symptoms import Seen, Sighting, Symptom, Unknown
from grpo_lab.errors import ConfigError, unknown
from grpo_lab.paths import data_directory

Sightings = Mapping[str, Sighting]
LEVELS = ("failure", "warning")
"""A warning is named after every failure, whenever it began."""


@dataclass(frozen=True)
class Remedy:
    """One thing to try, and what the setting is called."""

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
        """A condition from its text. Raises ConfigError for a symptom or relation that does not exist."""
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
        """Whether it does; None where the log cannot say."""
        first = seen[self.symptom]
        if isinstance(first, Unknown):
            return None
        held: bool | None = first is not None
        if held and self.relation:
            held = _RELATIONS[self.relation](first, seen[self.other])
        return held if held is None else held is not self.negated

    def unknown(self, seen: Sightings) -> list[Unknown]:
        """What the log lacks to decide it."""
        found = [seen[name] for name in (self.symptom, self.other) if name]
        return [sighting for sighting in found if isinstance(sighting, Unknown)]


def _before(first: Seen, second: Sighting) -> bool | None:
    if isinstance(second, Unknown):
        return None
    return second is None or first.step < second.step


def _with(first: Seen, second: Sighting) -> bool | None:
    return None if isinstance(second, Unknown) else second is not None and first.step == second.step


def _by(first: Seen, second: Sighting) -> bool | None:
    return None if isinstance(second, Unknown) else second is not None and first.step <= second.step


_RELATIONS: dict[str, Any] = {"before": _before, "with": _with, "by": _by}


@dataclass(frozen=True)
class Cause:
    """One class: all of `all` and one of `any` hold. Its first condition says when it began.

    `scenarios` are those of this project that it stands for: more than one where no metric tells them apart, and
    `together` says why.
    """

    name: str
    title: str
    what: str
    all: tuple[Condition, ...]
    any: tuple[Condition, ...] = ()
    level: str = "failure"
    fallback: bool = False
    """Named only where no other cause is."""
    also: tuple[str, ...] = ()
    """Symptoms that are evidence where they are there, and no condition."""
    suspects: tuple[str, ...] = ()
    tell_apart: str = ""
    remedies: tuple[Remedy, ...] = ()
    lab: str = ""
    scenarios: tuple[str, ...] = ()
    together: str = ""

    @staticmethod
    def read(name: str, tree: Mapping[str, Any], symptoms: Mapping[str, Symptom]) -> Cause:
        """A cause from its table. Raises ConfigError for what it does not know."""
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
        """Whether the log shows it; None where it lacks something to say so."""
        every = [condition.holds(seen) for condition in self.all]
        some = [condition.holds(seen) for condition in self.any] or [True]
        if False in every or not (True in some or None in some):
            return False
        return None if None in every or True not in some else True

    def onset(self, seen: Sightings) -> Seen | None:
        """Where it began, if its first symptom was seen."""
        first = seen[self.all[0].symptom]
        return first if isinstance(first, Seen) else None

    def evidence(self, seen: Sightings) -> list[tuple[str, Seen]]:
        """The symptoms that speak for it, the first first."""
        names = [c.symptom for c in (*self.all, *self.any) if not c.negated and c.holds(seen)]
        found = [(name, seen[name]) for name in dict.fromkeys([*names, *self.also])]
        return [(name, sighting) for name, sighting in found if isinstance(sighting, Seen)]

    def lacks(self, seen: Sightings) -> list[Unknown]:
        """What would have to be logged to be sure."""
        found = [missing for c in (*self.all, *self.any) if c.holds(seen) is None for missing in c.unknown(seen)]
        return list(dict.fromkeys(found))


@functools.cache
def known_symptoms() -> Mapping[str, Symptom]:
    """Every symptom there is, from data/diagnosis/symptoms.toml."""
    return {name: Symptom.read(name, table) for name, table in _tables("symptoms").items()}


@functools.cache
def known_causes() -> Sequence[Cause]:
    """Every cause there is, from data/diagnosis/causes.toml, the more specific before the more general."""
    return tuple(Cause.read(name, table, known_symptoms()) for name, table in _tables("causes").items())


def _tables(name: str) -> dict[str, dict[str, Any]]:
    path = data_directory() / "diagnosis" / f"{name}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}; mend the file or install grpo_lab again") from error
