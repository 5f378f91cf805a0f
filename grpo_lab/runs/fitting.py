"""Changes of a config that need less memory: halved settings, and the largest micro-batch that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError
from grpo_lab.runs.memory import Prediction, predict
from grpo_lab.training.objectives import resolve

HALVED = {
    "data.micro_batch_prompts": 1,
    "data.num_prompts": 1,
    "data.num_generations": 2,
    "sampling.max_completion_length": 1,
    "lora.r": 1,
    "sft.batch_size": 1,
}
"""Settings that may be halved, and the least value of each. Only the first leaves the results as they are."""
SPARE = 1.15
"""A prediction fits if it fits this many times: it is within 15 % of a measurement (docs/memory.md)."""


@dataclass(frozen=True)
class Halving:
    """A setting, its value and half of it, and the prediction with the half."""

    setting: str
    old: int
    new: int
    after: Prediction


def halvings(config: Config, now: Prediction) -> Iterator[Halving]:
    """Yield the halvings that are possible, each with its prediction."""
    for setting, old in _in_use(config, now.micro_batch).items():
        if old // 2 >= HALVED.get(setting, 1):
            after = predict(config.with_(f"{setting}={old // 2}"), now.process)
            if after.peak < now.peak:  # objectives may have settings of their own in place of this one
                yield Halving(setting, old, old // 2, after)


def _in_use(config: Config, micro_batch: int) -> dict[str, int]:
    """The settings that may be halved, those of objectives too, with their values; 0 for one that is not in use."""
    tree = config.to_dict()
    values = {setting: tree[(parts := setting.split("."))[0]][parts[1]] for setting in HALVED}
    for each in config.objectives:
        own = {"num_prompts": each.num_prompts, **each.sampling}
        names = {"num_prompts": "num_prompts", "max_completion_length": "sampling.max_completion_length"}
        values |= {f"objectives.{each.name}.{path}": own[name] for name, path in names.items() if own.get(name)}
    return values | {"data.micro_batch_prompts": micro_batch}


def by_savings(found: Iterator[Halving]) -> list[Halving]:
    """The halvings, the one that saves most first."""
    return sorted(found, key=lambda halving: halving.after.peak)


def largest_micro_batch(config: Config, free: float, process: float) -> tuple[Config, Prediction]:
    """The config with the largest micro-batch that fits in the free MiB, and its prediction.

    `process` is as `predict` takes it. Micro-batches add up to the same batch, so results change in their last bits at
    most. Raises ConfigError where not even one prompt's completions fit.
    """

    def of(prompts: int) -> tuple[Config, Prediction]:
        tried = config.with_(f"data.micro_batch_prompts={prompts}")
        return tried, predict(tried, process)

    prompts = {"grpo": [objective.num_prompts for objective in resolve(config)], "sft": [config.sft.batch_size]}
    best, low, high = of(1), 2, max(number for stage in config.run.stages for number in prompts[stage])
    if best[1].peak * SPARE > free:
        raise _too_much(*best, free)
    while low <= high:
        middle = (low + high + 1) // 2
        tried = of(middle)
        if tried[1].peak * SPARE <= free:
            best, low = tried, middle + 1
        else:
            high = middle - 1
    return best


def _too_much(config: Config, needed: Prediction, free: float) -> ConfigError:
    first = by_savings(halvings(config, needed))[:1]
    ways = [f"{each.setting}={each.new} needs {each.after.peak * SPARE:,.0f}" for each in first]
    return ConfigError(
        f"not even a micro-batch of one prompt with its {config.data.num_generations} completions fits: it needs "
        f"{needed.peak * SPARE:,.0f} MiB ({needed.peak:,.0f} predicted, and 15 % to spare), {free:,.0f} are free; "
        + "; ".join([*ways, "free memory, or take a smaller model"])
    )
