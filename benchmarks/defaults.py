"""Samples a second against TRL where no one sets the number of threads: each contender takes its own.

TRL takes torch's own choice, all cores. Our trainer takes what `run.threads = 0` gives it.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks import against_trl
from benchmarks.timing import DEFAULT_THREADS, Block, Plan, Run, settle, use_threads


class OwnThreads(Run):
    """A run that advances on the number of threads that it has chosen, and leaves the others theirs."""

    chosen = DEFAULT_THREADS

    def advance(self, steps: int) -> Block:
        theirs = torch.get_num_threads()
        torch.set_num_threads(self.chosen)
        block = super().advance(steps)
        self.chosen = torch.get_num_threads()  # the learner chooses when the first step builds it
        torch.set_num_threads(theirs)
        return block


def measure(threads: int, plan: Plan) -> dict[str, Any]:
    """Step times of TRL and of our trainer, each on its own number of threads."""
    use_threads(threads)
    config = settle().with_(f"run.num_steps={plan.total}")
    ours = OwnThreads(config)
    found = against_trl.race(config, {"ours": ours}, plan)
    numbers = {"trl": torch.get_num_threads(), "ours": ours.chosen}
    return {**{f"defaults: {name}": value for name, value in found.items()}, "threads": numbers}
