"""From a log of metrics to findings: what broke first, on what evidence, and what to try.

It sees metrics and nothing else. Rules are data: symptoms and causes in data/diagnosis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis.causes import Cause, Sightings, known_causes, known_symptoms
from grpo_lab.analysis.diagnosis.symptoms import Seen, Unknown
from grpo_lab.analysis.logs import Log
from grpo_lab.metrics import METRICS

HEALTHY = "healthy"
"""The verdict where nothing is wrong in what was logged."""


@dataclass(frozen=True)
class Evidence:
    """One symptom: where it was seen first, and what is healthy there."""

    symptom: str
    metric: str
    step: int
    value: float
    says: str

    @property
    def healthy(self) -> tuple[float, float]:
        """The metric's healthy range."""
        return METRICS[self.metric].low, METRICS[self.metric].high


@dataclass(frozen=True)
class DetectedCause:
    """A cause that the log shows, from which step on, and why."""

    cause: Cause
    step: int
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class PossibleCause:
    """A cause that may be, if what the log lacks were there to show it."""

    cause: Cause
    step: int
    lacks: tuple[Unknown, ...]


@dataclass(frozen=True)
class Diagnosis:
    """What a log says about a run."""

    log: Log
    findings: tuple[DetectedCause, ...]
    """The cause first, then what probably came of it; none where nothing is wrong."""
    possible: tuple[PossibleCause, ...]
    """Causes that fit what was seen and that the log cannot tell from the one found."""
    blind: tuple[tuple[Unknown, tuple[Cause, ...]], ...]
    """What the log lacks, with the causes that only this would show."""

    @property
    def verdict(self) -> str:
        """The name of the cause, or `healthy`."""
        return self.findings[0].cause.name if self.findings else HEALTHY


def diagnose(source: str | Path | pd.DataFrame | Log | Any) -> Diagnosis:
    """Findings for a log file or folder, a DataFrame (a row a step, TRL's names), a `Log`, or a `Session`.

    In a DataFrame a NaN was logged as NaN, and None was not logged. Raises LogError for what cannot be read.

    >>> import pandas as pd
    >>> inf, nan = float("inf"), float("nan")
    >>> sick = pd.DataFrame({"loss": [0.1, inf], "kl": [0.01, inf], "grad_norm": [1.0, nan]})
    >>> diagnose(sick).verdict
    'kl-overflow'
    """
    log = _log(source)
    seen: Sightings = {name: symptom.look(log) for name, symptom in known_symptoms().items()}
    findings, possible = [], []
    for cause in known_causes():
        onset, held = cause.onset(seen), cause.holds(seen)
        if onset is None or held is False:
            continue
        if held:
            findings.append(DetectedCause(cause, onset.step, _evidence(cause, seen)))
        else:
            possible.append(PossibleCause(cause, onset.step, tuple(cause.lacks(seen))))
    return Diagnosis(log, _ranked(findings), tuple(p for p in possible if not p.cause.fallback), _blind(seen))


def _log(source: Any) -> Log:
    if isinstance(source, Log):
        return source
    if isinstance(source, str | Path):
        return logs.read(source)
    if isinstance(source, pd.DataFrame):
        return logs.from_frame(source)
    return logs.from_events(source.events)


def _ranked(findings: Sequence[DetectedCause]) -> tuple[DetectedCause, ...]:
    """Failures before warnings, the earlier first; in the same step as they stand in the file."""
    certain = [finding for finding in findings if not finding.cause.fallback]
    kept = certain if any(f.cause.level == "failure" for f in certain) else findings
    return tuple(sorted(kept, key=lambda finding: (finding.cause.level == "warning", finding.step)))


def _evidence(cause: Cause, seen: Sightings) -> tuple[Evidence, ...]:
    known = known_symptoms()
    found = [(name, sighting) for name, sighting in cause.evidence(seen) if isinstance(sighting, Seen)]
    return tuple(Evidence(name, known[name].metric, s.step, s.value, known[name].says) for name, s in found)


def _blind(seen: Sightings) -> tuple[tuple[Unknown, tuple[Cause, ...]], ...]:
    """Causes whose first symptom the log cannot show, by what it lacks."""
    lacking: dict[Unknown, list[Cause]] = {}
    for cause in known_causes():
        first = seen[cause.all[0].symptom]
        if isinstance(first, Unknown) and not cause.fallback:
            lacking.setdefault(first, []).append(cause)
    return tuple((missing, tuple(found)) for missing, found in lacking.items())
