"""Try a scenario's own claims: it fails on every seed, each cure stops it, each heal lets it learn, no decoy helps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from grpo_lab.config.catalog import Expectation, Scenario
from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import Stepped
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.training.trainer import train

FAILS, STOPPED = "fails", "does not fail"
ALONE, CURE, HEAL, DECOY = "alone", "cure", "heal", "decoy"
EXPECTED = {ALONE: FAILS, CURE: STOPPED, HEAL: STOPPED, DECOY: FAILS}
"""The result that each claim of a scenario promises on every seed."""


class Claim(NamedTuple):
    """One claim of a scenario, and the result on each seed."""

    kind: str
    change: tuple[str, ...]
    results: tuple[str, ...]
    """`FAILS`, `STOPPED`, or another error in words, for each seed."""

    @property
    def holds(self) -> bool:
        """Whether every seed gave the promised result."""
        return all(result == EXPECTED[self.kind] for result in self.results)


def claims(case: Scenario, seeds: Sequence[int]) -> Iterator[Claim]:
    """Try every claim of a scenario on these seeds, with the scenario's own guards and length.

    A heal is tried with the longer run and the batch of [trial], where it must not fail; learning itself is measured by
    `python -m benchmarks.heals`.
    """
    heals = [heal.change for heal in case.heals]
    changes = [(ALONE, ()), *((CURE, each) for each in case.cures), *((HEAL, each) for each in heals)]
    for kind, change in (*changes, *((DECOY, each) for each in case.decoys)):
        config = case.config().merged(case.trial) if kind == HEAL else case.config()
        found = (result(config.with_(*change, f"run.seed={seed}"), case.expect) for seed in seeds)
        yield Claim(kind, change, tuple(found))


def result(config: Config, expect: Expectation) -> str:
    """`FAILS` if a run shows the symptoms, `STOPPED` if nothing is wrong with it, else the reason in words.

    Refused steps do not count.
    """
    metrics: list[dict[str, float]] = []
    operator = ""
    try:
        for event in train(config):
            if isinstance(event, Stepped) and not event.refused:
                metrics.append(dict(event.metrics))
    except GrpoLabError:
        raise
    except Exception as error:  # a crash is the symptom of some scenarios; any other is a result for the table
        operator = classify_crash(str(error)).operator or type(error).__name__
    if expect.shown(operator, metrics):
        return FAILS
    if operator:
        return f"crashes in {operator}"
    weights_lost = metrics and not math.isfinite(metrics[-1].get("loss", 0.0))
    return "loss is not finite" if weights_lost else STOPPED
