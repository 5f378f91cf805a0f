"""The cost of guards and recorder on a healthy run: step time with guards over none, recorder on over off.

`python -m benchmarks.guards` measures the notes of tokens and the histograms alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.timing import Block, Plan, Run, compare, milliseconds, settle, take_turns, use_threads
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config, Switches
from grpo_lab.metrics import OF_THE_MACHINE
from grpo_lab.training import recorder, registry, state
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.recorder import Recorder
from grpo_lab.training.token_notes import TokenNotes

QUIET: dict[str, dict[str, Any]] = {
    "warm_up": {"steps": 1},
    "clip_gradients": {"max_norm": 1e9},
    "skip_spikes": {"threshold": 1e9},
    "clamp_advantages": {"limit": 1e9},
    "clamp_logits": {"limit": 1e9},
    "clamp_log_ratio": {"limit": 1e9},
    "clamp_kl": {"limit": 1e9},
}
"""Limits above every value of a healthy run: a guard compares, which is its cost, and never acts."""
ACTS_BY_DESIGN = ("safe_sampling", "adaptive_learning_rate", "adaptive_beta")


def quiet(guards: Switches) -> dict[str, dict[str, Any]]:
    """The same guards with limits that no healthy run reaches."""
    return {name: {**settings, **QUIET.get(name, {})} for name, settings in guards.items()}


def stable() -> dict[str, dict[str, Any]]:
    """The guards of preset `stable`, with limits that no healthy run reaches."""
    return quiet(preset("stable").guards)


def everyone() -> dict[str, dict[str, Any]]:
    """Every guard with limits that no healthy run reaches, except those that change a healthy run at any limit."""
    return quiet({name: {} for name in GUARDS if name not in ACTS_BY_DESIGN})


class Blind(Recorder):
    """A recorder that records nothing. It returns zeros as norms, which are not read without guards."""

    def tensor(self, link: str, value: Tensor, update: int = 0, note: str = "") -> None: ...

    def metric(self, name: str, value: Tensor, update: int = 0) -> None: ...

    def parameters(self, *args: Any, **keywords: Any) -> Tensor:
        return torch.zeros(1)

    def count_now(self) -> float:
        return 0.0


def blindfolded(config: Config) -> Run:
    """A run without recorder and observers. `Training` still computes its metrics; none is recorded."""
    run = Run(config)
    with mock.patch.object(state, "Recorder", Blind), mock.patch.object(registry, "OBSERVERS", ()):
        run.advance(1)  # a generator begins its Training at the first step
    return run


def _nothing(*_: object) -> None: ...


class Bare(Run):
    """A run whose recorder has neither notes of tokens nor histograms."""

    def advance(self, steps: int) -> Block:
        no_sample = mock.patch.object(recorder, "sample_of", _nothing)
        with mock.patch.multiple(TokenNotes, tensor=_nothing, begin=_nothing), no_sample:
            return super().advance(steps)


def inside(threads: int, plan: Plan) -> dict[str, Any]:
    """Step times of a healthy run with the notes of tokens and the histograms over those without."""
    use_threads(threads)
    config = settle().with_(f"run.num_steps={plan.total}")
    runs = {"notes": Run(config), "bare": Bare(config)}
    blocks = take_turns({name: run.advance for name, run in runs.items()}, plan)
    return {
        "token notes and histograms on / off": compare(blocks["notes"], blocks["bare"]),
        "step ms": {name: milliseconds(row) for name, row in blocks.items()},
        "same numbers": same(runs["notes"], runs["bare"]),
    }


def measure(threads: int, plan: Plan) -> dict[str, Any]:
    """Step times of a healthy run: without guards, with those of `stable`, with every guard, and without a recorder."""
    use_threads(threads)
    config = settle().with_(f"run.num_steps={plan.total + 1}")
    runs = arms(config, {"none": {}, "stable": stable(), "everyone": everyone()})
    runs |= {"blind": blindfolded(config), "bare": Bare(config)}
    blocks = take_turns({name: run.advance for name, run in runs.items()}, plan)
    return {
        "guards stable / none": compare(blocks["stable"], blocks["none"]),
        "guards everyone / none": compare(blocks["everyone"], blocks["none"]),
        "recorder on / off": compare(blocks["none"], blocks["blind"]),
        "token notes and histograms on / off": compare(blocks["none"], blocks["bare"]),
        "step ms": {name: milliseconds(row) for name, row in blocks.items()},
        "acted": {name: sorted(run.acted) for name, run in runs.items()},
        "same numbers": {name: same(runs["none"], runs[name]) for name in ("stable", "everyone")},
    }


def arms(config: Config, guards: Mapping[str, Switches]) -> dict[str, Run]:
    """The same run under each set of guards."""
    return {name: Run(config.with_guards(switches)) for name, switches in guards.items()}


def same(one: Run, other: Run) -> bool:
    """Whether two runs have bit-identical metrics, except metrics of the machine and those that need a snapshot."""
    return [_numbers(step.metrics) for step in one.steps] == [_numbers(step.metrics) for step in other.steps]


def _numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in {*OF_THE_MACHINE, "weights/max_move"}}


if __name__ == "__main__":
    print(json.dumps(inside(1, Plan(blocks=150, steps=1)), indent=2))
