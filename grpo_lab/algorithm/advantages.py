"""Advantages of the rest of the family: by the other rewards of a group, by the batch, or rewards as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grpo_lab.core.advantages import SCALES, all_equal, group_advantages
from grpo_lab.core.shapes import Bool, Float


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
    return advantages.masked_fill(all_equal(rewards, judged) | ~judged, 0.0)


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


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    **{name: partial(group_advantages, scale=name) for name in SCALES},
    "leave_one_out": leave_one_out_advantages,
    "global": global_advantages,
    "reward": rewards_as_they_are,
}
"""From rewards (P, G) and `scorable` (P, G) to advantages (P, G), by the setting `loss.advantage_scale`."""
