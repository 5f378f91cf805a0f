"""Try a scenario's own claims: it fails on every seed, each cure stops it, each heal lets it learn, no decoy helps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from grpo_lab.analysis.matrix import HELD_OUT, STABLE
from grpo_lab.config.catalog import Expectation, Scenario
from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import Event, Stepped
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.runs.outcome import Learned, outcome
from grpo_lab.training.trainer import train

FAILS, STOPPED, LEARNS = "fails", "does not fail", "learns"
ALONE, CURE, HEAL, DECOY = "alone", "cure", "heal", "decoy"
EXPECTED = {ALONE: FAILS, CURE: STOPPED, HEAL: LEARNS, DECOY: FAILS}
"""The result that each claim of a scenario promises on every seed."""


class Claim(NamedTuple):
    """One claim of a scenario, and the result on each seed."""

    kind: str
    change: tuple[str, ...]
    results: tuple[str, ...]
    """`FAILS`, `STOPPED`, `LEARNS`, or another result in words, for each seed."""

    @property
    def holds(self) -> bool:
        """Whether every seed gave the promised result."""
        return all(result == EXPECTED[self.kind] for result in self.results)


def claims(case: Scenario, seeds: Sequence[int]) -> Iterator[Claim]:
    """Try every claim of a scenario on these seeds, with its own guards and length.

    A heal is tried as in `python -m benchmarks.runs heals`: with the guards of `stable` and the length and batch of
    [trial], where it has to learn.
    """
    for kind, changes in ((ALONE, [()]), (CURE, case.cures), (HEAL, [each.change for each in case.heals])):
        for change in changes:
            yield _tried(case, kind, change, seeds)
    for change in case.decoys:
        yield _tried(case, DECOY, change, seeds)


def _tried(case: Scenario, kind: str, change: tuple[str, ...], seeds: Sequence[int]) -> Claim:
    if kind == HEAL:
        config = case.config(guards=STABLE).merged(case.trial).with_(f"run.num_eval={HELD_OUT}")
        return Claim(kind, change, tuple(learning(config.with_(*change, f"run.seed={seed}")) for seed in seeds))
    configs = (case.config().with_(*change, f"run.seed={seed}") for seed in seeds)
    return Claim(kind, change, tuple(result(config, case.expect) for config in configs))


def result(config: Config, expect: Expectation) -> str:
    """`FAILS` if a run shows the symptoms, `STOPPED` if nothing is wrong with it, else the reason in words.

    Refused steps do not count.
    """
    events, operator = _events(config)
    metrics = [event.metrics for event in events if isinstance(event, Stepped) and not event.refused]
    if expect.shown(operator, metrics):
        return FAILS
    if operator:
        return f"crashes in {operator}"
    weights_lost = metrics and not math.isfinite(metrics[-1].get("loss", 0.0))
    return "loss is not finite" if weights_lost else STOPPED


def learning(config: Config) -> str:
    """`LEARNS` if the reward of held-out problems rises beyond chance, else the reason in words."""
    events, operator = _events(config)
    found = outcome(events)
    if operator:
        return f"crashes in {operator}"
    if found.status == "stopped":
        return "is stopped by a guard"
    return LEARNS if found.learned is Learned.LEARNED else f"{found.learned}: gains {found.gained:.2f}"


def _events(config: Config) -> tuple[list[Event], str]:
    """What a run does, and the operator in which it crashed; an empty text if it ended."""
    events: list[Event] = []
    try:
        for event in train(config):
            events.append(event)
    except GrpoLabError:
        raise
    except Exception as error:  # a crash is the symptom of some scenarios; any other is a result for the table
        return events, classify_crash(str(error)).operator or type(error).__name__
    return events, ""
