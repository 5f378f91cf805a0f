"""A healthy run of every algorithm: steps until the held-out reward reaches a goal, time, last reward and KL."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from grpo_lab import seeds
from grpo_lab.analysis import markdown
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.events import Stepped
from grpo_lab.models import loading
from grpo_lab.runs.clusters import package_digest
from grpo_lab.tasks import rewards, tasks
from grpo_lab.tasks.tasks import Problem
from grpo_lab.training import rollouts
from grpo_lab.training.trainer import train

GOAL, HELD_OUT = 0.6, 250
"""The reward to reach, and the problems that it is a mean of."""
EVERY = 5
"""Steps between two measurements of the held-out reward."""
BASE = "grpo"
"""The algorithm whose time is 1."""
HEADER = ["algorithm", f"steps to {GOAL}", "reach it", "time a step", "last reward, mean", "lowest", "last KL"]
Run = dict[str, Any]
"""What was asked (`algorithm`, `seed`, `steps`, `updates`), its `key`, and what was measured."""


def config_for(algorithm: str, seed: int, steps: int, updates: int) -> Config:
    """The preset `stable` with the formulas of an algorithm."""
    shared = (f"run.seed={seed}", f"run.num_steps={steps}", "run.threads=1", "run.device=cpu")
    return preset("stable").with_algorithm(algorithm).with_(*shared, f"loss.num_iterations={updates}")


def key(config: Config) -> str:
    """Changes with the config and with the code that decides a run."""
    return f"{package_digest()[:12]} {json.dumps(config.to_dict(), sort_keys=True)}"


def measure(wanted: Iterable[Run], known: Sequence[Run], tell: Callable[[Run], None]) -> Iterator[list[Run]]:
    """All runs that are finished, after each one that was trained; one that is known with its key is not.

    `tell` is called with each run before it begins.
    """
    runs = {_name(run): run for run in known}
    for asked in wanted:
        tell(asked)
        config = config_for(**asked)
        if runs.get(_name(asked), {}).get("key") != key(config):
            runs[_name(asked)] = {**asked, "key": key(config), **trained(config)}
            yield list(runs.values())
    yield list(runs.values())


def _name(run: Run) -> tuple[Any, ...]:
    return tuple(run[name] for name in ("steps", "updates", "algorithm", "seed"))


def trained(config: Config, every: int = EVERY) -> Run:
    """The numbers of one run. The time of a step has no measurement of the held-out reward in it."""
    model = loading.load(config.model.name)
    problems = tasks.load(config.data.tasks).held_out[:HELD_OUT]
    seen, steps = [[0, held_out(*model, problems, config)]], []
    for event in train(config, model=model):
        if isinstance(event, Stepped):
            steps.append(event.metrics)
            if len(steps) % every == 0 or len(steps) == config.run.num_steps:
                seen.append([len(steps), held_out(*model, problems, config)])
    return {
        "held out": seen,
        "seconds a step": round(statistics.median(metrics["step_time"] for metrics in steps), 5),
        "kl": round(statistics.fmean(metrics.get("kl", 0.0) for metrics in steps[-5:]), 4),
    }


def held_out(model: Any, tokenizer: Any, problems: Sequence[Problem], config: Config) -> float:
    """Mean reward of one completion of each problem, sampled at temperature 1 with the same draws each time."""
    generator = torch.Generator().manual_seed(seeds.derive(config.run.seed, 0, "held out"))
    sampling = SamplingConfig(max_completion_length=config.sampling.max_completion_length)
    prompts = [problem.prompt for problem in problems]
    batch = rollouts.sample(model, tokenizer, prompts, 1, sampling, generator)
    answers = [problem.columns["answer"] for problem in problems]
    right = rewards.exact_match(prompts, rollouts.texts(tokenizer, rollouts.token_ids(batch)), answers)
    return round(statistics.fmean(value or 0.0 for value in right), 4)


def table(runs: Sequence[Run]) -> list[list[str]]:
    """A row for each algorithm, from runs that differ in algorithm and seed alone."""
    times = {run["seed"]: run["seconds a step"] for run in runs if run["algorithm"] == BASE}
    rows = []
    for name in sorted({run["algorithm"] for run in runs}, key=lambda name: (name != BASE, name)):
        mine = [run for run in runs if run["algorithm"] == name]
        reached = [steps for run in mine if (steps := steps_to_goal(run)) is not None]
        ratios = [run["seconds a step"] / times[run["seed"]] for run in mine if run["seed"] in times]
        ends = [run["held out"][-1][1] for run in mine]
        rows.append(
            [
                name,
                _median(reached, len(mine)),
                f"{len(reached)} of {len(mine)}",
                f"{statistics.median(ratios):.2f} x" if ratios else "-",
                markdown.number(statistics.fmean(ends), 2),
                markdown.number(min(ends), 2),
                markdown.number(statistics.fmean(run["kl"] for run in mine), 2),
            ]
        )
    return [HEADER, *rows]


def steps_to_goal(run: Run) -> int | None:
    """Steps before the first measurement that reaches the goal; None if none does."""
    return next((step for step, reward in run["held out"] if reward >= GOAL), None)


def _median(reached: Sequence[int], runs: int) -> str:
    """The median over all runs; one that does not reach the goal counts as later than all that do."""
    ordered = [*sorted(reached), *[None] * (runs - len(reached))]
    middle = ordered[(runs - 1) // 2]
    return "-" if middle is None else str(middle)


def page(runs: Sequence[Run]) -> str:
    """The tables in Markdown, one for each length and number of updates, with their heads."""
    parts = []
    for steps, updates in sorted({(run["steps"], run["updates"]) for run in runs}):
        some = [run for run in runs if (run["steps"], run["updates"]) == (steps, updates)]
        seeds_of_it = len({run["seed"] for run in some})
        parts.append(f"## {steps} steps, {updates} update{'s' * (updates > 1)} a batch, {seeds_of_it} seeds\n")
        parts.append(markdown.table(table(some), literal=True) + "\n")
    return "\n".join(parts)


def write(path: Path, tree: Any) -> None:
    """Write JSON so that an interruption leaves either the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    os.replace(scratch, path)
