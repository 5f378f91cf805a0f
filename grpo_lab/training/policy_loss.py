"""The loss that a config names: `core.loss.grpo_loss` with the formulas of the rest of the family in their places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from grpo_lab.algorithm.losses import entropies, highest
from grpo_lab.algorithm.surrogates import Limits
from grpo_lab.config.sections import LossConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Coefficients
from grpo_lab.core.loss import LossInputs, LossOutput, clipped_shares, grpo_loss, of_tokens, weighted_sum
from grpo_lab.training.registry import Formulas

USUAL = LossConfig()


def loss_function(settings: LossConfig, formulas: Formulas) -> Callable[[LossInputs], LossOutput]:
    """`grpo_loss`, with each formula that is not the usual one in its place."""
    replaced: dict[str, Callable[..., Any]] = {}
    if settings.log_ratio != USUAL.log_ratio:
        replaced["log_ratio"] = formulas.log_ratio
    if settings.kl_estimator != USUAL.kl_estimator:
        replaced["kl_estimate"] = formulas.kl_estimator
    of_surrogate = ("surrogate", "importance_sampling_level", "importance_sampling_mode")
    if any(getattr(settings, name) != getattr(USUAL, name) for name in of_surrogate) or has_forks(settings):
        replaced["surrogate"] = partial(surrogate, settings=settings, formulas=formulas)
    return partial(grpo_loss, **replaced) if replaced else grpo_loss


def surrogate(log_ratio: Tensor, inputs: LossInputs, settings: LossConfig, formulas: Formulas) -> LossOutput:
    """The configured surrogate at its level, of forks alone where there are some, corrected for the sampler."""
    batch, use = inputs.batch, inputs.use
    assert batch.advantages is not None
    log_weights = formulas.importance_sampling_level(log_ratio, batch.completion_mask)
    ratio = log_weights.detach().exp()
    inputs.ctx.recorder.tensor("ratio", ratio, inputs.ctx.update)
    gates = {"temperature_pos": settings.sapo_temperature_pos, "temperature_neg": settings.sapo_temperature_neg}
    limits = Limits(use.epsilon, use.epsilon_high, use.delta, **gates)
    losses = formulas.surrogate(log_weights, inputs.logprobs, batch.advantages, limits)
    if batch.forks is not None:
        losses = losses.masked_fill(batch.forks == 0, 0.0)
    low, high = settings.importance_sampling_clip_min, settings.importance_sampling_clip_max
    losses = formulas.importance_sampling_mode(losses, batch, low, high)
    clipping = CLIPPING.get(settings.surrogate)
    metrics = clipping(ratio.float(), batch.advantages, use, inputs.num_tokens) if clipping else {}
    return LossOutput(losses, metrics)


def _bounded_weights(ratio: Tensor, advantages: Tensor, use: Coefficients, num_tokens: Tensor) -> dict[str, Tensor]:
    """The share of tokens with a positive advantage whose weight CISPO bounds; they keep a gradient."""
    highest = 1 + (use.epsilon if use.epsilon_high is None else use.epsilon_high)
    return {"cispo_clip_ratio": ((ratio > highest) & (of_tokens(advantages) > 0)).sum() / num_tokens}


CLIPPING = {"clip": clipped_shares, "cispo": _bounded_weights}
"""The share of the whole batch's tokens that a surrogate clips, by the setting `loss.surrogate`."""


def has_forks(settings: LossConfig) -> bool:
    """Whether the loss knows the tokens of high entropy."""
    return settings.top_entropy_quantile != 1 or bool(settings.entropy_coef)


def with_forks(batch: Batch, settings: LossConfig) -> Batch:
    """The batch with its `forks`, taken over all its rows."""
    assert batch.entropy is not None
    forks = highest(batch.entropy, batch.completion_mask, settings.top_entropy_quantile).float()
    return replace(batch, forks=forks / forks.sum().clamp(min=1))


def entropy_bonus(logits: Tensor, batch: Batch, temperature: float) -> Tensor:
    """The mean entropy () of the forks, for logits (b, T, V) with a gradient."""
    assert batch.forks is not None
    return weighted_sum(entropies(logits, temperature), batch.forks)
