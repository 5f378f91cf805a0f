"""From a log of metrics to a diagnosis: the cause, its evidence, and remedies.

The diagnosis reads metrics only. Its rules are data: the symptoms, suspects and causes in data/diagnosis.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import rules
from grpo_lab.analysis.diagnosis.report import HEALTHY as HEALTHY
from grpo_lab.analysis.diagnosis.report import NOT_ENOUGH as NOT_ENOUGH
from grpo_lab.analysis.diagnosis.report import Diagnosis, measures
from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.logs.table import fact
from grpo_lab.analysis.markdown import holds
from grpo_lab.metrics import METRICS


def diagnose(
    source: str | Path | pd.DataFrame | Log | Sequence[Mapping[str, Any]] | Any,
    metrics: Mapping[str, str] | None = None,
) -> Diagnosis:
    """The diagnosis of a log file or folder, a DataFrame (one row a step, TRL's names), rows as dictionaries (as
    `trainer.state.log_history`), a `Log`, or a `Session`.

    `metrics` gives the log's names of metrics that are not known by themselves, as {"reward": "foo"}. In a DataFrame,
    NaN means logged as NaN, and None means not logged. Of a file with several runs it is that of the last, unless that
    has hardly begun and another one is three times as long; `earlier` holds the others.

    Raises LogError for a log that cannot be read.

    >>> import pandas as pd
    >>> inf, nan = float("inf"), float("nan")
    >>> sick = pd.DataFrame({"loss": [0.1, inf], "kl": [0.01, inf], "grad_norm": [1.0, nan]})
    >>> diagnose(sick).verdict
    'kl-overflow'
    """
    if isinstance(source, str | Path):
        found = [*map(_diagnosed, logs.read_runs(source, metrics))]
        place, last = len(found) - 1, found[-1].log
        if len(last.steps) < rules.tables("story")["lacking"]["few_steps"]["least"] and not last.crash:
            longer = [at for at, each in enumerate(found) if len(each.log.steps) >= 3 * len(last.steps)]
            longer = [at for at in longer if "reward" in found[at].log.metrics or "reward" not in last.metrics]
            place = longer[-1] if longer else place
        return replace(found.pop(place), earlier=tuple(found), number=place + 1)
    if isinstance(source, pd.DataFrame):
        source = logs.from_frame(source, metrics)
    elif isinstance(source, Sequence):
        source = logs.from_dicts(source, metrics)
    return _diagnosed(source if isinstance(source, Log) else logs.from_events(source.events))


def _diagnosed(log: Log) -> Diagnosis:
    seen = rules.look(log)
    of_each = [rules.look(log.of_objective(objective)) for objective in log.objectives]
    findings, possible = [], []
    blind: dict[rules.Unknown, list[rules.Cause]] = {}
    for cause in rules.CAUSES:
        if not cause.suspected(seen, log.source):
            continue
        first = seen[cause.all[0].symptom]
        if isinstance(first, rules.Unknown) and first.metric in METRICS and not cause.fallback:
            blind.setdefault(first, []).append(cause)
        shown, held = [each for each in of_each if cause.holds(each)], cause.holds(seen)
        if shown and not (held and len(shown) == len(of_each)):
            findings += [_detected(cause, each, log) for each in shown]
        elif held:
            findings.append(_detected(cause, seen, log))
        elif held is None and isinstance(first, rules.Evidence) and not cause.fallback:
            possible.append(rules.DetectedCause(cause, first.step, lacks=cause.lacks(seen)))
    unseen = tuple((missing, tuple(causes)) for missing, causes in blind.items())
    if not len(log.steps):
        crashed = [found for found in findings if rules.SYMPTOMS[found.cause.all[0].symptom].crash]
        return Diagnosis(log, _ranked(crashed), (), (), (fact("nothing_logged"),))
    begin = [log.metrics[name].iloc[0] for name in ("loss", "grad_norm", "kl") if name in log.metrics]
    if log.begins_late and begin and all(map(math.isnan, begin)):  # broken before the log begins, which tells no cause
        return Diagnosis(log, (), (), (), (fact("rows_before", step=int(log.steps[0])),))
    shown = {name for name, sighting in seen.items() if isinstance(sighting, rules.Evidence)}
    broken = ", ".join(name for name, curve in log.metrics.items() if len(curve) and not math.isfinite(curve.iloc[-1]))
    reward = measures(log.metrics, "reward")
    about = {"kind": None, **reward, "crash": repr(log.crash), "broken": broken}
    known = {"steps": reward["count"] or len(log.steps), **about}
    rows = [(key, {**known, **rule}) for key, rule in rules.tables("story")["lacking"].items()]
    for values in (values for _, values in rows if "metrics" in values):
        values["metrics"] = ", ".join(name for name in values["metrics"].split(", ") if name not in log.metrics)
    lacking = [fact(key, **values) for key, values in rows if holds(values["when"], log=log, seen=shown, **values)]
    return Diagnosis(log, _ranked(findings), tuple(possible), unseen, tuple(lacking))


def _detected(cause: rules.Cause, seen: rules.Sightings, log: Log) -> rules.DetectedCause:
    suspects = cause.suspected(seen, log.source)
    evidence = cause.evidence(seen)
    remedies = rules.advised(cause, suspects, log)
    return rules.DetectedCause(cause, evidence[0].step, evidence, suspects=suspects, remedies=remedies)


def _ranked(findings: Sequence[rules.DetectedCause]) -> tuple[rules.DetectedCause, ...]:
    """The causes: failures before warnings, by step, then in the order of the file."""
    certain = [finding for finding in findings if not finding.cause.fallback]
    kept = certain if any(f.cause.level == "failure" for f in certain) else findings
    return tuple(sorted(kept, key=lambda finding: (rules.LEVELS.index(finding.cause.level), finding.step)))
