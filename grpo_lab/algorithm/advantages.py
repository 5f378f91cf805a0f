"""Advantages: the reward of a completion compared with those of other completions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grpo_lab.algorithm.shapes import Bool, Float


def group_advantages(
    rewards: Float[Tensor, "P G"],
    scale: str = "group",
    eps: float = 1e-6,
    scorable: Bool[Tensor, "P G"] | None = None,
) -> Float[Tensor, "P G"]:
    """Advantages of P groups of G completions, in standard deviations: A = (r - mean of its group) / (std + eps).

    The standard deviation is unbiased (ddof 1) and taken over `scale`: `group` (DeepSeekMath, section 4.1.2,
    https://arxiv.org/abs/2402.03300), `batch` (all rewards), or `none` (no division and no eps: Dr. GRPO,
    https://arxiv.org/abs/2503.20783). A group of equal rewards gets exact zeros, where rounding would leave noise of up
    to 0.95. Completions that are not `scorable` are left out of mean and standard deviation and get 0.

    >>> group_advantages(torch.tensor([[1., 0., 0., 0.], [1., 1., 1., 1.]]))
    tensor([[ 1.5000, -0.5000, -0.5000, -0.5000],
            [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """
    judged = torch.ones_like(rewards, dtype=torch.bool) if scorable is None else scorable
    kept = rewards.masked_fill(~judged, 0.0)
    count = judged.sum(dim=1, keepdim=True)
    centred = (kept - kept.sum(dim=1, keepdim=True) / count.clamp(min=1)).masked_fill(~judged, 0.0)
    advantages = centred / SCALES[scale](centred, kept, judged, eps)
    return advantages.masked_fill(_equal(rewards, judged) | ~judged, 0.0)


def leave_one_out_advantages(
    rewards: Float[Tensor, "P G"], scorable: Bool[Tensor, "P G"] | None = None
) -> Float[Tensor, "P G"]:
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
    return advantages.masked_fill(_equal(rewards, judged) | ~judged, 0.0)


def global_advantages(
    rewards: Float[Tensor, "P G"], eps: float = 1e-6, scorable: Bool[Tensor, "P G"] | None = None
) -> Float[Tensor, "P G"]:
    """A = (r - mean of the batch) / (std of the batch + eps), ddof 1 (REINFORCE++, https://arxiv.org/abs/2501.03262).

    No group is compared within itself: a prompt that all its completions solve is above the mean and is learned from. A
    batch of equal rewards gets zeros. Completions that are not `scorable` are left out of both and get 0.

    >>> global_advantages(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), eps=0.0)
    tensor([[ 0.5000,  0.5000],
            [ 0.5000, -1.5000]])
    """
    judged = None if scorable is None else scorable.reshape(1, -1)
    return group_advantages(rewards.reshape(1, -1), "group", eps, judged).view_as(rewards)


def rewards_as_they_are(
    rewards: Float[Tensor, "P G"], scorable: Bool[Tensor, "P G"] | None = None
) -> Float[Tensor, "P G"]:
    """A = r, 0 where a completion is not `scorable`: for a comparison of tokens, which has the baseline.

    >>> rewards_as_they_are(torch.tensor([[1.0, 2.0]]), scorable=torch.tensor([[True, False]]))
    tensor([[1., 0.]])
    """
    return rewards if scorable is None else rewards.masked_fill(~scorable, 0.0)


def _equal(rewards: Tensor, judged: Tensor) -> Tensor:
    """(P, 1) bool: groups whose scorable rewards are all equal."""
    highest = rewards.masked_fill(~judged, -torch.inf).amax(dim=1, keepdim=True)
    lowest = rewards.masked_fill(~judged, torch.inf).amin(dim=1, keepdim=True)
    return highest == lowest


def _group_std(centred: Tensor, kept: Tensor, judged: Tensor, eps: float) -> Tensor:
    freedom = (judged.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    return (centred.square().sum(dim=1, keepdim=True) / freedom).sqrt() + eps


def _batch_std(centred: Tensor, kept: Tensor, judged: Tensor, eps: float) -> Tensor:
    count = judged.sum()
    deviation = (kept - kept.sum() / count.clamp(min=1)).masked_fill(~judged, 0.0)
    return (deviation.square().sum() / (count - 1).clamp(min=1)).sqrt() + eps


def _one(centred: Tensor, kept: Tensor, judged: Tensor, eps: float) -> Tensor:
    return torch.ones_like(centred[:1, :1])


SCALES = {"group": _group_std, "batch": _batch_std, "none": _one}
"""Divisors of the centred rewards, eps included, by name."""
ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    **{name: partial(group_advantages, scale=name) for name in SCALES},
    "leave_one_out": leave_one_out_advantages,
    "global": global_advantages,
    "reward": rewards_as_they_are,
}
"""From rewards (P, G) and `scorable` (P, G) to advantages (P, G), by the setting `loss.advantage_scale`."""
