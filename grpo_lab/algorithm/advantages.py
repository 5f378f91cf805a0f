"""Advantages of the rest of the family: of completions, by other rewards or as they are, and of tokens (credit).

A completion's tokens share its advantage (`loss.credit_assignment=completion`), or `reward_to_go` begins with rewards
as they are (`loss.advantage_scale=reward`) and compares tokens with those of the whole batch, so that it needs no
groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from grpo_lab.core.advantages import SCALES, all_equal, group_advantages
from grpo_lab.core.batch import Batch
from grpo_lab.core.shapes import Bool, Float, Shaped

Groups = Float[Tensor, "P G"]
"""A number for each completion of each prompt's group."""
Judged = Bool[Tensor, "P G"]
Tokens = Float[Tensor, "B T"]


def leave_one_out_advantages(rewards: Groups, scorable: Judged | None = None) -> Groups:
    """A = r - mean of the group's other rewards, in the unit of the rewards (RLOO, https://arxiv.org/abs/2402.14740).

    The baseline does not depend on the completion's own reward: A is G / (G - 1) times r - mean of the group.
    Completions that are not `scorable` are left out of the baselines and get 0. A completion without another one gets
    0, too, and so do equal rewards.

    >>> leave_one_out_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0], [3.0, 1.0, 1.0, 3.0]]))
    tensor([[ 1.0000, -0.3333, -0.3333, -0.3333],
            [ 1.3333, -1.3333, -1.3333,  1.3333]])
    """
    judged = torch.ones_like(rewards, dtype=torch.bool) if scorable is None else scorable
    kept = rewards.masked_fill(~judged, 0.0)
    others = (judged.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    advantages = kept - (kept.sum(dim=1, keepdim=True) - kept) / others
    return advantages.masked_fill(all_equal(rewards, judged) | ~judged, 0.0)


def global_advantages(rewards: Groups, eps: float = 1e-6, scorable: Judged | None = None) -> Groups:
    """A = (r - mean of the batch) / (std of the batch + eps), ddof 1 (REINFORCE++, https://arxiv.org/abs/2501.03262).

    No group is compared within itself: a prompt that all its completions solve is above the mean and is learned from. A
    batch of equal rewards gets zeros. Completions that are not `scorable` are left out of both and get 0.

    >>> global_advantages(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), eps=0.0)
    tensor([[ 0.5000,  0.5000],
            [ 0.5000, -1.5000]])
    """
    judged = None if scorable is None else scorable.reshape(1, -1)
    return group_advantages(rewards.reshape(1, -1), "group", eps, judged).view_as(rewards)


def rewards_as_they_are(rewards: Groups, scorable: Judged | None = None) -> Groups:
    """A = r, 0 where a completion is not `scorable`: for a comparison of tokens, which has the baseline.

    >>> rewards_as_they_are(torch.tensor([[1.0, 2.0]]), scorable=torch.tensor([[True, False]]))
    tensor([[1., 0.]])
    """
    return rewards if scorable is None else rewards.masked_fill(~scorable, 0.0)


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    **{name: partial(group_advantages, scale=name) for name in SCALES},
    "leave_one_out": leave_one_out_advantages,
    "global": global_advantages,
    "reward": rewards_as_they_are,
}
"""From rewards (P, G) and `scorable` (P, G) to advantages (P, G), by the setting `loss.advantage_scale`."""


def of_the_completion(batch: Batch, gamma: float) -> Batch:
    """The batch as it is: every token of a completion has its advantage (GRPO)."""
    return batch


def reward_to_go(batch: Batch, gamma: float) -> Batch:
    """Advantages (B, T): the discounted rewards from a token on, whitened over all tokens of the batch (REINFORCE++,
    https://arxiv.org/abs/2501.03262, eq. 7 to 9).
    """
    return replace(batch, advantages=whitened(discounted(token_rewards(batch), gamma), batch.completion_mask))


def token_rewards(batch: Batch) -> Tokens:
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


def discounted(rewards: Tokens, gamma: float) -> Tokens:
    """G_t = r_t + gamma G_(t+1): the discounted sum of the rewards from a token on.

    >>> discounted(torch.tensor([[0.0, -1.0, 4.0]]), gamma=0.5)
    tensor([[0.5000, 1.0000, 4.0000]])
    """
    columns, later = [], torch.zeros_like(rewards[:, 0])
    for column in reversed(rewards.unbind(dim=1)):
        later = column + gamma * later
        columns.append(later)
    return torch.stack(columns[::-1], dim=1)


def whitened(values: Tokens, mask: Bool[Tensor, "B T"], eps: float = 1e-8) -> Tokens:
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
