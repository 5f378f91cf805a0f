"""Importance weights: the level at which policies are compared, and the gap between sampler and trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.shapes import Bool, Float


def token_level(log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The log-ratio of each token, in nats, as it is (PPO, GRPO)."""
    return log_ratio


def sequence_level(
    log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], normalised: bool = True
) -> Float[Tensor, "B T"]:
    """The mean log-ratio of a completion's tokens, at each of them, in nats; 0 outside of the mask.

    exp of it is the ratio of GSPO (https://arxiv.org/abs/2507.18071, eq. 7): (pi(y) / pi_old(y)) ^ (1 / |y|). Not
    `normalised` it is the sum: the ratio of whole completions, which RLOO clips and which grows with their length.

    >>> sequence_level(torch.tensor([[0.2, 0.4], [0.3, 9.0]]), torch.tensor([[True, True], [True, False]]))
    tensor([[0.3000, 0.3000],
            [0.3000, 0.0000]])
    """
    total = torch.where(mask, log_ratio, 0.0).sum(dim=1, keepdim=True)
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1) if normalised else 1
    return (total / lengths).expand_as(log_ratio).masked_fill(~mask, 0.0)


def sequence_token_level(log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The value of `sequence_level`, in nats, with the gradient of each token's own log-ratio (GSPO-token,
    https://arxiv.org/abs/2507.18071, eq. 14): sg[s] + log_ratio - sg[log_ratio], sg without gradient.

    With one advantage for all tokens of a completion its gradient is that of GSPO.

    >>> sequence_token_level(torch.tensor([[0.2, 0.4]]), torch.tensor([[True, True]]))
    tensor([[0.3000, 0.3000]])
    """
    own = (log_ratio - log_ratio.detach()).masked_fill(~mask, 0.0)
    return sequence_level(log_ratio.detach(), mask) + own


LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": token_level,
    "sequence": sequence_level,
    "sequence_token": sequence_token_level,
    "sequence_sum": partial(sequence_level, normalised=False),
}
"""From log-ratios (b, T) and the mask (b, T) to log-weights (b, T), by `loss.importance_sampling_level`."""


def uncorrected(
    losses: Float[Tensor, "B T"], batch: Batch, clip_min: float | None, clip_max: float | None
) -> Float[Tensor, "B T"]:
    """The losses as they are: the sampler is taken for the policy before the updates."""
    return losses


def corrected(
    losses: Float[Tensor, "B T"],
    batch: Batch,
    clip_min: float | None,
    clip_max: float | None,
    by_sequence: bool = False,
    masked: bool = False,
) -> Float[Tensor, "B T"]:
    """The losses times w = exp(old_logprobs - sampling_logprobs), policy before the updates / sampler, no gradient.

    An expectation over the sampler's tokens then becomes one over the policy's. Bounded, w costs a bias and keeps the
    variance finite (truncated importance sampling, https://fengyao.notion.site/off-policy-rl). Per token, or one weight
    for a completion, the product of its tokens' (`by_sequence`). Beyond the bounds w is the bound or, `masked`, 0.

    >>> once, mask, sampled = torch.tensor([[0]]), torch.tensor([[True, True]]), torch.tensor([[-1.0, -4.0]])
    >>> batch = Batch(once, once, once[0], once, mask, sampled, sampled, old_logprobs=torch.tensor([[-1.0, -1.0]]))
    >>> [corrected(torch.ones(1, 2), batch, None, 3.0, masked=masked).tolist() for masked in (False, True)]
    [[[1.0, 3.0]], [[1.0, 0.0]]]
    """
    assert batch.old_logprobs is not None
    gap = (batch.old_logprobs - batch.sampling_logprobs).masked_fill(~batch.completion_mask, 0.0)
    gap = gap.sum(dim=1, keepdim=True) if by_sequence else gap
    weight = gap.exp().detach().to(losses.dtype)
    bounded = weight if clip_min is None and clip_max is None else weight.clamp(clip_min, clip_max)
    return losses * (weight.masked_fill(bounded != weight, 0.0) if masked else bounded)


CORRECTIONS: dict[str, Callable[..., Tensor]] = {
    "none": uncorrected,
    "token_truncate": corrected,
    "token_mask": partial(corrected, masked=True),
    "sequence_truncate": partial(corrected, by_sequence=True),
    "sequence_mask": partial(corrected, by_sequence=True, masked=True),
}
"""From the losses (b, T) of a batch and two bounds to losses (b, T), by `loss.importance_sampling_mode`, as in TRL."""
