"""The clipped surrogate of PPO and GRPO, and the weighted sum of its per-token values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from grpo_lab.core.shapes import Bool, Float, Shaped


class LossOutput(NamedTuple):
    """A loss () to be minimised, and the metrics () of its computation by name."""

    loss: Tensor
    metrics: dict[str, Tensor]


def clipped_surrogate(
    log_ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B"] | Float[Tensor, "B T"],
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
) -> Float[Tensor, "B T"]:
    """-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) per token, with r = exp(log_ratio) (PPO, eq. 7,
    https://arxiv.org/abs/1707.06347).

    For A < 0 the minimum leaves r unbounded above; `delta` > 1 bounds it there (dual clip, https://arxiv.org/abs/1912.09729).
    The value stays finite when r overflows, the gradient does not: backward of `exp` is 0 * inf = NaN, even if a
    clamp follows it. Bound log_ratio before it.

    >>> clipped_surrogate(torch.log(torch.tensor([[2.0]])), torch.tensor([1.0]))
    tensor([[-1.2000]])
    >>> clipped_surrogate(torch.log(torch.tensor([[9.0]])), torch.tensor([-1.0]), delta=3.0)
    tensor([[3.]])
    """
    ratio = log_ratio.exp()
    advantages = of_tokens(advantages).to(ratio.dtype)
    clipped = ratio.clamp(1 - epsilon, 1 + (epsilon if epsilon_high is None else epsilon_high))
    objective = torch.min(ratio * advantages, clipped * advantages)
    if delta is not None:
        objective = torch.where(advantages < 0, torch.max(objective, delta * advantages), objective)
    return -objective


def of_tokens(advantages: Float[Tensor, "B"] | Float[Tensor, "B T"]) -> Tensor:
    """Advantages (B, 1) of all tokens alike, or (B, T) as they are.

    >>> of_tokens(torch.tensor([1.0, 2.0])).shape
    torch.Size([2, 1])
    """
    return advantages if advantages.dim() == 2 else advantages[:, None]


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


def token_weights(
    completion_mask: Shaped[Tensor, "B T"], how: str = "token", max_completion_length: int | None = None
) -> Float[Tensor, "B T"]:
    """The weight of each token in the loss; 0 where the mask is 0.

    `token`: 1 / all tokens (DAPO, https://arxiv.org/abs/2503.14476). `sequence`: 1 / (completions x own length)
    (DeepSeekMath, https://arxiv.org/abs/2402.03300). `constant`: 1 / (completions x max_completion_length) (Dr. GRPO,
    https://arxiv.org/abs/2503.20783); without a length, the width of the mask, which differs between batches. `sum`:
    1 / completions (REINFORCE; LUSPO, https://arxiv.org/abs/2602.05261). Weigh the whole batch and split the weights
    with it: micro-batches then add up to one batch. Empty rows do not count.

    >>> token_weights(torch.tensor([[1, 1], [1, 0]]), "sequence")
    tensor([[0.2500, 0.2500],
            [0.5000, 0.0000]])
    >>> token_weights(torch.tensor([[1, 1], [1, 0]]), "constant", max_completion_length=4)
    tensor([[0.1250, 0.1250],
            [0.1250, 0.0000]])
    """
    mask = completion_mask.float()
    lengths = mask.sum(dim=1, keepdim=True)
    rows = (lengths > 0).sum().clamp(min=1)
    totals = {
        "token": lengths.sum().clamp(min=1),
        "sequence": rows * lengths.clamp(min=1),
        "constant": rows * (max_completion_length or mask.shape[1]),
        "sum": rows,
    }
    return mask / totals[how]


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


def weighted_sum(per_token: Float[Tensor, "B T"], weights: Float[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Sum of per_token * weights, where a weight of 0 removes even NaN.

    >>> weighted_sum(torch.tensor([[2.0, float("inf")]]), torch.tensor([[0.5, 0.0]]))
    tensor(1.)
    """
    return (per_token.masked_fill(weights == 0, 0.0) * weights.to(per_token.dtype)).sum()
