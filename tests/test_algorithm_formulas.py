"""The parts of the loss against a float64 reference: value and gradient of each combination, and wrong variants.

The reference is plain Python with derivatives by hand. A wrong variant of each formula must miss it.
"""

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, tensor

from grpo_lab.algorithm.advantages import ADVANTAGES
from grpo_lab.algorithm.surrogates import CORRECTIONS, LEVELS, SURROGATES, Limits, sequence_level
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.core.loss import token_weights, weighted_sum
from grpo_lab.events import Stepped
from grpo_lab.training.registry import FORMULAS, chosen_formulas
from grpo_lab.training.trainer import train

LIMITS = Limits(0.2, 0.3, 2.0, 1.5, 2.5)
HOW = ("token", "sequence", "constant", "sum")


class Given(NamedTuple):
    """Tensors (6, 5), and advantages (6,), of completions with 5, 4, 3, 2, 1 and 3 tokens."""

    logprobs: Tensor
    old: Tensor
    mask: Tensor
    advantages: Tensor


def given(seed: int = 0) -> Given:
    generator = torch.Generator().manual_seed(seed)
    logprobs, moves = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < tensor([5, 4, 3, 2, 1, 3])[:, None]
    advantages = tensor([1.0, -1.0, 0.5, -2.0, 1.5, -0.3], dtype=torch.float64)
    return Given(-logprobs.abs() - 0.1, (-logprobs.abs() - 0.1 - moves * 0.7), mask, advantages)


def reference(found: Given, level: str, surrogate: str, how: str) -> tuple[float, list[list[float]]]:
    """The loss and its gradient at each log-probability, in plain Python."""
    rows, lengths = found.mask.tolist(), found.mask.sum(dim=1).tolist()
    loss, gradient = 0.0, [[0.0] * 5 for _ in rows]
    for b, length in enumerate(lengths):
        a, logp = float(found.advantages[b]), found.logprobs[b].tolist()
        x = [logp[t] - float(found.old[b, t]) for t in range(length)]
        whole = sum(x) / (1 if level == "sequence_sum" else length)
        for t in range(length):
            log_weight = x[t] if level == "token" else whole
            value, by_weight, by_logp = token_loss(surrogate, log_weight, logp[t], a)
            weight = {"token": 1 / sum(lengths), "sequence": 1 / 6 / length, "constant": 1 / 30, "sum": 1 / 6}[how]
            loss += weight * value
            gradient[b][t] += weight * by_logp
            for s in range(length):  # the derivative of this log-weight by the log-probability of token s
                inner = {"sequence": 1 / length, "sequence_sum": 1.0}.get(level, float(s == t))
                gradient[b][s] += weight * by_weight * inner
    return loss, gradient


def token_loss(surrogate: str, log_weight: float, logp: float, a: float) -> tuple[float, float, float]:
    """The loss of a token, and its derivatives by the log-weight and by the log-probability."""
    r, (low, high) = math.exp(log_weight), (0.8, 1.3)
    if surrogate == "reinforce":
        return -a * logp, 0.0, -a
    if surrogate == "cispo":
        return -min(r, high) * a * logp, 0.0, -min(r, high) * a
    if surrogate == "sapo":
        tau = 1.5 if a > 0 else 2.5
        gate = 1 / (1 + math.exp(-tau * (r - 1)))
        return -4 / tau * gate * a, -4 * gate * (1 - gate) * r * a, 0.0
    if surrogate == "clip" and a > 0:
        return -min(r, high) * a, -r * a * (r <= high), 0.0
    if surrogate == "clip":
        return -min(max(r, low), 2.0) * a, -r * a * (low <= r <= 2.0), 0.0
    return -r * a, -r * a, 0.0


def ours(found: Given, level, surrogate, how: str) -> tuple[Tensor, Tensor]:
    logprobs = found.logprobs.clone().requires_grad_()
    log_weights = level((logprobs - found.old).masked_fill(~found.mask, 0.0), found.mask)
    losses = surrogate(log_weights, logprobs, found.advantages, LIMITS)
    loss = weighted_sum(losses, token_weights(found.mask, how))
    return loss.detach(), torch.autograd.grad(loss, logprobs)[0]


def agree(found: Given, level, surrogate, how: str, names: tuple[str, str]) -> bool:
    loss, gradient = ours(found, level, surrogate, how)
    right_loss, right_gradient = reference(found, *names, how)
    same = torch.allclose(gradient, tensor(right_gradient, dtype=torch.float64), atol=1e-6)
    return same and float(loss) == pytest.approx(right_loss, abs=1e-6)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("level", LEVELS)
def test_value_and_gradient_of_each_combination(level, surrogate, how):
    for seed in range(3):
        assert agree(given(seed), LEVELS[level], SURROGATES[surrogate], how, (level, surrogate))


def test_the_random_tensors_clip_on_either_side_for_either_sign():
    found = given()
    ratio, trained = (found.logprobs - found.old).exp(), found.mask
    for sign in (1, -1):
        of_sign = trained & (found.advantages.sign() == sign)[:, None]
        assert {(ratio[of_sign] < 0.8).any().item(), (ratio[of_sign] > 1.3).any().item()} == {True}
    assert (ratio[trained & (found.advantages < 0)[:, None]] > 2.0).any()  # the dual clip


def over_the_width(log_ratio, mask):
    return (log_ratio.sum(dim=1, keepdim=True) / log_ratio.shape[1]).expand_as(log_ratio)


def unmasked(log_ratio, mask, outside=1.0):
    return sequence_level(torch.where(mask, log_ratio, outside), torch.ones_like(mask))


LEVEL_MUTANTS = {
    "sequence": {
        "sum for mean": LEVELS["sequence_sum"],
        "over the width": over_the_width,
        "padding counts": unmasked,
    },
    "sequence_sum": {"mean for sum": LEVELS["sequence"], "token": LEVELS["token"]},
    "sequence_token": {
        "token": LEVELS["token"],
        "no gradient": lambda log_ratio, mask: log_ratio - log_ratio.detach() + unmasked(log_ratio, mask).detach(),
        "gradient of both": lambda log_ratio, mask: sequence_level(log_ratio, mask) + log_ratio - log_ratio.detach(),
    },
    "token": {"mean": LEVELS["sequence"], "clipped first": lambda log_ratio, mask: log_ratio.clamp(-0.5, 0.5)},
}


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name in LEVEL_MUTANTS for wrong in LEVEL_MUTANTS[name]])
def test_a_wrong_level_is_told_apart(name, wrong):
    assert not all(
        agree(given(), LEVEL_MUTANTS[name][wrong], SURROGATES[surrogate], "token", (name, surrogate))
        for surrogate in SURROGATES
    )


def test_sequence_and_sequence_token_differ_only_where_tokens_count_differently():
    """With one advantage and one weight for a completion's tokens the gradients are equal; the paper says so, too."""
    found, gradients = given(), []
    for weights in (torch.ones(6, 5), torch.arange(1.0, 6.0).expand(6, 5)):
        for name in ("sequence", "sequence_token"):
            log_ratio = (found.logprobs - found.old).requires_grad_()
            log_weights = LEVELS[name](log_ratio, found.mask)
            gradients += torch.autograd.grad((log_weights * weights * found.mask).sum(), log_ratio)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert not torch.allclose(gradients[2], gradients[3])
    torch.testing.assert_close(gradients[2].sum(), gradients[3].sum())


def soft(log_weights, logprobs, advantages, limits, positive=1.5, negative=2.5, scale=4.0):
    tau = torch.where(advantages > 0, positive, negative)[:, None]
    return -torch.sigmoid(tau * (log_weights.exp() - 1)) * scale / tau * advantages[:, None]


def weighted(log_weights, logprobs, advantages, limits, low=0.0, high=1.3, detach=True):
    weights = log_weights.exp().clamp(low, high)
    return -(weights.detach() if detach else weights) * advantages[:, None] * logprobs


SURROGATE_MUTANTS = {
    "clip": {"unclipped": SURROGATES["unclipped"], "weights": SURROGATES["cispo"], "soft": SURROGATES["sapo"]},
    "cispo": {
        "clipped below too": partial(weighted, low=0.8),
        "not clipped": partial(weighted, high=math.inf),
        "the weight has a gradient": partial(weighted, detach=False),
        "epsilon_high is the bound": partial(weighted, high=0.3),
        "no log-probability": SURROGATES["clip"],
    },
    "sapo": {
        "temperatures swapped": partial(soft, positive=2.5, negative=1.5),
        "one temperature": partial(soft, negative=1.5),
        "slope not 1": partial(soft, scale=1.0),
        "hard": SURROGATES["clip"],
    },
    "unclipped": {"clipped": SURROGATES["clip"], "no ratio": SURROGATES["reinforce"]},
    "reinforce": {"with a ratio": SURROGATES["unclipped"], "sign": lambda *a: -SURROGATES["reinforce"](*a)},
}


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name in SURROGATE_MUTANTS for wrong in SURROGATE_MUTANTS[name]]
)
def test_a_wrong_surrogate_is_told_apart(name, wrong):
    assert set(SURROGATE_MUTANTS) == set(SURROGATES)
    assert not agree(given(), LEVELS["token"], SURROGATE_MUTANTS[name][wrong], "token", ("token", name))


# Advantages ----------------------------------------------------------------------------------------------------------

REWARDS, SCORABLE = (
    tensor([[1.0, 0.0, 0.0, 2.0], [3.0, 1.0, 9.0, 1.0]]),
    tensor([[True] * 4, [True, True, False, True]]),
)
# The others of 1 0 0 2: means 2/3, 1, 1, 1/3; of 3 1 1: 1, 2, 2.
ONE_OUT = [[1 / 3, -1.0, -1.0, 5 / 3], [2.0, -1.0, 0.0, -1.0]]
# 1 0 0 2 3 1 1: mean 8/7; squares of 7 r - 8: 1 64 64 36 169 1 1 = 336; / 49 / 6 = 8/7.
GLOBAL = [[(7 * r - 8) / 7 / math.sqrt(8 / 7) for r in row] for row in REWARDS.tolist()]
GLOBAL[1][2] = 0.0
BY_HAND = {"leave_one_out": ONE_OUT, "global": GLOBAL}


def right(name, function) -> bool:
    return torch.allclose(function(REWARDS, scorable=SCORABLE), tensor(BY_HAND[name]), atol=1e-5)


@pytest.mark.parametrize("name", BY_HAND)
def test_advantages_by_hand(name):
    assert right(name, ADVANTAGES[name])


def naive_one_out(rewards, scorable):
    others = (rewards.sum(dim=1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return (rewards - others).masked_fill(~scorable, 0.0)


ADVANTAGE_MUTANTS = {
    "leave_one_out": {
        "mean with itself": ADVANTAGES["none"],
        "in standard deviations": ADVANTAGES["group"],
        "baselines of what was not scored": naive_one_out,
    },
    "global": {
        "mean of the group": ADVANTAGES["batch"],
        "group": ADVANTAGES["group"],
        "zero is a score": lambda r, scorable: ADVANTAGES["global"](r.masked_fill(~scorable, 0.0)),
        "biased": lambda r, scorable: ADVANTAGES["global"](r, scorable=scorable) * math.sqrt(7 / 6),
    },
}


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name in ADVANTAGE_MUTANTS for wrong in ADVANTAGE_MUTANTS[name]]
)
def test_wrong_advantages_are_told_apart(name, wrong):
    assert not right(name, ADVANTAGE_MUTANTS[name][wrong])


def test_equal_rewards_teach_nothing_where_they_are_compared():
    equal = tensor([[0.1, 0.1, 0.1], [0.3, 0.3, 0.3]])
    assert not ADVANTAGES["leave_one_out"](equal).any()
    assert ADVANTAGES["global"](equal).tolist() == [
        [pytest.approx(-0.912870, abs=1e-4)] * 3,
        [pytest.approx(0.912870, abs=1e-4)] * 3,
    ]
    assert not ADVANTAGES["global"](torch.full((2, 7), 0.1)).any()


def test_a_completion_alone_has_no_baseline():
    assert ADVANTAGES["leave_one_out"](tensor([[5.0], [-2.0]])).tolist() == [[0.0], [0.0]]
    alone = tensor([[True, False, False, False], [False] * 4])
    assert not ADVANTAGES["leave_one_out"](REWARDS, scorable=alone).any()
    assert not ADVANTAGES["global"](REWARDS, scorable=alone).any()


def test_a_nan_is_not_hidden():
    for name in ADVANTAGES:
        assert ADVANTAGES[name](tensor([[math.nan, 1.0, 0.0]])).isnan().any(), name


# Sampler and trainer -------------------------------------------------------------------------------------------------


def sampled(found: Given) -> Batch:
    """A batch whose sampler was not the policy: gaps of up to two nats a token."""
    gaps = torch.linspace(-2, 2, 30, dtype=torch.float64).view(6, 5)[:, torch.tensor([3, 0, 4, 1, 2])]
    rows = torch.zeros(6, dtype=torch.long)
    return Batch(
        rows[:1, None], rows[:1, None], rows, rows, found.mask, found.old - gaps, found.old, old_logprobs=found.old
    )


def corrections(found: Given, mode: str, low: float | None, high: float | None) -> list[list[float]]:
    """The weights again, in plain Python."""
    batch, rows = sampled(found), []
    for row, sampler, mask in zip(found.old.tolist(), batch.sampling_logprobs.tolist(), found.mask, strict=True):
        gaps = [old - other for old, other, trained in zip(row, sampler, mask, strict=True) if trained]
        gaps = [sum(gaps)] * len(gaps) if "sequence" in mode else gaps
        found_row = []
        for weight in map(math.exp, gaps):
            bounded = min(max(weight, low or 0.0), math.inf if high is None else high)
            found_row.append(0.0 if "mask" in mode and bounded != weight else bounded)
        rows.append(found_row)
    return rows


def corrected(found: Given, function, low, high) -> list[list[float]]:
    losses = function(torch.ones(6, 5, dtype=torch.float64), sampled(found), low, high)
    return [row[mask].tolist() for row, mask in zip(losses, found.mask, strict=True)]


BOUNDS = [(None, 3.0), (0.5, 2.0), (0.5, None), (None, None)]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("mode", [name for name in CORRECTIONS if name != "none"])
def test_the_weight_between_sampler_and_trainer(mode, low, high):
    found = given()
    for mine, hand in zip(
        corrected(found, CORRECTIONS[mode], low, high), corrections(found, mode, low, high), strict=True
    ):
        assert mine == pytest.approx(hand)
    others = {
        name
        for name in CORRECTIONS
        if corrected(found, CORRECTIONS[name], 0.5, 2.0) == corrected(found, CORRECTIONS[mode], 0.5, 2.0)
    }
    assert others == {mode}  # each other one is a wrong variant of it


def test_without_a_correction_losses_pass_as_they_are():
    losses = torch.ones(6, 5)
    assert CORRECTIONS["none"](losses, sampled(given()), None, 3.0) is losses


def test_the_weight_upside_down_is_told_apart():
    found = given()
    swapped = replace(sampled(found), old_logprobs=sampled(found).sampling_logprobs, sampling_logprobs=found.old)
    mine = CORRECTIONS["token_truncate"](torch.ones(6, 5), swapped, None, 3.0)
    assert not torch.allclose(mine, CORRECTIONS["token_truncate"](torch.ones(6, 5), sampled(found), None, 3.0))


# In a run ------------------------------------------------------------------------------------------------------------

SMOKE = preset("smoke").with_("run.threads=1", "optimizer.learning_rate=1e-2", "loss.num_iterations=2")


def steps(config: Config) -> list[Stepped]:
    return [event for event in train(config) if isinstance(event, Stepped)]


def test_completions_that_were_cut_off_are_not_trained():
    config = SMOKE.with_("sampling.max_completion_length=3")
    plain, masked = steps(config)[0], steps(config.with_("loss.completion_mask=not_truncated"))[0]
    assert 0 < plain.metrics["completions/clipped_ratio"] == masked.metrics["completions/clipped_ratio"] < 1
    cut_off = 16 * plain.metrics["completions/clipped_ratio"]
    assert masked.metrics["num_tokens"] == plain.metrics["num_tokens"] - 3 * cut_off


def test_a_step_whose_completions_were_all_cut_off_is_refused():
    (first, *_) = steps(SMOKE.with_("sampling.max_completion_length=1", "loss.completion_mask=not_truncated"))
    assert first.verdict == Verdict.SKIP_STEP
    assert [(a.stage, a.reason) for a in first.actions] == [(Stage.BATCH, "none of 16 completions is trained")]


def test_a_clip_fraction_belongs_to_the_surrogate():
    names = {
        name: {key for key in steps(SMOKE.with_(f"loss.surrogate={name}"))[0].metrics if "clip_ratio" in key}
        for name in SURROGATES
    }
    shares = {f"clip_ratio/{side}_mean" for side in ("low", "high", "region")}
    assert names == {
        "clip": shares,
        "cispo": {"cispo_clip_ratio"},
        "sapo": set(),
        "unclipped": set(),
        "reinforce": set(),
    }


def test_of_sequences_the_clip_fraction_counts_trained_tokens_only():
    low = steps(SMOKE.with_("loss.importance_sampling_level=sequence", "loss.epsilon=1e-6"))
    assert all(0 <= step.metrics["clip_ratio/region_mean"] <= 1 for step in low)
    assert max(step.metrics["clip_ratio/region_mean"] for step in low) > 0


@pytest.mark.parametrize("setting", ["importance_sampling_level", "surrogate", "importance_sampling_mode"])
def test_every_named_formula_trains(setting):
    for name in FORMULAS[setting]:
        config = SMOKE.with_(f"loss.{setting}={name}", "sampling.top_k=4")
        assert callable(getattr(chosen_formulas(config), setting))
        assert all(math.isfinite(step.metrics["loss"]) for step in steps(config)), name
