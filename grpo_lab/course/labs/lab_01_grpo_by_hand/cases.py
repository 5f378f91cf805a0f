"""The checks of lab 1: numbers worked by hand, and functions that drive a run."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from grpo_lab.algorithm.advantages import group_advantages
from grpo_lab.algorithm.losses import aggregate, policy_loss
from grpo_lab.course.compare import is_number, shown
from grpo_lab.course.exercises import Case, Finding, Function, Values, cases_by
from grpo_lab.course.probes import by_logprobs, of_a_curve
from grpo_lab.course.relations import padded, permuted, repeated, scaled, shifted


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 100)


# By hand -------------------------------------------------------------------------------------------------------------

HAND = {"right_one": 1.5, "wrong_one": -0.5, "ratio": 1.649, "loss_right": -1.8, "loss_wrong": 0.824}
"""Rewards 1 0 0 0: mean 1/4, squares 9/16 + 3 x 1/16 = 3/4, / 3 = 1/4, std 1/2. A ratio of e^0.5 = 1.649."""
_HAND = {
    "right_one": (
        "the advantage of the right completion",
        "(reward - mean) / std, with the sum of squares divided by 3, not by 4.",
    ),
    "wrong_one": ("the advantage of a wrong completion", "A wrong one did worse than its group: below 0."),
    "ratio": ("the ratio of the token", "The difference of the two log-probabilities is 0.5; the ratio is exp of it."),
    "loss_right": (
        "the token's loss in the right completion",
        "-min(ratio · A, clipped · A). The clipped ratio is at most 1.2, and the smaller product counts.",
    ),
    "loss_wrong": (
        "the token's loss in a wrong completion",
        "Both products are below 0 now. The smaller one is further from 0: which ratio does it contain?",
    ),
}


def _judge_hand(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    for name, (what, why) in _HAND.items():
        got = values[name]
        right = is_number(got) and math.isclose(got, HAND[name], rel_tol=5e-3)
        yield Finding(right, what, shown(got), "the number, to two or three digits", why)


# Advantages ----------------------------------------------------------------------------------------------------------


def _advantage_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    drawn = torch.rand(2, 5, generator=generator) * torch.tensor([[1.0], [10.0]]) + torch.tensor([[0.0], [3.0]])
    levels = torch.cat([torch.tensor([0.1]), 100 * torch.rand(3, generator=generator)])
    rows = [
        ("rewards 1 0 0 0", torch.tensor([[1.0, 0.0, 0.0, 0.0]]), "The group that you worked by hand."),
        (
            "two groups, the second with rewards ten times as spread",
            drawn,
            "Each row is a group with its own mean and standard deviation (dim=1, keepdim=True).",
        ),
        (
            f"four groups of seven equal rewards: {shown(levels)}",
            levels[:, None].expand(-1, 7).contiguous(),
            "Equal rewards carry no signal: exact zeros. The mean of seven equal numbers has a rounding error, and "
            "divided by a standard deviation as small it becomes noise as large as an advantage.",
        ),
        (
            "two groups of one completion",
            torch.tensor([[1.0], [0.0]]),
            "There is nothing to compare with: 0. The standard deviation of one number is 0 / 0.",
        ),
    ]
    return cases_by(group_advantages, [(what, {"rewards": rewards}, why) for what, rewards, why in rows])


# The loss per token --------------------------------------------------------------------------------------------------


def _loss_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    old = -3 * torch.rand(2, 2, generator=generator)
    advantages = torch.tensor([1.0, -1.0]) * (0.5 + torch.rand(2, generator=generator))
    far = old + torch.tensor([[1.0, -1.0], [1.0, -1.0]]) * (0.4 + torch.rand(2, 2, generator=generator))
    near = old + 0.5 * (1 - 2 * torch.rand(2, 2, generator=generator)) * 0.3
    rows = [
        (
            "nothing updated yet: logprobs = old_logprobs",
            "value",
            old,
            "The ratio is 1 everywhere, and the loss of a token is -A of its completion (one advantage a row).",
        ),
        (
            "ratios near 1: nothing is clipped",
            "value",
            near,
            "-ratio · A, with ratio = exp(logprobs - old_logprobs). As the probability of a good completion rises, the "
            "loss falls.",
        ),
        (
            "first tokens far likelier than before, second tokens far less likely",
            "value",
            far,
            "-min(ratio · A, clip(ratio, 1 - epsilon, 1 + epsilon_high) · A): the minimum takes the worse of the two, "
            "so that for A < 0 a large ratio counts in full.",
        ),
        (
            "the gradient by logprobs, in the same four tokens",
            "gradient",
            far,
            "0 where the clipped branch is taken, -ratio · A where it is not.",
        ),
    ]
    fixed = {"old_logprobs": old, "advantages": advantages, "epsilon": 0.2, "epsilon_high": 0.28}
    given = [(what, {"logprobs": logprobs, **fixed, "look": look}, why) for what, look, logprobs, why in rows]
    return cases_by(policy_loss, given, by_logprobs)


# Aggregation ---------------------------------------------------------------------------------------------------------

_HOWS = {
    "token": "Every trained token counts the same: divide the sum by the number of ones in the mask.",
    "sequence": "First the mean of each completion over its own tokens, then the mean of those.",
    "constant": "Divide the sum by completions times width, whatever the mask says.",
}


def _aggregate_cases(seed: int) -> Sequence[Case]:
    mask = (torch.arange(4) < torch.tensor([4, 1, 2])[:, None]).int()
    values = 1 + torch.randn(3, 4, generator=_generator(seed))
    broken = values.masked_fill(mask == 0, math.nan)
    nan = "0 · NaN is NaN: a mask that is multiplied removes nothing. Replace masked numbers before you sum."
    rows = [(f"three completions of 4, 1 and 2 tokens, how = {how!r}", values, how, why) for how, why in _HOWS.items()]
    rows += [(f"the same with NaN in the padding, how = {how!r}", broken, how, nan) for how in _HOWS]
    given = [(what, {"per_token": tokens, "mask": mask, "how": how}, why) for what, tokens, how, why in rows]
    return cases_by(lambda per_token, mask, how: aggregate(per_token, mask, how), given)


def _wider(case: Case, draw: random.Random) -> Case:
    """Append padding: it changes the constant mean alone, which divides by the width."""
    wide = padded(mask="mask", per_token=math.nan)(case, draw)
    before, after = (each.inputs["mask"].shape[1] for each in (case, wide))
    return wide._replace(expected=case.expected * before / after) if case.inputs["how"] == "constant" else wide


# Finite differences --------------------------------------------------------------------------------------------------


def _slope_cases(seed: int) -> Sequence[Case]:
    x = 0.5 + float(torch.rand(1, generator=_generator(seed)))
    rows = [
        ("x³", x, 0.1, "Two values, at x + h and x - h: their difference divided by their distance."),
        ("exp", x, 0.01, "The distance between x + h and x - h is 2h."),
        ("exp", -x, 0.5, "You need no derivative here, only the two values and their distance."),
        ("|x|", 0.0, 0.1, "At a kink both sides count: the two slopes, -1 and 1, average to 0."),
    ]
    fixed = {"stretch": 1.0, "height": 0.0}
    given = [
        (f"{curve} at x = {at:.3g}, h = {h}", {"curve": curve, **fixed, "x": at, "h": h}, why)
        for curve, at, h, why in rows
    ]
    return cases_by(lambda f, x, h: (f(x + h) - f(x - h)) / (2 * h), given, of_a_curve)


BY_HAND = Values(tuple(HAND), _judge_hand)
ADVANTAGES = Function(
    "advantages",
    _advantage_cases,
    relations=(
        permuted("rewards"),
        permuted("rewards", dim=1),
        repeated("rewards"),
        scaled("rewards"),
        shifted("rewards", by=(-1.0, 1.0, 3.0)),
    ),
)
POLICY_LOSS = Function(
    "policy_loss",
    _loss_cases,
    by_logprobs,
    (
        permuted("logprobs", "old_logprobs", "advantages"),
        permuted("logprobs", "old_logprobs", dim=1),
        repeated("logprobs", "old_logprobs", "advantages"),
        repeated("logprobs", "old_logprobs", dim=1),
        scaled("advantages", power=1),
        shifted("logprobs", "old_logprobs"),
    ),
)
AGGREGATE = Function(
    "aggregate",
    _aggregate_cases,
    relations=(
        permuted("per_token", "mask"),
        permuted("per_token", "mask", dim=1),
        repeated("per_token", "mask"),
        scaled("per_token", power=1),
        _wider,
    ),
)
SLOPE = Function("slope", _slope_cases, of_a_curve, (scaled("stretch", power=1), shifted("height", by=(-3.0, 5.0))))
