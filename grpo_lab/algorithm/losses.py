"""Losses as functions of tensors alone, and the tokens that they leave out."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.logprobs import scaled
from grpo_lab.core.loss import clipped_surrogate, token_weights, weighted_sum
from grpo_lab.core.shapes import Bool, Float, Shaped


def policy_loss(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B"],
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
) -> Float[Tensor, "B T"]:
    """clipped_surrogate (PPO, eq. 7) of log_ratio = logprobs - old_logprobs, in nats.

    >>> policy_loss(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), torch.tensor([0.5]))
    tensor([[-0.5000]])
    """
    return clipped_surrogate(logprobs - old_logprobs, advantages, epsilon, epsilon_high, delta)


def highest(entropy: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], share: float) -> Bool[Tensor, "B T"]:
    """The tokens of the mask whose entropy is at or above its (1 - share) quantile: the forks of a completion
    (https://arxiv.org/abs/2506.01939; TRL's top_entropy_quantile).

    >>> highest(torch.tensor([[0.1, 0.9, 0.5, 7.0]]), torch.tensor([[True, True, True, False]]), share=0.5)
    tensor([[False,  True,  True, False]])
    """
    return mask & (entropy >= torch.quantile(entropy[mask].float(), 1 - share))


def aggregate(
    per_token: Float[Tensor, "B T"],
    completion_mask: Shaped[Tensor, "B T"],
    how: str = "token",
    max_completion_length: int | None = None,
) -> Float[Tensor, ""]:
    """The sum of per-token values times token_weights; masked positions may hold anything, even NaN.

    >>> aggregate(torch.tensor([[1.0, 3.0], [5.0, float("nan")]]), torch.tensor([[1, 1], [1, 0]]), "sequence")
    tensor(3.5000)
    """
    return weighted_sum(per_token, token_weights(completion_mask, how, max_completion_length))


def entropies(logits: Float[Tensor, "... V"], temperature: float = 1.0) -> Float[Tensor, "..."]:
    """Entropy of softmax(logits / temperature) in nats, fp32.

    >>> entropies(torch.zeros(1, 2))
    tensor([0.6931])
    """
    logp = scaled(logits, temperature).log_softmax(dim=-1)
    # A filtered token has logp = -inf and p = 0: its term is 0, not NaN.
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(dim=-1)


def sampled_tokens(batch: Batch, pad: int) -> Tensor:
    """(B, T) bool: True up to and including the end token, as sampling recorded it."""
    return batch.completion_mask


def mask_without_truncated(batch: Batch, pad: int) -> Tensor:
    """(B, T) bool: `sampled_tokens`, and nothing of a completion that was cut off at the length limit.

    The reward of an answer that was not finished says little about it (DAPO, section 3.4,
    https://arxiv.org/abs/2503.14476; TRL's mask_truncated_completions).
    """
    assert batch.ended is not None
    return batch.completion_mask & batch.ended[:, None]
