"""Surrogates: the loss of a token from its log-weight, its log-probability and its advantage.

A log-weight is the log-ratio at the level of `importance.LEVELS`, in nats. Every surrogate has the gradient
-A * gradient of the log-probability where the policy is the one that sampled; they differ in how they hold back updates
of a policy that has moved away. Each is a function (log_weights (b, T), logprobs (b, T), advantages, limits), of which
advantages are (b,), or (b, T) where each token has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_lab.core.loss import clipped_surrogate, of_tokens
from grpo_lab.core.shapes import Float

Advantages = Float[Tensor, "B"] | Float[Tensor, "B T"]


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


def clip(
    log_weights: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Advantages, limits: Limits
) -> Float[Tensor, "B T"]:
    """`clipped_surrogate` (PPO, eq. 7, https://arxiv.org/abs/1707.06347), with the dual clip of `limits.delta`."""
    return clipped_surrogate(log_weights, advantages, limits.epsilon, limits.epsilon_high, limits.delta)


def cispo(
    log_weights: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Advantages, limits: Limits
) -> Float[Tensor, "B T"]:
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


def sapo(
    log_weights: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Advantages, limits: Limits
) -> Float[Tensor, "B T"]:
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


def unclipped(
    log_weights: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Advantages, limits: Limits
) -> Float[Tensor, "B T"]:
    """-r A per token: importance sampling without a bound (PPO, eq. 6, https://arxiv.org/abs/1707.06347).

    >>> unclipped(torch.log(torch.tensor([[2.0]])), torch.zeros(1, 1), torch.tensor([3.0]), Limits())
    tensor([[-6.]])
    """
    return -log_weights.exp() * of_tokens(advantages).to(log_weights.dtype)


def reinforce(
    log_weights: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Advantages, limits: Limits
) -> Float[Tensor, "B T"]:
    """-A log pi per token (REINFORCE, https://link.springer.com/article/10.1007/BF00992696): no ratio at all.

    Right for the first update on a batch only; later ones are of a policy that did not sample it.

    >>> reinforce(torch.zeros(1, 1), torch.tensor([[-0.5]]), torch.tensor([3.0]), Limits())
    tensor([[1.5000]])
    """
    return -of_tokens(advantages).to(logprobs.dtype) * logprobs


SURROGATES: dict[str, Callable[[Tensor, Tensor, Tensor, Limits], Tensor]] = {
    "clip": clip,
    "cispo": cispo,
    "sapo": sapo,
    "unclipped": unclipped,
    "reinforce": reinforce,
}
"""By the setting `loss.surrogate`."""
