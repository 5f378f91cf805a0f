"""The checks of lab 1: numbers worked by hand, and functions that drive a run."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from grpo_lab.algorithm.losses import policy_loss
from grpo_lab.core.advantages import group_advantages
from grpo_lab.course import pages
from grpo_lab.course.compare import is_number, other_kind, shown
from grpo_lab.course.exercises import Case, Finding, Function, Values, cases_by
from grpo_lab.course.probes import as_a_number, by_logprobs, logprobs_of_a_batch, of_a_curve, weights_after
from grpo_lab.course.relations import lines_alike, padded, permuted, repeated, scaled, shifted
from grpo_lab.errors import Sentence

TEXTS = pages.case_texts(__file__)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 100)


# By hand -------------------------------------------------------------------------------------------------------------

HAND = {"right_one": 1.5, "wrong_one": -0.5, "ratio": 1.649, "loss_right": -1.8, "loss_wrong": 0.824}
"""Rewards 1 0 0 0: mean 1/4, squares 9/16 + 3 x 1/16 = 3/4, / 3 = 1/4, std 1/2. A ratio of e^0.5 = 1.649."""

_SQUARE = "This divides by the variance. The std is its square root."
_OVER_FOUR = "This std divides the sum of squares by 4. A sample's std divides by one less than the number of rewards."
_SIGN = "The size is right and the sign is not: a loss is minus the product that counts."
SLIPS: dict[str, dict[float, str]] = {
    "right_one": {
        math.sqrt(3): _OVER_FOUR,
        0.75: "This is reward - mean. Divide it by the std of the group.",
        3.0: _SQUARE,
    },
    "wrong_one": {
        -math.sqrt(1 / 3): _OVER_FOUR,
        -0.25: "This is reward - mean. Divide it by the std of the group.",
        -1.0: _SQUARE,
        0.5: "The size is right and the sign is not: a wrong one did worse than its group, so it is below 0.",
    },
    "ratio": {
        0.5: "This is the log-ratio; the ratio is exp of it.",
        math.exp(-0.5): "This is the old policy over the new one.",
    },
    "loss_right": {1.8: _SIGN, -1.5 * math.exp(0.5): "This ratio is not clipped: it is at most 1.2 here."},
    "loss_wrong": {
        -0.5 * math.exp(0.5): _SIGN,
        0.6: "This is the clipped product. Compare the two: which one is smaller?",
    },
}
"""Wrong numbers that name their mistake."""


def _judge_hand(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    for name, number in HAND.items():
        got, (what, why) = values[name], TEXTS[name]
        right = is_number(got) and math.isclose(got, number, rel_tol=5e-3)
        known = (
            text for wrong, text in SLIPS[name].items() if is_number(got) and math.isclose(got, wrong, rel_tol=5e-3)
        )
        why = other_kind(got, "a number") or next(known, why)
        yield Finding(right, what, shown(got), "the number, to two decimals", why)


# Advantages ----------------------------------------------------------------------------------------------------------


def _advantage_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    drawn = torch.rand(2, 5, generator=generator) * torch.tensor([[1.0], [10.0]]) + torch.tensor([[0.0], [3.0]])
    levels = torch.cat([torch.tensor([0.1]), 100 * torch.rand(3, generator=generator)])
    equal, why_equal = TEXTS["equal"]
    rows = [
        (torch.tensor([[1.0, 0.0, 0.0, 0.0]]), *TEXTS["by_hand"]),
        (drawn, *TEXTS["spread"]),
        (levels[:, None].expand(-1, 7).contiguous(), Sentence(equal, shown(levels)), why_equal),
        (torch.tensor([[1.0], [0.0]]), *TEXTS["single"]),
    ]
    return cases_by(group_advantages, [(what, {"rewards": rewards}, why) for rewards, what, why in rows])


# The loss per token --------------------------------------------------------------------------------------------------


def _loss_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    old = -3 * torch.rand(2, 2, generator=generator)
    advantages = torch.tensor([1.0, -1.0]) * (0.5 + torch.rand(2, generator=generator))
    far = old + torch.tensor([[1.0, -1.0], [1.0, -1.0]]) * (0.4 + torch.rand(2, 2, generator=generator))
    near = old + 0.5 * (1 - 2 * torch.rand(2, 2, generator=generator)) * 0.3
    rows = [
        ("value", old, *TEXTS["unchanged"]),
        ("value", near, *TEXTS["near"]),
        ("value", far, *TEXTS["far"]),
        ("gradient", far, *TEXTS["gradient"]),
    ]
    fixed = {"old_logprobs": old, "advantages": advantages, "epsilon": 0.2, "epsilon_high": 0.28}
    given = [(what, {"logprobs": logprobs, **fixed, "look": look}, why) for look, logprobs, what, why in rows]
    return cases_by(policy_loss, given, by_logprobs)


# Aggregation ---------------------------------------------------------------------------------------------------------


def _aggregate_cases(seed: int) -> Sequence[Case]:
    mask = (torch.arange(4) < torch.tensor([4, 1, 2])[:, None]).int()
    values = 1 + torch.randn(3, 4, generator=_generator(seed))
    broken = values.masked_fill(mask == 0, math.nan)
    hows = ("token", "sequence", "constant")
    rows = [(values, how, *TEXTS[how]) for how in hows] + [(broken, how, *TEXTS["nan"]) for how in hows]
    given = [({"per_token": tokens, "mask": mask, "how": how}, what, why) for tokens, how, what, why in rows]
    given = [(Sentence(what, repr(each["how"])) if "{" in what else what, each, why) for each, what, why in given]
    return cases_by(pages.solved(__file__, "aggregate").aggregate, given, as_a_number)


def _wider(case: Case, draw: random.Random) -> Case:
    """Append padding: it changes the constant mean alone, which divides by the width."""
    wide = padded(mask="mask", per_token=math.nan)(case, draw)
    before, after = (each.inputs["mask"].shape[1] for each in (case, wide))
    return wide._replace(expected=case.expected * before / after) if case.inputs["how"] == "constant" else wide


# Finite differences --------------------------------------------------------------------------------------------------


def _slope_cases(seed: int) -> Sequence[Case]:
    x = 0.5 + float(torch.rand(1, generator=_generator(seed)))
    smooth = "Two values, at x + h and x - h: their difference divided by their distance."
    rows = [
        ("x³", x, 0.1, smooth),
        ("exp", x, 0.01, smooth),
        ("exp", -x, 0.5, smooth),
        ("|x|", 0.0, 0.1, "At a kink both sides count: the two slopes, -1 and 1, average to 0."),
    ]
    fixed = {"stretch": 1.0, "height": 0.0}
    given = [
        (Sentence("{} at x = {:.3g}, h = {}", curve, at, h), {"curve": curve, **fixed, "x": at, "h": h}, why)
        for curve, at, h, why in rows
    ]
    return cases_by(pages.solved(__file__, "slope").slope, given, of_a_curve)


# A step of one's own ------------------------------------------------------------------------------------------------


def _sampled(seed: int, width: int) -> dict[str, torch.Tensor]:
    """A model, and six completions of two prompts of different length, as a run samples them."""
    generator = _generator(seed)
    weight = 1.5 * torch.randn(5, 5, generator=generator)
    prompts = torch.randint(1, 5, (2, 4), generator=generator)
    prompt_mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    completions = torch.randint(1, 5, (6, width), generator=generator)
    lengths = torch.cat([torch.tensor([width, 1]), torch.randint(1, width + 1, (4,), generator=generator)])
    mask = torch.arange(width) < lengths[:, None]
    return {
        "weight": weight,
        "prompt_ids": prompts * prompt_mask,
        "prompt_mask": prompt_mask,
        "group": torch.tensor([0, 0, 0, 1, 1, 1]),
        "completions": completions * mask,
        "completion_mask": mask,
        "old_logprobs": torch.zeros(mask.shape),
    }


def _logprobs_cases(seed: int) -> Sequence[Case]:
    rows = [("value", 3, *TEXTS["values"]), ("gradient", 3, *TEXTS["by_weight"]), ("value", 1, *TEXTS["one_token"])]
    given = [(what, {**_sampled(seed + 7 * width, width), "look": look}, why) for look, width, what, why in rows]
    return cases_by(pages.solved(__file__, "logprobs").logprobs, given, logprobs_of_a_batch)


def _step_cases(seed: int) -> Sequence[Case]:
    sampled, generator = _sampled(seed, 3), _generator(seed + 1)
    now = logprobs_of_a_batch(pages.solved(__file__, "logprobs").logprobs, {**sampled, "look": "value"}).detach()
    old, ref = (now + 0.5 * torch.randn(now.shape, generator=generator) for _ in range(2))
    old[0, 0] = now[0, 0] - 0.14  # a ratio of 1.15 and an advantage above 0: within the clip range, and near its end
    outside = ~sampled["completion_mask"]
    sampled |= {"old_logprobs": old.masked_fill(outside, 0.0), "ref_logprobs": ref.masked_fill(outside, 0.0)}
    spread = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]) + 0.2 * torch.rand(2, 3, generator=generator)
    alike = torch.full((2, 3), 0.1)
    rows = [
        (spread, 0.0, 1, "plain"),
        (spread, 0.3, 1, "with_kl"),
        (alike, 0.3, 1, "kl_alone"),
        (spread, 0.3, 3, "three"),
    ]
    given = [
        (TEXTS[key][0], {**sampled, "rewards": rewards, "beta": beta, "num_iterations": updates}, TEXTS[key][1])
        for rewards, beta, updates, key in rows
    ]
    return cases_by(pages.solved(__file__, "step").step, given, weights_after)


_WIDER = {"mask": "completion_mask", "completions": 0, "old_logprobs": 0.0}


def _wider_batch(case: Case, draw: random.Random) -> Case:
    """Append padding to the completions; log-probabilities get it, and a gradient does not."""
    return padded(**_WIDER, result=case.inputs["look"] == "value")(case, draw)


def _other_order(case: Case, draw: random.Random) -> Case:
    """Reorder the completions, and the log-probabilities alike."""
    rows = "group", "completions", "completion_mask", "old_logprobs"
    return permuted(*rows, result=case.inputs["look"] == "value")(case, draw)


CHECKS = {
    "by_hand": Values(tuple(HAND), _judge_hand),
    "advantages": Function(
        "advantages",
        _advantage_cases,
        relations=(*lines_alike("rewards"), scaled("rewards"), shifted("rewards", by=(-1.0, 1.0, 3.0))),
    ),
    "policy_loss": Function(
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
    ),
    "slope": Function(
        "slope", _slope_cases, of_a_curve, (scaled("stretch", power=1), shifted("height", by=(-3.0, 5.0)))
    ),
    "aggregate": Function(
        "aggregate",
        _aggregate_cases,
        as_a_number,
        (*lines_alike("per_token", "mask"), scaled("per_token", power=1), _wider),
    ),
    "logprobs": Function(
        "logprobs", _logprobs_cases, logprobs_of_a_batch, (_wider_batch, _other_order, shifted("weight"))
    ),
    "step": Function(
        "step",
        _step_cases,
        weights_after,
        (padded(**_WIDER, ref_logprobs=0.0, result=False), shifted("rewards", by=(-1.0, 1.0, 3.0))),
    ),
}
