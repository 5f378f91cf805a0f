"""Rollout routing replay (R3, https://arxiv.org/abs/2510.11370): training meets the experts that sampling chose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.config.sections import ModelConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.logprobs import Head, Pass
from grpo_lab.core.packing import pack
from grpo_lab.errors import ConfigError
from grpo_lab.training.passes import PASSES

ROUTERS = ("MixtralTopKRouter", "OlmoeTopKRouter", "Qwen2MoeTopKRouter", "Qwen3MoeTopKRouter")
"""Classes of transformers that return scores, weights and numbers of experts, and weigh by a softmax of the scores."""
Choose = Callable[[int, Tensor, Tensor], Tensor]
"""From the number of a router, its scores (N, E) and its own choice (N, k) to the experts (N, k)."""


@dataclass(frozen=True)
class RoutedBatch(Batch):
    """A batch with the experts of each token as sampling chose them: those of all layers, side by side."""

    experts_before: Tensor | None = None
    experts: Tensor | None = None
    """(B, S, n) for the prompt, and (B, T, n) for the completion, whose last token meets none: 0."""


def choosing(model: Any, choose: Choose) -> ExitStack:
    """A block in which routers take the experts of `choose`. Raises ConfigError for a model without routers."""
    routers = [module for module in model.modules() if type(module).__name__ in ROUTERS]
    if not routers:
        raise ConfigError(f"{model.config.model_type} has no router of experts: set model.name=tiny-moe")

    def routed(router: Any, given: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        scores, weights, own = output
        experts = choose(routers.index(router), scores, own)
        chosen = scores.softmax(dim=-1, dtype=torch.float).gather(-1, experts)  # so that the router still learns
        total = chosen.sum(dim=-1, keepdim=True) if getattr(router, "norm_topk_prob", True) else 1
        return scores, (chosen / total).to(weights.dtype), experts

    block = ExitStack()
    for router in routers:
        block.enter_context(router.register_forward_hook(routed))
    return block


def sampled(model: Any, choose: Choose | None, sample: Callable[[], Batch]) -> RoutedBatch:
    """The batch that `sample` draws while routers take the experts of `choose`, or their own, with these experts."""
    found: dict[int, list[Tensor]] = {}

    def note(number: int, scores: Tensor, own: Tensor) -> Tensor:
        found.setdefault(number, []).append(choose(number, scores, own) if choose else own)
        return found[number][-1]

    with choosing(model, note):
        batch = sample()
    prompts, *columns = (torch.cat(each, dim=1) for each in zip(*found.values(), strict=True))  # one for each pass
    experts = prompts.new_zeros(*batch.completions.shape, prompts.shape[1])
    for column, of_column in enumerate(columns):
        experts[batch.completion_mask[:, column + 1], column] = of_column  # of completions that drew another token
    before = prompts.view(*batch.prompt_ids.shape, -1)[batch.group]
    return RoutedBatch(**vars(batch), experts_before=before, experts=experts)


def pass_of(config: ModelConfig) -> Pass:
    """The pass that a config names; with the experts of sampling where it replays them."""
    run = PASSES[config.prompt_pass]

    def replayed(model: Any, batch: Batch) -> tuple[Tensor, Head]:
        assert isinstance(batch, RoutedBatch) and batch.experts is not None and batch.experts_before is not None
        experts = torch.cat([batch.experts_before, batch.experts], dim=1)
        places = torch.arange(len(experts) * experts.shape[1], device=experts.device).view(experts.shape[:2])
        if config.prompt_pass == "shared":  # laid out as tokens are; a prompt has the experts of its first completion
            start, prompts = batch.prompt_ids.shape[1], torch.arange(len(batch.prompt_ids), device=experts.device)
            first = (batch.group == prompts[:, None]).int().argmax(dim=1)
            laid_out = replace(batch, prompt_ids=places[first, :start], completions=places[:, start:])
            places = pack(laid_out, model.config.hidden_size)[0]
        chosen, count = experts.flatten(0, 1)[places.flatten()], model.config.num_experts_per_tok
        with choosing(model, lambda number, scores, own: chosen[:, number * count : (number + 1) * count]):
            return run(model, batch)

    return replayed if config.routing == "replay" else run
