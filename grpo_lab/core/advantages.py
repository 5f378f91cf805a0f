"""Advantages: the reward of a completion compared with those of its group."""

import torch
from torch import Tensor

from grpo_lab.core.shapes import Bool, Float


def group_advantages(
    rewards: Float[Tensor, "P G"],
    scale: str = "group",
    eps: float = 1e-6,
    scorable: Bool[Tensor, "P G"] | None = None,
) -> Float[Tensor, "P G"]:
    """Advantages of P groups of G completions, in standard deviations: A = (r - mean of its group) / (std + eps).

    The standard deviation is unbiased (ddof 1) and taken over `scale`: `group` (DeepSeekMath, section 4.1.2,
    https://arxiv.org/abs/2402.03300), `batch` (all rewards), or `none` (no division and no eps: Dr. GRPO,
    https://arxiv.org/abs/2503.20783). A group of equal rewards gets exact zeros: rounding of the mean, divided by a std
    of almost 0, would be noise of up to 0.95. Those that are not `scorable` get 0, and do not count in mean and std.

    >>> group_advantages(torch.tensor([[1., 0., 0., 0.], [1., 1., 1., 1.]]))
    tensor([[ 1.5000, -0.5000, -0.5000, -0.5000],
            [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """
    judged = torch.ones_like(rewards, dtype=torch.bool) if scorable is None else scorable
    kept = rewards.masked_fill(~judged, 0.0)
    count = judged.sum(dim=1, keepdim=True)
    centred = (kept - kept.sum(dim=1, keepdim=True) / count.clamp(min=1)).masked_fill(~judged, 0.0)
    advantages = centred / SCALES[scale](centred, kept, judged, eps)
    return advantages.masked_fill(all_equal(rewards, judged) | ~judged, 0.0)


def all_equal(rewards: Tensor, judged: Tensor) -> Tensor:
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
"""Divisors of the centred rewards, eps included, by the setting `loss.advantage_scale`."""
