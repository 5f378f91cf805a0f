"""What a diagnosis has found: causes with their evidence, what the log cannot rule out, and what it lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_lab.analysis.diagnosis.causes import Cause, Remedy, Suspect
from grpo_lab.analysis.diagnosis.symptoms import Unknown
from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.logs.table import Fact
from grpo_lab.metrics import METRICS, metric, of_run

HEALTHY = "healthy"
"""The verdict if no logged metric shows a cause."""
NOT_ENOUGH = "not-enough"
"""The verdict if no logged metric shows a cause, and too little was logged to call the run healthy."""
ENOUGH_STEPS = 6
"""Rows that a curve needs to have a beginning and an end."""


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


@dataclass(frozen=True)
class Findings:
    """What a log shows: the data of a diagnosis."""

    log: Log
    findings: tuple[DetectedCause, ...]
    """The cause first, then its probable consequences, and notes; empty if nothing is wrong."""
    possible: tuple[PossibleCause, ...]
    """Causes that fit the symptoms, and that the log cannot tell from the one found."""
    blind: tuple[tuple[Unknown, tuple[Cause, ...]], ...]
    """Each metric that the log lacks, with the causes that only this metric would show."""
    lacking: tuple[Fact, ...] = ()
    """What to log before the run can be called healthy."""
    earlier: tuple[Findings, ...] = ()
    """Diagnoses of the runs that stand before this one in the same log."""

    @property
    def named(self) -> list[DetectedCause]:
        """The findings that are no notes."""
        return [finding for finding in self.findings if finding.cause.level != "note"]

    @property
    def verdict(self) -> str:
        """The name of the cause, `healthy`, or `not-enough`."""
        return self.named[0].cause.name if self.named else NOT_ENOUGH if self.lacking else HEALTHY
