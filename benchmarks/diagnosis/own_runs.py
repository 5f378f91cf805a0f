"""Runs of this project: every scenario, and healthy runs, diagnosed from their metrics alone.

Runs of every scenario and healthy runs are recorded with seeds that no rule was tuned on (those were below 100), read
back from their folders, and diagnosed three times: with all metrics of this project, and with those that TRL and verl
log.
"""

from __future__ import annotations

import collections
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import HEALTHY, NOT_ENOUGH, Diagnosis, diagnose, known_causes
from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.markdown import table
from grpo_lab.config import catalog
from grpo_lab.config.schema import Config
from grpo_lab.runs.session import Session
from grpo_lab.ui import console

TRUTH = {scenario: cause.name for cause in known_causes() for scenario in cause.scenarios}
LONGER = {"accumulation-overwrite": 40}
"""Steps of runs that are too short to show their symptom every time, because it needs a last micro-batch without
spread."""
HEALTHY_STEPS = (30, 60, 30, 100, 30, 60, 30, 300)
OF_VERL = (
    "reward",
    "kl",
    "entropy",
    "grad_norm",
    "loss",
    "learning_rate",
    "clip_ratio/region_mean",
    "completions/mean_length",
    "completions/clipped_ratio",
)
OF_TRL = (*OF_VERL, "reward_std", "frac_reward_zero_std")
"""TRL logs the spread of rewards within groups too. Both log the sampler's mismatch only on request."""


def sick(name: str, seed: int) -> Config:
    """The configuration of a scenario with another seed."""
    longer = [f"run.num_steps={LONGER[name]}"] if name in LONGER else []
    return catalog.scenario(name).config().with_(f"run.seed={seed}", "run.threads=1", *longer)


def healthy(seed: int) -> Config:
    """The configuration of a healthy run, with a random preset, batch, rate, temperature, KL weight and length."""
    draw = random.Random(seed)
    prompts, size = draw.choice([(16, 8), (8, 8), (16, 4), (8, 4), (12, 6), (24, 8)])
    rates = [1e-4, 2e-4, 3e-4] if prompts * size >= 64 else [5e-5, 1e-4]  # a small batch needs a small rate
    return catalog.preset(draw.choice(["stable", "plain"])).with_(
        f"data.num_prompts={prompts}",
        f"data.num_generations={size}",
        f"optimizer.learning_rate={draw.choice(rates)}",
        f"optimizer.schedule={draw.choice(['cosine', 'constant'])}",
        f"sampling.temperature={draw.choice([1.0, 1.0, 0.9, 0.8])}",
        f"sampling.top_p={draw.choice([1.0, 1.0, 0.9999])}",  # below 1 the sampler mismatch is logged
        f"loss.beta={draw.choice([0.0, 0.02, 0.04])}",
        f"loss.num_iterations={draw.choice([1, 1, 1, 2])}",
        f"run.num_steps={HEALTHY_STEPS[seed % len(HEALTHY_STEPS)]}",
        f"run.seed={seed}",
        "run.threads=1",
    )


def recorded(config: Config, folder: Path) -> Log:
    """The log of a run, read back from its folder; a run that is already there is not made again."""
    if not (folder / "environment.json").exists() or Session.open(folder).ended is None:
        shutil.rmtree(folder, ignore_errors=True)
        Session(config, folder).run()
    return logs.read(folder)


def as_logged_by(log: Log, metrics: Sequence[str], hides_nan: bool) -> Log:
    """The log of the same run by another trainer; Hugging Face's Trainer writes 0 for a loss that is not finite."""
    kept = {name: series for name, series in log.metrics.items() if name in metrics}
    if hides_nan and "loss" in kept:
        kept["loss"] = kept["loss"].where(abs(kept["loss"]) < float("inf"), 0.0)
    return Log(kept, log.format, hides_nan)


VIEWS: dict[str, Callable[[Log], Log]] = {
    "ours": lambda log: log,
    "TRL's": lambda log: as_logged_by(log, OF_TRL, hides_nan=True),
    "verl's": lambda log: as_logged_by(log, OF_VERL, hides_nan=False),
}


def graded(found: Diagnosis, truth: str) -> str:
    """`right`, `among those named`, `cannot tell` (an alarm without a cause), `silent`, or `wrong`."""
    if found.verdict == truth:
        return "right"
    if truth in [f.cause.name for f in found.findings] + [p.cause.name for p in found.possible]:
        return "among those named"
    if found.verdict == HEALTHY:
        return "silent"
    return "cannot tell" if found.verdict == NOT_ENOUGH or found.findings[0].cause.fallback else "wrong"


def runs(first: int, seeds: int, num_healthy: int, only: list[str]) -> Iterator[tuple[str, int, Config]]:
    """The runs to record: name, seed, config."""
    for name in only or catalog.scenario_names():
        yield from ((name, seed, sick(name, seed)) for seed in range(first, first + seeds))
    yield from ((HEALTHY, seed, healthy(seed)) for seed in range(first, first + num_healthy))


def measure(planned: Sequence[tuple[str, int, Config]], kept: Path) -> dict[str, Any]:
    """Verdicts by scenario, and the grades of each view."""
    verdicts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    grades: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    misses: list[str] = []
    with console.progress() as bars:
        task = bars.add_task("runs", total=len(planned), note="")
        for name, seed, config in planned:
            bars.update(task, note=f"{name}, seed {seed}")
            log, truth = recorded(config, kept / f"{name}-{seed}"), TRUTH.get(name, HEALTHY)
            for view, as_seen in VIEWS.items():
                found = diagnose(as_seen(log))
                verdicts[name][found.verdict] += view == "ours"
                grade = graded(found, truth)
                grades[f"{view}, {'healthy' if name == HEALTHY else 'sick'}"][grade] += 1
                if grade == "wrong" or (view == "ours" and grade != "right"):
                    misses.append(f"{view} metrics, {name}, seed {seed}: {found.verdict}")
            bars.advance(task)
    return {
        "verdicts": {name: {verdict: n for verdict, n in row.items() if n} for name, row in verdicts.items()},
        "grades": {view: dict(row) for view, row in grades.items()},
        "misses": misses,
    }


def markdown(found: dict[str, Any]) -> str:
    """The results as tables in Markdown."""
    rows = [["scenario", "cause class", "right", "else"]]
    for name, row in found["verdicts"].items():
        truth, total = TRUTH.get(name, HEALTHY), sum(row.values())
        others = ", ".join(f"{verdict} {n}" for verdict, n in row.items() if verdict != truth)
        rows.append([name, truth, f"{row.get(truth, 0)} of {total}", others])
    kinds = ("right", "among those named", "cannot tell", "silent", "wrong")
    views = [[view, *(str(row.get(kind, 0)) for kind in kinds)] for view, row in found["grades"].items()]
    misses = "\n".join(f"- {miss}" for miss in found["misses"])
    return f"{table(rows)}\n\n{table([['metrics, runs', *kinds], *views])}\n\n{misses}\n"
