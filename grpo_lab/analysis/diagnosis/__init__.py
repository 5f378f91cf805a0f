"""From a log of metrics to a diagnosis: the cause, its evidence, and remedies.

The diagnosis reads metrics only. Its rules are data: the symptoms and causes in data/diagnosis.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import report
from grpo_lab.analysis.diagnosis.causes import LEVELS, Cause, Sightings, known_causes, known_symptoms
from grpo_lab.analysis.diagnosis.comparison import Comparison
from grpo_lab.analysis.diagnosis.effects import effective
from grpo_lab.analysis.diagnosis.findings import ENOUGH_STEPS, DetectedCause, Evidence, Findings, PossibleCause
from grpo_lab.analysis.diagnosis.findings import HEALTHY as HEALTHY
from grpo_lab.analysis.diagnosis.findings import NOT_ENOUGH as NOT_ENOUGH
from grpo_lab.analysis.diagnosis.symptoms import Seen, Unknown
from grpo_lab.analysis.logs import Log
from grpo_lab.metrics import of_objective, of_run

OUTCOME, MECHANISM = (
    ("reward",),
    ("grad_norm", "kl", "entropy", "loss", "clip_ratio/region_mean", "completions/mean_length"),
)
"""A healthy run shows its reward, and two metrics of what the updates do."""


class Diagnosis(Findings):
    """The diagnosis of one log: what was found, and how it is said."""

    def text(self, name: str = "") -> str:
        """The whole diagnosis in words, as `grpo-lab diagnose` prints it."""
        return report.text(self, name)

    def tree(self) -> dict[str, Any]:
        """The diagnosis as plain values, as `grpo-lab diagnose --json` prints it."""
        return report.tree(self)

    def compare(self, other: "Diagnosis", names: tuple[str, str] = ("first", "second")) -> Comparison:
        """This run beside another one: settings that differ, levels of the curves, and the step at which they part."""
        return Comparison(self, other, names)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return report.html(self)


def diagnose(source: str | Path | pd.DataFrame | Log | Sequence[Mapping[str, Any]] | Any) -> Diagnosis:
    """The diagnosis of a log file or folder, a DataFrame (one row a step, TRL's names), rows as dictionaries (as
    `trainer.state.log_history`), a `Log`, or a `Session`.

    In a DataFrame, NaN means logged as NaN, and None means not logged. Of a file with several runs, one after another,
    it is that of the last; `earlier` holds the others. Raises LogError for a log that cannot be read.

    >>> import pandas as pd
    >>> inf, nan = float("inf"), float("nan")
    >>> sick = pd.DataFrame({"loss": [0.1, inf], "kl": [0.01, inf], "grad_norm": [1.0, nan]})
    >>> diagnose(sick).verdict
    'kl-overflow'
    """
    *earlier, last = map(_diagnosed, _logs(source))
    return replace(last, earlier=tuple(earlier))


def _diagnosed(log: Log) -> Diagnosis:
    seen: Sightings = {name: symptom.look(log) for name, symptom in known_symptoms().items()}
    of_each = [_of_objective(log, objective, seen) for objective in log.objectives]
    findings, possible = [], []
    for cause in known_causes():
        if not cause.suspected(seen, log.source):
            continue
        shown = [each for each in of_each if cause.onset(each) and cause.holds(each)]
        onset, held = cause.onset(seen), cause.holds(seen)
        if shown and not (held and len(shown) == len(of_each)):
            findings += [_detected(cause, each, log) for each in shown]
        elif onset and held:
            findings.append(_detected(cause, seen, log))
        elif onset and held is None and not cause.fallback:
            possible.append(PossibleCause(cause, onset.step, tuple(cause.lacks(seen))))
    return Diagnosis(log, _ranked(findings), tuple(possible), _blind(seen, log), _lacking(log))


def _lacking(log: Log) -> tuple[str, ...]:
    """What a log lacks to show that a run is healthy."""
    said = []
    if len(log.steps) < ENOUGH_STEPS:
        said.append(
            f"{len(log.steps)} logged steps: log {ENOUGH_STEPS} at least, of a run of that length or every step"
        )
    said += [f"{name}: not logged" for name in OUTCOME if name not in log.metrics]
    if sum(name in log.metrics for name in MECHANISM) < 2:
        said.append(f"two of {', '.join(MECHANISM)}: not logged")
    if log.crash:
        said.append(f"the run ended in {log.crash!r}, and no logged metric shows why: log every step")
    return tuple(said)


def _of_objective(log: Log, objective: str, whole: Sightings) -> Sightings:
    """The symptoms of one objective: those of its own curves, and of the run where it has none."""
    own, known = log.of_objective(objective), known_symptoms()
    has = {name: of_objective(symptom.metric, objective) in log.metrics for name, symptom in known.items()}
    return {name: symptom.look(own) if has[name] else whole[name] for name, symptom in known.items()}


def _detected(cause: Cause, seen: Sightings, log: Log) -> DetectedCause:
    onset = cause.onset(seen)
    assert onset is not None
    suspects = cause.suspected(seen, log.source)
    evidence, remedies = _evidence(cause, seen, log), effective(cause.advised(suspects, log.source), log)
    return DetectedCause(cause, onset.step, evidence, suspects, remedies)


def _logs(source: Any) -> list[Log]:
    """The runs of a source, in order."""
    if isinstance(source, Log):
        return [source]
    if isinstance(source, str | Path):
        return logs.read_runs(source)
    if isinstance(source, pd.DataFrame):
        return [logs.from_frame(source)]
    if isinstance(source, Sequence):
        return [logs.from_dicts(source)]
    return [logs.from_events(source.events)]


def _ranked(findings: Sequence[DetectedCause]) -> tuple[DetectedCause, ...]:
    """The causes: failures before warnings, by step, then in the order of the file."""
    certain = [finding for finding in findings if not finding.cause.fallback]
    kept = certain if any(f.cause.level == "failure" for f in certain) else findings
    return tuple(sorted(kept, key=lambda finding: (LEVELS.index(finding.cause.level), finding.step)))


def _evidence(cause: Cause, seen: Sightings, log: Log) -> tuple[Evidence, ...]:
    known = known_symptoms()
    found = [(name, sighting) for name, sighting in cause.evidence(seen) if isinstance(sighting, Seen)]
    return tuple(
        Evidence(name, s.metric, s.step, s.value, _last(s, log), known[name].says + _others(s, log))
        for name, s in found
    )


def _last(seen: Seen, log: Log) -> float:
    """The last value of the curve that shows a symptom; NaN for a setting or a crash."""
    curve = log.metrics.get(seen.metric)
    return float(curve.iloc[-1]) if curve is not None else math.nan


def _others(seen: Seen, log: Log) -> str:
    """The medians of the same curve of each objective, as " (medians: F 0.032, H 0)"; empty for one of the run."""
    of_each = {each: log.metrics.get(of_objective(of_run(seen.metric), each)) for each in log.objectives}
    medians = [f"{each} {curve.median():.3g}" for each, curve in of_each.items() if curve is not None]
    return (
        f" (medians: {', '.join(medians)})" if seen.metric in log.metrics and seen.metric != of_run(seen.metric) else ""
    )


def _blind(seen: Sightings, log: Log) -> tuple[tuple[Unknown, tuple[Cause, ...]], ...]:
    """Causes whose first symptom the log cannot show, by the metric that it lacks."""
    lacking: dict[Unknown, list[Cause]] = {}
    for cause in known_causes():
        first = seen[cause.all[0].symptom]
        if isinstance(first, Unknown) and not cause.fallback and cause.suspected(seen, log.source):
            lacking.setdefault(first, []).append(cause)
    return tuple((missing, tuple(found)) for missing, found in lacking.items())
