"""The trainer that is verified: a user's adapter, or this project's own trainer as one."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.analysis.verification.cycles import Trainer
from grpo_lab.config import catalog, user_code
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.hooks import Stage
from grpo_lab.errors import ConfigError
from grpo_lab.events import Event, Stepped
from grpo_lab.models import loading
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.tasks.rewards import REWARDS
from grpo_lab.training import rollouts
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import Intervention, Outcome, Step, known
from grpo_lab.training.objectives import COMBINATIONS, resolve
from grpo_lab.training.registry import chosen_formulas
from grpo_lab.training.trainer import train

ADAPTER = "Adapter"
"""The name in a user's file, where none is given."""
NUM_PROMPTS, NUM_GENERATIONS, LENGTH = 4, 4, 32
"""The most of a batch that is needed to verify a trainer."""
REWARD = "verify"
"""The name of the checks' own reward in a config."""
NEUTRAL = {
    name: value
    for name, value in asdict(SamplingConfig()).items()
    if name not in ("temperature", "max_completion_length")
}
"""Filters and penalties that change nothing."""


def adapter_of(target: str, settings: Sequence[str] = ()) -> Callable[[], Trainer]:
    """A function that returns a fresh trainer at each call: a user's `file.py:Adapter`, or the own one of a config.

    Raises ConfigError for a target that does not exist.
    """
    if re.search(r"\.py(:\w+)?$", target):
        if settings:
            raise ConfigError(f"{target}: --set and --model change a config; set them in the file of your trainer")
        return user_code.load(target if user_code.is_own(target) else f"{target}:{ADAPTER}")
    return own_trainer(catalog.named(target).with_(*settings))


def own_trainer(config: Config) -> Callable[[], OwnTrainer]:
    """A function that returns this project's trainer with a config, on a small batch, as an adapter."""
    data = config.data
    objectives = tuple(
        replace(each, rewards=None, num_prompts=each.num_prompts and NUM_PROMPTS) for each in config.objectives
    )
    small = replace(config, objectives=objectives).with_(
        f"run.num_steps={1 + max(1, len(objectives))}",
        "run.num_eval=0",
        "run.stages=grpo",
        "run.exact_kl=false",
        f"data.rewards={REWARD},",
        "judge.workers=0",
        f"data.num_prompts={NUM_PROMPTS}",
        f"data.num_generations={min(data.num_generations, NUM_GENERATIONS)}",
        f"sampling.max_completion_length={min(config.sampling.max_completion_length, LENGTH)}",
    )
    model, tokenizer = loading.load(small.model.name, small.model.precision, small.run.device)
    return lambda: OwnTrainer(small, copy.deepcopy(model), tokenizer)


class OwnTrainer:
    """`grpo_lab.train` as an adapter; two guards, the last of their stages, keep the tensors that pass by."""

    def __init__(self, config: Config, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.num_iterations = config.loss.num_iterations
        self.terminators = rollouts.terminators(model, tokenizer).tolist()
        self.pad_token_id = tokenizer.pad_token_id
        self.half_precision = not PRECISIONS[config.model.precision].exact(model.device)
        several = [objective for objective in resolve(config) if objective.num_prompts and config.objectives[1:]]
        self.objectives = [objective.name for objective in several]
        # The mistake `overwrite` stands where the gradients should be added.
        self.combination = config.loss.combination if config.loss.combination in COMBINATIONS else "separate"
        self._config, self._tokenizer = config, tokenizer
        self._events: Iterator[Event] | None = None
        self._reward: Callable[..., list[float | None]] = lambda **_: []
        self._seen: dict[str, dict[str, Any]] = {}
        if any(objective.beta for objective in resolve(config)):
            estimator = chosen_formulas(config).kl_estimator
            self.kl = lambda logprobs, ref_logprobs: estimator(ref_logprobs - logprobs)

    def step(self, reward: Callable[..., list[float | None]], micro_batches: int) -> list[dict[str, Any]]:
        """Run one step of the trainer; the first call begins the run.

        Raises RuntimeError for a step that has no batch, and any error of the step.
        """
        self._reward, self._seen = reward, {}
        if self._events is None:
            self._events = self._begin(micro_batches)
        reasons = ["it ended"]
        for event in self._events:
            if isinstance(event, Stepped) and not event.failed:
                reasons = [action.reason for action in event.actions]
                break
        if not self._seen:
            raise RuntimeError(f"the step was refused before its batch was complete: {'; '.join(reasons)}")
        return list(self._seen.values())

    def _begin(self, micro_batches: int) -> Iterator[Event]:
        probes = {name: {} for name in ("verify_batch", "verify_log_ratio")}
        config = self._config.with_(f"data.micro_batch_prompts={NUM_PROMPTS // micro_batches}")
        watched = config.with_guards({**config.guards, **probes})

        def reward(**columns: Any) -> list[float | None]:
            return self._reward(**columns)

        events = train(watched, (self.model, self._tokenizer))
        batch = _probe("verify_batch", Stage.BATCH, self._see_batch)
        log_ratio = _probe("verify_log_ratio", Stage.LOG_RATIO, self._see_log_ratio)
        with (
            _registered(GUARDS, verify_batch=batch, verify_log_ratio=log_ratio),
            _registered(REWARDS, **{REWARD: reward}),
        ):
            yield next(events)  # the trainer looks its guards up when it begins
        yield from events

    def _see_batch(self, batch: Any, step: Step) -> None:
        self.model = step.policy
        names = ("old_logprobs", "ref_logprobs", "advantages", "completions")
        rows = {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}
        prompts = {name: getattr(batch, name)[batch.group] for name in ("prompt_ids", "prompt_mask")}
        more = {"logprobs": batch.sampling_logprobs, "temperature": step.sampling.temperature}
        more["filters"] = ", ".join(f"{k} = {v:g}" for k, v in asdict(step.sampling).items() if v != NEUTRAL.get(k, v))
        name = step.objective.name if step.objective else ""
        self._seen[name] = {"objective": name, **rows, **prompts, **more}

    def _see_log_ratio(self, log_ratio: Tensor, step: Step) -> None:
        if step.update == 0:
            rows = self._seen[step.objective.name if step.objective else ""]
            rows["beta"] = step.beta
            now = {"log_ratio": log_ratio.detach(), "weights": known(known(step.batch, "batch").weights, "weights")}
            rows |= {key: torch.cat([rows.get(key, new[:0]), new]) for key, new in now.items()}


def _probe(name: str, stage: Stage, see: Callable[[Any, Step], None]) -> type[Intervention]:
    """A guard that shows each value of its stage to a function and changes nothing."""

    def call(self: Intervention, value: Any, step: Step) -> Outcome:
        see(value, step)
        return Outcome(value)

    return type(name, (Intervention,), {"name": name, "stage": stage, "__call__": call})


@contextmanager
def _registered(registry: dict[str, Any], **more: Any) -> Iterator[None]:
    """Guards or reward functions that a config may name meanwhile."""
    registry.update(more)
    try:
        yield
    finally:
        for name in more:
            del registry[name]
