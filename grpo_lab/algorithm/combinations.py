"""Ways to combine objectives: their rewards, their advantages, and their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_lab.algorithm.advantages import global_advantages
from grpo_lab.core.shapes import Float

AdvantageScale = Callable[..., Tensor]
"""From rewards (P, G) and `scorable` (P, G) to advantages (P, G)."""


class Scores(NamedTuple):
    """The rewards (P, G) that one objective gives to a batch, which of them count, (P, G) bool, and its weight."""

    rewards: Tensor
    scorable: Tensor
    weight: float


def sum_then_normalize(scores: Sequence[Scores], scale: AdvantageScale) -> Tensor:
    """Advantages (P, G) of the weighted sum of the rewards.

    Sums that are equal get equal advantages, whatever they are made of.
    """
    total = sum(one.weight * one.rewards.masked_fill(~one.scorable, 0.0) for one in scores)
    assert isinstance(total, Tensor)
    return scale(total, scorable=scorable_by_any(scores))


def normalize_then_sum(scores: Sequence[Scores], scale: AdvantageScale, eps: float = 1e-4) -> Tensor:
    """Weighted sum (P, G) of each objective's own advantages, normalised over the batch (GDPO,
    https://arxiv.org/abs/2601.05242): A = (a - mean a) / (std a + eps), a = sum of weight x advantages.

    An objective counts by its weight, not by the spread of its rewards.

    >>> from grpo_lab.algorithm.advantages import group_advantages
    >>> yes = torch.ones(1, 4, dtype=torch.bool)
    >>> small, large = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[0.0, 100.0, 0.0, 100.0]])
    >>> both = [Scores(small, yes, 2.0), Scores(large, yes, 1.0)]
    >>> normalize_then_sum(both, group_advantages)
    tensor([[-1.1618, -0.3873,  0.3873,  1.1618]])
    """
    total = sum(one.weight * scale(one.rewards, scorable=one.scorable) for one in scores)
    assert isinstance(total, Tensor)
    return global_advantages(total, eps, scorable_by_any(scores))


def scorable_by_any(scores: Sequence[Scores]) -> Tensor:
    """(P, G) bool: the completions that at least one objective scored."""
    return torch.stack([one.scorable for one in scores]).any(dim=0)


Gradients = Sequence[Tensor | None]
"""The gradient of each parameter, None for one without."""


def add(gradients: Sequence[Gradients]) -> Gradients:
    """The sum of the objectives' gradients. One objective's pass as they are."""
    there = [[each for each in of_one if each is not None] for of_one in zip(*gradients, strict=True)]
    return [functools.reduce(torch.add, found) if found else None for found in there]


def project_conflicting(gradients: Sequence[Gradients]) -> Gradients:
    """Sum of the gradients, each without its part against another one (PCGrad, https://arxiv.org/abs/2001.06782).

    Where g_i . g_j < 0, g_i loses g_j (g_i . g_j) / |g_j|^2. The paper draws the order of the j; here it is that of the
    objectives, which makes no difference for two.

    >>> against = [[torch.tensor([1.0, 0.0])], [torch.tensor([-1.0, 1.0])]]
    >>> project_conflicting(against)
    [tensor([0.5000, 1.5000])]
    """
    projected = []
    for mine in gradients:
        kept = mine
        for other in gradients:
            against = float(dot(kept, other)) if other is not mine else 0.0
            square = float(dot(other, other))
            if against < 0 < square:  # False for NaN, which the guards find in the sum, and where the square underflows
                share = against / square
                kept = [g if g is None or o is None else g - share * o for g, o in zip(kept, other, strict=True)]
        projected.append(kept)
    return add(projected)


def dot(first: Gradients, second: Gradients) -> Float[Tensor, ""]:
    """The inner product of two gradients; 0, on the device of a gradient that is there, where they share none."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        return torch.zeros((), device=next((each.device for each in (*first, *second) if each is not None), None))
    return torch.stack([(a.float() * b.float()).sum() for a, b in pairs]).sum()


def cosine(first: Gradients, second: Gradients) -> Tensor:
    """Cosine () of the angle between two gradients: below 0 the objectives pull apart. 0 where one of them is 0."""
    sizes = dot(first, first).sqrt() * dot(second, second).sqrt()
    return dot(first, second) / torch.where(sizes == 0, 1.0, sizes)
