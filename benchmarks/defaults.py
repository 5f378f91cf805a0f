"""Samples a second against TRL where no one sets the number of threads: each contender takes its own.

TRL takes torch's own choice, all cores. Our trainer takes what `run.threads = 0` gives it.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks import against_trl
from benchmarks.timing import Plan, Run, settle, use_threads
from grpo_lab.tasks import rewards as reward_functions


def measure(threads: int, plan: Plan) -> dict[str, Any]:
    """Step times of TRL and of our trainer, each on its own number of threads."""
    use_threads(threads)
    config = settle().with_(f"run.num_steps={plan.total}")
    exact_match, seen = reward_functions.load("exact_match"), set()

    def noting(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        seen.add(torch.get_num_threads())  # a run has its threads while it computes, and gives TRL its own back
        return exact_match(prompts, completions, **columns)

    found = against_trl.race(config, {"ours": Run(config, rewards=[noting])}, plan)
    numbers = {"trl": torch.get_num_threads(), "ours": sorted(seen)}
    return {**{f"defaults: {name}": value for name, value in found.items()}, "threads": numbers}
