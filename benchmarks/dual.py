"""`python -m benchmarks.dual`: two objectives in two stages, over seeds, and each way to combine them.

Trains the preset `dual`: held-out rewards of F and H at the start, after SFT and after GRPO, and the share of steps in
the second half of GRPO in which each KL is inside its band. Writes results/dual.md.
"""

from __future__ import annotations

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from grpo_lab.analysis.markdown import number, table
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.events import Evaluated, Stepped
from grpo_lab.runs import environment
from grpo_lab.training.trainer import train
from grpo_lab.ui import console

HELD_OUT = 400
"""Problems of each objective."""
VARIANTS = {
    "preset `dual`": (),
    "no adaptive beta": ("guards.adaptive_beta=off",),
    "one beta for the mean KL": ("guards.adaptive_beta.by_objective=off",),
    "`pcgrad`": ("loss.combination=pcgrad",),
    "`alternate`": ("loss.combination=alternate",),
    "`overwrite` (a mistake)": ("loss.combination=overwrite",),
}


class Result(NamedTuple):
    """One run: held-out rewards by stage, and the share of steps in the band, each by objective."""

    rewards: list[dict[str, float]]
    inside: dict[str, float]
    against: float
    """Share of steps in which the two gradients pull apart; NaN where they are never there together."""


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the preset.")] = 5,
    others: Annotated[int, typer.Option(min=0, help="Seeds of each other variant.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 2,
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("benchmarks/results/dual.md"),
) -> None:
    """Train each variant on its seeds, and write a table."""
    rows = [["variant", "seed", "F: start, SFT, GRPO", "H: start, SFT, GRPO", "F in band", "H in band", "cosine < 0"]]
    wanted = [(name, seed) for name, changes in VARIANTS.items() for seed in range(others if changes else seeds)]
    fixed = (f"run.num_eval={HELD_OUT}", "run.device=cpu", "run.threads=1")
    configs = [preset("dual").with_(*VARIANTS[name], f"run.seed={seed}", *fixed) for name, seed in wanted]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for (name, seed), result in zip(wanted, pool.map(run, configs), strict=True):
            rewards = [", ".join(number(stage[objective]) for stage in result.rewards) for objective in "FH"]
            shares = [number(result.inside[objective]) for objective in "FH"]
            rows.append([name, str(seed), *rewards, *shares, number(result.against)])
            console.report(" | ".join(rows[-1]))
    command = f"python -m benchmarks.dual --seeds {seeds} --others {others}"
    page = f"""# Two objectives

Made by `{command}` on a CPU, torch {environment.describe(threads=1)["packages"]["torch"]}.
Held-out rewards of {HELD_OUT} problems each, sampled once at temperature 1: at the start, after SFT, after GRPO. H
counts a wrong number as -1. The bands are 0.02 to 0.06 for F and 0.08 to 0.15 for H; shares are of the steps in the
second half of GRPO. The last column is the share of steps in which the two gradients pull apart.

{table(rows)}
"""
    out.write_text(page, encoding="utf-8")
    console.say(f"page: {out}")


def run(config: Config) -> Result:
    """Train by a config with two objectives."""
    events = list(train(config))
    rewards = [event.objectives for event in events if isinstance(event, Evaluated)]
    steps = [event.metrics for event in events if isinstance(event, Stepped) and "reward" in event.metrics]
    late = steps[len(steps) // 2 :]
    inside = {}
    for objective in config.objectives:
        low, high = objective.kl_low or 0.0, objective.kl_high or 0.0
        kls = [step[f"kl/{objective.name}"] for step in late if f"kl/{objective.name}" in step]
        inside[objective.name] = statistics.fmean(low <= kl <= high for kl in kls)
    cosines = [step["gradients/cosine"] for step in steps if "gradients/cosine" in step]
    return Result(rewards, inside, statistics.fmean(c < 0 for c in cosines) if cosines else float("nan"))


if __name__ == "__main__":
    typer.run(main)
