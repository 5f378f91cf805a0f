"""Contenders that take turns within one process, so that other load on the machine slows all of them alike.

Only ratios of neighbouring blocks are meaningful. The processor time of this process is measured besides the wall
clock: it hardly depends on other load, but with two threads it includes the time that one waits for the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpo_lab.config.schema import Config
from grpo_lab.events import Started, Stepped
from grpo_lab.training.trainer import train


@dataclass(frozen=True)
class Plan:
    """How long to measure: `blocks` blocks of `steps` steps for each contender, after `warm_up` unmeasured steps."""

    blocks: int = 12
    steps: int = 10
    warm_up: int = 5

    @property
    def total(self) -> int:
        """Steps each contender makes."""
        return self.warm_up + self.blocks * self.steps

    def of_large_steps(self) -> Plan:
        """The plan for steps that last a second or more: few blocks of one step."""
        return Plan(blocks=max(3, self.blocks // 3), steps=1, warm_up=1)


QUICK = Plan(blocks=3, steps=2, warm_up=2)
"""To test that everything runs; large work is left out or made small."""


@dataclass(frozen=True)
class Block:
    """Seconds a step took in one block, by the wall clock and of this process's processor time."""

    wall: float
    cpu: float


class Stopwatch:
    """A stopwatch that starts when it is made; `stop` returns the seconds a step."""

    def __init__(self) -> None:
        wait_for_device()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, steps: int) -> Block:
        wait_for_device()
        return Block((time.perf_counter() - self._wall) / steps, (time.process_time() - self._cpu) / steps)


def wait_for_device() -> None:
    """Wait until the GPU, if one is in use, has done all that was asked of it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Run:
    """One training run, advanced some steps at a time; the time includes everything that `train` does between steps."""

    def __init__(self, config: Config, model: tuple[Any, Any] | None = None, rewards: Any = None) -> None:
        self.steps: list[Stepped] = []
        self._events = train(config, model=model, rewards=rewards)

    def load(self) -> int:
        """Load the models before the first step, and return the policy's number of parameters."""
        started = next(self._events)
        assert isinstance(started, Started)
        return started.num_parameters

    def advance(self, steps: int) -> Block:
        """Seconds a step over the next `steps` steps."""
        watch, end = Stopwatch(), len(self.steps) + steps
        while len(self.steps) < end:
            event = next(self._events)
            if isinstance(event, Stepped):
                self.steps.append(event)
        return watch.stop(steps)

    def mean(self, metric: str, first: int = 0) -> float:
        """Mean of a metric over the steps made, from step `first` on."""
        return statistics.fmean(step.metrics[metric] for step in self.steps[first:])

    @property
    def acted(self) -> set[str]:
        """Names of the interventions that acted."""
        return {action.name for step in self.steps for action in step.actions}


def take_turns(contenders: Mapping[str, Callable[[int], Block]], plan: Plan) -> dict[str, list[Block]]:
    """The blocks of each contender, in an order that changes every round."""
    for advance in contenders.values():
        advance(plan.warm_up)
    blocks: dict[str, list[Block]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(plan.blocks):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            blocks[name].append(contenders[name](plan.steps))
    return blocks


def compare(above: Sequence[Block], below: Sequence[Block]) -> dict[str, Any]:
    """`above` / `below` block by block, by either clock: the median, its quartiles and extremes.

    `fastest` is the ratio of the fastest blocks, those with the least other load. `total` is the ratio of all the
    time, with rare work such as a snapshot.
    """
    found = {}
    for clock in ("wall", "cpu"):
        over, under = [getattr(block, clock) for block in above], [getattr(block, clock) for block in below]
        found[clock] = spread([a / b for a, b in zip(over, under, strict=True)])
        found[clock]["fastest"] = round(min(over) / min(under), 4)
        found[clock]["total"] = round(sum(over) / sum(under), 4)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    found = {"median": median, "low": low, "high": high, "min": min(values), "max": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def milliseconds(blocks: Sequence[Block]) -> dict[str, float]:
    """Median time of a step in milliseconds, by either clock."""
    clocks = {"wall": [block.wall for block in blocks], "cpu": [block.cpu for block in blocks]}
    return {clock: round(1000 * statistics.median(seconds), 2) for clock, seconds in clocks.items()}


DEFAULT_THREADS = torch.get_num_threads()
"""CPU threads that torch takes by itself; read before any run changes them."""


def use_threads(threads: int) -> None:
    """CPU threads of torch for every contender; 0 for torch's own choice."""
    torch.set_num_threads(threads or DEFAULT_THREADS)


TINY = (
    "data.num_prompts=16",
    "data.num_generations=8",
    "sampling.max_completion_length=5",
    "optimizer.learning_rate=3e-4",
)
PRETRAINED = (
    "model.name=smollm2-135m",
    "data.tasks=reviews",
    "data.rewards=brief_answer,",
    "data.num_prompts=4",
    "data.num_generations=4",
    "sampling.max_completion_length=12",
    "optimizer.learning_rate=1e-6",  # low, so that completions stay as long and the work stays the same to the end
)


def settle(work: Sequence[str] = TINY) -> Config:
    """The work that benchmarks share: one update a step, with a reference, on the CPU."""
    return Config().with_("run.device=cpu", "loss.beta=0.02", *work)
