"""From a log of metrics to a diagnosis: the cause, its evidence, and remedies.

The diagnosis reads metrics only. Its rules are data: the symptoms and causes in data/diagnosis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis.causes import Cause, Sightings, known_causes, known_symptoms
from grpo_lab.analysis.diagnosis.symptoms import Seen, Unknown
from grpo_lab.analysis.logs import Log
from grpo_lab.metrics import metric

HEALTHY = "healthy"
"""The verdict if no logged metric shows a cause."""


@dataclass(frozen=True)
class Evidence:
    """One symptom: the step that showed it first, and the value there."""

    symptom: str
    metric: str
    step: int
    value: float
    says: str

    @property
    def healthy(self) -> tuple[float, float]:
        """The metric's healthy range."""
        return metric(self.metric).low, metric(self.metric).high


@dataclass(frozen=True)
class DetectedCause:
    """A cause that the log shows, its first step and its evidence."""

    cause: Cause
    step: int
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class PossibleCause:
    """A cause that the log cannot rule out, and the metrics that it lacks."""

    cause: Cause
    step: int
    lacks: tuple[Unknown, ...]


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of one log."""

    log: Log
    findings: tuple[DetectedCause, ...]
    """The cause first, then its probable consequences; empty if nothing is wrong."""
    possible: tuple[PossibleCause, ...]
    """Causes that fit the symptoms, and that the log cannot tell from the one found."""
    blind: tuple[tuple[Unknown, tuple[Cause, ...]], ...]
    """Each metric that the log lacks, with the causes that only this metric would show."""

    @property
    def verdict(self) -> str:
        """The name of the cause, or `healthy`."""
        return self.findings[0].cause.name if self.findings else HEALTHY


def diagnose(source: str | Path | pd.DataFrame | Log | Any) -> Diagnosis:
    """The diagnosis of a log file or folder, a DataFrame (one row a step, TRL's names), a `Log`, or a `Session`.

    In a DataFrame, NaN means logged as NaN, and None means not logged. Raises LogError for a log that cannot be read.

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
    """The causes: failures before warnings, by step, then in the order of the file."""
    certain = [finding for finding in findings if not finding.cause.fallback]
    kept = certain if any(f.cause.level == "failure" for f in certain) else findings
    return tuple(sorted(kept, key=lambda finding: (finding.cause.level == "warning", finding.step)))


def _evidence(cause: Cause, seen: Sightings) -> tuple[Evidence, ...]:
    known = known_symptoms()
    found = [(name, sighting) for name, sighting in cause.evidence(seen) if isinstance(sighting, Seen)]
    return tuple(Evidence(name, s.metric or known[name].metric, s.step, s.value, known[name].says) for name, s in found)


def _blind(seen: Sightings) -> tuple[tuple[Unknown, tuple[Cause, ...]], ...]:
    """Causes whose first symptom the log cannot show, by the metric that it lacks."""
    lacking: dict[Unknown, list[Cause]] = {}
    for cause in known_causes():
        first = seen[cause.all[0].symptom]
        if isinstance(first, Unknown) and not cause.fallback:
            lacking.setdefault(first, []).append(cause)
    return tuple((missing, tuple(found)) for missing, found in lacking.items())
