"""Credit assignment: the advantages of a completion's tokens, from its reward and the KL in that.

`completion` gives every token the advantage of its completion. `reward_to_go` begins with rewards as they are
(`loss.advantage_scale=reward`) and compares tokens with those of the whole batch, so that it needs no groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.shapes import Bool, Float, Shaped


def of_the_completion(batch: Batch, gamma: float) -> Batch:
    """The batch as it is: every token of a completion has its advantage (GRPO)."""
    return batch


def reward_to_go(batch: Batch, gamma: float) -> Batch:
    """Advantages (B, T): the discounted rewards from a token on, whitened over all tokens of the batch (REINFORCE++,
    https://arxiv.org/abs/2501.03262, eq. 7 to 9).
    """
    return replace(batch, advantages=whitened(discounted(token_rewards(batch), gamma), batch.completion_mask))


def token_rewards(batch: Batch) -> Float[Tensor, "B T"]:
    """The reward of each token: minus its KL penalty, and at the last one the completion's reward.

    `batch.advantages` (B,) are rewards from which the penalties of all tokens have been taken already.

    >>> once, mask, zero = torch.tensor([[0]]), torch.tensor([[True, True, False]]), torch.zeros(1, 3)
    >>> given = {"advantages": torch.tensor([0.5]), "penalties": torch.tensor([[0.2, 0.3, 0.0]])}
    >>> token_rewards(Batch(once, once, once[0], once, mask, zero, zero, **given))
    tensor([[-0.2000,  0.7000,  0.0000]])
    """
    mask, total = batch.completion_mask, batch.advantages
    assert total is not None
    nothing = torch.zeros(mask.shape, device=mask.device, dtype=total.dtype)
    penalties = nothing if batch.penalties is None else batch.penalties.to(total.dtype).masked_fill(~mask, 0.0)
    last = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(dim=1, keepdim=True)
    whole = (total + penalties.sum(dim=1))[:, None]
    return (-penalties).scatter_add(1, last, whole).masked_fill(~mask, 0.0)


def discounted(rewards: Float[Tensor, "B T"], gamma: float) -> Float[Tensor, "B T"]:
    """G_t = r_t + gamma G_(t+1): the discounted sum of the rewards from a token on.

    >>> discounted(torch.tensor([[0.0, -1.0, 4.0]]), gamma=0.5)
    tensor([[0.5000, 1.0000, 4.0000]])
    """
    columns, later = [], torch.zeros_like(rewards[:, 0])
    for column in reversed(rewards.unbind(dim=1)):
        later = column + gamma * later
        columns.append(later)
    return torch.stack(columns[::-1], dim=1)


def whitened(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], eps: float = 1e-8) -> Float[Tensor, "B T"]:
    """(x - mean) / sqrt(variance + eps) over the mask, ddof 1; zeros where all are equal, and outside of the mask.

    >>> whitened(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]), eps=0.0)
    tensor([[-0.7071,  0.7071,  0.0000]])
    """
    chosen = values[mask]
    if not len(chosen) or bool(chosen.max() == chosen.min()):
        return torch.zeros_like(values)
    variance = chosen.var() + eps
    return ((values - chosen.mean()) * variance.rsqrt()).masked_fill(~mask, 0.0)


def soft_overlong(lengths: Shaped[Tensor, "B"], longest: int, share: float) -> Float[Tensor, "B"]:
    """0 for completions of up to (1 - share) longest tokens, then in a line down to -1 at `longest` (DAPO, eq. 13,
    https://arxiv.org/abs/2503.14476), so that a reward does not fall at the limit all at once.

    >>> soft_overlong(torch.tensor([5, 8, 9, 10]), longest=10, share=0.2)
    tensor([ 0.0000,  0.0000, -0.5000, -1.0000])
    """
    begin = (1 - share) * longest
    return ((begin - lengths) / (longest - begin)).clamp(-1, 0)


CREDIT: dict[str, Callable[[Batch, float], Batch]] = {"completion": of_the_completion, "reward_to_go": reward_to_go}
"""From a batch with advantages (B,), and gamma, to one with those of its tokens, by `loss.credit_assignment`."""
