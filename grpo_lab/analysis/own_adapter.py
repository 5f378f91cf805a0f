"""This project's own trainer as an adapter."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.hooks import Stage
from grpo_lab.events import Event, Stepped
from grpo_lab.models import loading
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.training import rollouts
from grpo_lab.training.interventions import Intervention, Outcome, Step, known
from grpo_lab.training.objectives import COMBINATIONS, resolve
from grpo_lab.training.registry import chosen_formulas
from grpo_lab.training.state import Training
from grpo_lab.training.torch_settings import own_settings
from grpo_lab.training.trainer import events

NUM_PROMPTS, NUM_GENERATIONS, LENGTH = 4, 4, 32
"""The most of a batch that is needed to verify a trainer."""
USUAL = {**asdict(SamplingConfig()), "temperature": None, "max_completion_length": None}
"""Filters and penalties that change nothing."""


def own_trainer(config: Config) -> Callable[[], OwnTrainer]:
    """A function that returns this project's trainer with a config, on a small batch, as an adapter."""
    parts = tuple(
        replace(each, rewards=None, reward_weights=None, num_prompts=each.num_prompts and NUM_PROMPTS)
        for each in config.objectives
    )
    # The reward function is replaced by that of the checks.
    data = replace(config.data, rewards=("exact_match",), reward_weights=(), num_prompts=NUM_PROMPTS)
    small = replace(config, objectives=parts, data=data).with_(
        f"run.num_steps={1 + max(1, len(parts))}",
        "run.num_eval=0",
        "run.stages=grpo",
        "run.exact_kl=false",
        "judge.workers=0",
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
        several = config.objectives[1:]
        self.objectives = [each.name for each in resolve(config) if each.num_prompts and several]
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
        self._events = self._events or self._run(micro_batches)
        step = next((e for e in self._events if isinstance(e, Stepped) and not e.failed), None)
        if not self._seen:
            why = "; ".join(action.reason for action in step.actions) if step else "it ended"
            raise RuntimeError(f"the step was refused before its batch was complete: {why}")
        return list(self._seen.values())

    @own_settings
    def _run(self, micro_batches: int) -> Iterator[Event]:
        config = self._config.with_(f"data.micro_batch_prompts={NUM_PROMPTS // micro_batches}")
        training = Training(config, (self.model, self._tokenizer))
        training.rewards |= {name: [self._judge] for name in training.rewards}
        training.interventions = {stage: [*row] for stage, row in training.interventions.items()}
        for stage, see in ((Stage.BATCH, self._see_batch), (Stage.LOG_RATIO, self._see_log_ratio)):
            training.interventions.setdefault(stage, []).append(("guard", _probe(see)))
        yield from events(training)

    def _judge(self, **columns: Any) -> list[float | None]:
        return self._reward(**columns)

    def _see_batch(self, batch: Any, step: Step) -> None:
        self.model = step.policy
        names = ("old_logprobs", "ref_logprobs", "advantages", "completions")
        rows = {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}
        rows |= {name: getattr(batch, name)[batch.group] for name in ("prompt_ids", "prompt_mask")}
        rows |= {"logprobs": batch.sampling_logprobs, "temperature": step.sampling.temperature}
        unusual = {k: v for k, v in asdict(step.sampling).items() if USUAL[k] not in (None, v)}
        rows["filters"] = ", ".join(f"{name} = {value:g}" for name, value in unusual.items())
        name = step.objective.name if step.objective else ""
        self._seen[name] = {"objective": name, **rows}

    def _see_log_ratio(self, log_ratio: Tensor, step: Step) -> None:
        if step.update == 0:
            rows = self._seen[step.objective.name if step.objective else ""]
            rows["beta"] = step.beta
            now = {"log_ratio": log_ratio.detach(), "weights": known(known(step.batch, "batch").weights, "weights")}
            rows |= {key: torch.cat([rows.get(key, new[:0]), new]) for key, new in now.items()}


def _probe(see: Callable[[Any, Step], None]) -> Intervention:
    """A guard that shows each value of its stage to a function and changes nothing."""

    class Probe(Intervention):
        name = "verify"

        def __call__(self, value: Any, step: Step) -> Outcome:
            see(value, step)
            return Outcome(value)

    return Probe()
