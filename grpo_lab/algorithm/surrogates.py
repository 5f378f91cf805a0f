"""The loss of a token in the rest of the family: its log-weight, a surrogate of it, and the correction for the sampler.

A log-weight is the log-ratio at one of `LEVELS`, in nats. Every surrogate has the gradient -A * gradient of the
log-probability where the policy is the one that sampled; they differ in how they hold back updates of a policy that has
moved away. Each is a function (log_weights (b, T), logprobs (b, T), advantages, limits), of which advantages are (b,),
or (b, T) where each token has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.loss import clipped_surrogate, of_tokens
from grpo_lab.core.shapes import Bool, Float

Tokens = Float[Tensor, "B T"]
Mask = Bool[Tensor, "B T"]
Advantages = Float[Tensor, "B"] | Float[Tensor, "B T"]


def token_level(log_ratio: Tokens, mask: Mask) -> Tokens:
    """The log-ratio of each token, in nats, as it is (PPO, GRPO)."""
    return log_ratio


def sequence_level(log_ratio: Tokens, mask: Mask, normalised: bool = True) -> Tokens:
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


def sequence_token_level(log_ratio: Tokens, mask: Mask) -> Tokens:
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


class Limits(NamedTuple):
    """The numbers of a surrogate: clip range, dual clip, and the temperatures of a soft gate."""

    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    temperature_pos: float = 1.0
    temperature_neg: float = 1.05

    @property
    def highest(self) -> float:
        """The ratio above which a clip acts."""
        return 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)


def clip(log_weights: Tokens, logprobs: Tokens, advantages: Advantages, limits: Limits) -> Tokens:
    """`clipped_surrogate` (PPO, eq. 7, https://arxiv.org/abs/1707.06347), with the dual clip of `limits.delta`."""
    return clipped_surrogate(log_weights, advantages, limits.epsilon, limits.epsilon_high, limits.delta)


def cispo(log_weights: Tokens, logprobs: Tokens, advantages: Advantages, limits: Limits) -> Tokens:
    """-sg[min(r, 1 + epsilon_high)] A log pi per token, sg without gradient (CISPO, https://arxiv.org/abs/2506.13585,
    eq. 4).

    Beyond PPO's clip range tokens lose their gradient; here they keep it. The weight is bounded for either sign of A,
    so that dual clip has nothing to do, and an overflow of exp cannot reach the gradient.

    >>> once = torch.tensor([1.0]), Limits()
    >>> cispo(torch.log(torch.tensor([[2.0, 0.5]])), torch.tensor([[-1.0, -1.0]]), *once)
    tensor([[1.2000, 0.5000]])
    """
    weights = log_weights.detach().exp().clamp(max=limits.highest)
    return -weights * of_tokens(advantages).to(weights.dtype) * logprobs


def sapo(log_weights: Tokens, logprobs: Tokens, advantages: Advantages, limits: Limits) -> Tokens:
    """-(4 / tau) sigmoid(tau (r - 1)) A per token: a soft gate for a hard clip (SAPO, https://arxiv.org/abs/2511.20347).

    Its slope at r = 1 is 1 and falls to both sides, the faster the higher tau, which is `temperature_pos` for A > 0 and
    `temperature_neg` otherwise. Like PPO's, its gradient is NaN where exp overflows: bound the log-ratio before.

    >>> sapo(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([1.0, -1.0]), Limits(temperature_neg=2.0))
    tensor([[-2.],
            [ 1.]])
    """
    gains = of_tokens(advantages).to(log_weights.dtype)
    tau = torch.full_like(gains, limits.temperature_neg).masked_fill(gains > 0, limits.temperature_pos)
    return -torch.sigmoid(tau * (log_weights.exp() - 1)) * 4 / tau * gains


def unclipped(log_weights: Tokens, logprobs: Tokens, advantages: Advantages, limits: Limits) -> Tokens:
    """-r A per token: importance sampling without a bound (PPO, eq. 6, https://arxiv.org/abs/1707.06347).

    >>> unclipped(torch.log(torch.tensor([[2.0]])), torch.zeros(1, 1), torch.tensor([3.0]), Limits())
    tensor([[-6.]])
    """
    return -log_weights.exp() * of_tokens(advantages).to(log_weights.dtype)


def reinforce(log_weights: Tokens, logprobs: Tokens, advantages: Advantages, limits: Limits) -> Tokens:
    """-A log pi per token (REINFORCE, https://link.springer.com/article/10.1007/BF00992696): no ratio at all.

    Right for the first update on a batch only; later ones are of a policy that did not sample it.

    >>> reinforce(torch.zeros(1, 1), torch.tensor([[-0.5]]), torch.tensor([3.0]), Limits())
    tensor([[1.5000]])
    """
    return -of_tokens(advantages).to(logprobs.dtype) * logprobs


SURROGATES: dict[str, Callable[[Tensor, Tensor, Tensor, Limits], Tensor]] = {
    surrogate.__name__: surrogate for surrogate in (clip, cispo, sapo, unclipped, reinforce)
}
"""By the setting `loss.surrogate`."""


def uncorrected(losses: Tokens, batch: Batch, clip_min: float | None, clip_max: float | None) -> Tokens:
    """The losses as they are: the sampler is taken for the policy before the updates."""
    return losses


def corrected(
    losses: Tokens,
    batch: Batch,
    clip_min: float | None,
    clip_max: float | None,
    by_sequence: bool = False,
    masked: bool = False,
) -> Tokens:
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
