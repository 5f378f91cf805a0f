"""The loss of a micro-batch: ratio, clip, min, KL penalty, and the weighted sum over its tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Coefficients, Context, Stage
from grpo_lab.core.shapes import Float, Shaped


@dataclass(frozen=True)
class LossInputs:
    """The values that a loss is computed from; `ctx` shows those in between to guards."""

    ctx: Context
    batch: Batch
    logprobs: Tensor
    """(b, T) of the policy as it is, in nats, with a gradient; 0 outside the mask."""
    num_tokens: Tensor
    """() int: trained tokens of the whole batch."""
    use: Coefficients


class LossOutput(NamedTuple):
    """A loss to be minimised, () of a micro-batch or (b, T) of tokens, and metrics () of its computation."""

    loss: Tensor
    metrics: dict[str, Tensor]


def log_ratio_to_old(logprobs: Tensor, batch: Batch) -> Tensor:
    """log(policy / policy that sampled), logprobs and result (b, T), in nats (PPO, eq. 6, https://arxiv.org/abs/1707.06347).

    It is 0 at the first update; in later ones the clip limits how far the policy moves from the one that sampled.
    """
    assert batch.old_logprobs is not None
    return logprobs - batch.old_logprobs


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
    For A > 0 the value stays finite when r overflows, but the gradient does not: backward of `exp` is 0 * inf = NaN,
    even if a clamp follows it. Bound log_ratio before it.

    >>> clipped_surrogate(torch.log(torch.tensor([[2.0]])), torch.tensor([1.0]))
    tensor([[-1.2000]])
    >>> clipped_surrogate(torch.log(torch.tensor([[9.0]])), torch.tensor([-1.0]), delta=3.0)
    tensor([[3.]])
    """
    ratio = log_ratio.exp()
    advantages = of_tokens(advantages).to(ratio.dtype)
    clipped = ratio.clamp(1 - epsilon, 1 + (epsilon if epsilon_high is None else epsilon_high))
    gain = torch.min(ratio * advantages, clipped * advantages)
    if delta is not None:
        gain = torch.where(advantages < 0, torch.max(gain, delta * advantages), gain)
    return -gain


def clip(log_ratio: Tensor, inputs: LossInputs) -> LossOutput:
    """`clipped_surrogate` of each token, and `clipped_shares`."""
    use, advantages, ratio = inputs.use, inputs.batch.advantages, log_ratio.detach().exp()
    assert advantages is not None
    inputs.ctx.recorder.tensor("ratio", ratio, inputs.ctx.update)
    losses = clipped_surrogate(log_ratio, advantages, use.epsilon, use.epsilon_high, use.delta)
    return LossOutput(losses, clipped_shares(ratio.float(), advantages, use, inputs.num_tokens))


def clipped_shares(ratio: Tensor, advantages: Tensor, use: Coefficients, num_tokens: Tensor) -> dict[str, Tensor]:
    """The shares of tokens that PPO's clip range takes out of the gradient, by metric."""
    gain = of_tokens(advantages)
    low = (ratio < 1 - use.epsilon) & (gain < 0)
    high = (ratio > 1 + (use.epsilon if use.epsilon_high is None else use.epsilon_high)) & (gain > 0)
    sides = {"low": low, "high": high, "region": low | high}
    return {f"clip_ratio/{side}_mean": clipped.sum() / num_tokens for side, clipped in sides.items()}


def of_tokens(advantages: Float[Tensor, "B"] | Float[Tensor, "B T"]) -> Tensor:
    """Advantages (B, 1) of all tokens alike, or (B, T) as they are."""
    return advantages if advantages.dim() == 2 else advantages[:, None]


def k3(delta: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """exp(delta) - 1 - delta: unbiased value, never negative. `expm1` avoids the rounding of `exp` near 0.

    Overflows for delta above 88.7 (fp32) or 11.09 (fp16).

    >>> k3(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.7183])
    """
    return torch.expm1(delta) - delta


def token_weights(
    completion_mask: Shaped[Tensor, "B T"], how: str = "token", max_completion_length: int | None = None
) -> Float[Tensor, "B T"]:
    """The weight of each token in the loss; 0 where the mask is 0.

    `token`: 1 / all tokens (DAPO, https://arxiv.org/abs/2503.14476). `sequence`: 1 / (completions x own length)
    (DeepSeekMath, https://arxiv.org/abs/2402.03300). `constant`: 1 / (completions x max_completion_length) (Dr. GRPO,
    https://arxiv.org/abs/2503.20783, with advantages of scale `none`); without a length, the width of the mask. `sum`:
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


def weighted_sum(per_token: Float[Tensor, "B T"], weights: Float[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Sum of per_token * weights, where a weight of 0 removes even NaN.

    >>> weighted_sum(torch.tensor([[2.0, float("inf")]]), torch.tensor([[0.5, 0.0]]))
    tensor(1.)
    """
    return (per_token.masked_fill(weights == 0, 0.0) * weights.to(per_token.dtype)).sum()


def grpo_loss(
    inputs: LossInputs,
    log_ratio: Callable[[Tensor, Batch], Tensor] = log_ratio_to_old,
    surrogate: Callable[[Tensor, LossInputs], LossOutput] = clip,
    kl_estimate: Callable[[Tensor], Tensor] = k3,
) -> LossOutput:
    """The weighted sum over tokens of -min(r A, clip(r) A) + beta KL (DeepSeekMath, https://arxiv.org/abs/2402.03300).

    It is eq. 3 with the weights `sequence`; the default, `token`, weighs all tokens alike.
    """
    ctx, batch, outside = inputs.ctx, inputs.batch, ~inputs.batch.completion_mask
    assert batch.weights is not None
    ctx.recorder.tensor("logprobs", inputs.logprobs, ctx.update)
    log_ratios = log_ratio(inputs.logprobs, batch).masked_fill(outside, 0.0)
    log_ratios = ctx.apply(Stage.LOG_RATIO, log_ratios)
    log_ratios.register_hook(lambda slope: ctx.recorder.tensor("log_ratio_gradient", slope, ctx.update))
    losses, metrics = surrogate(log_ratios, inputs)
    if batch.ref_logprobs is not None:
        delta = ctx.apply(Stage.KL_DELTA, (batch.ref_logprobs - inputs.logprobs).masked_fill(outside, 0.0))
        kl = kl_estimate(delta)
        metrics = {**metrics, "kl": kl.float().sum() / inputs.num_tokens}
        if inputs.use.beta:  # 0 * inf is NaN, so weight 0 leaves the penalty out
            losses = losses + inputs.use.beta * kl
    return LossOutput(weighted_sum(losses, batch.weights), metrics)
