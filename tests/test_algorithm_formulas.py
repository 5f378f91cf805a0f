"""The parts of the loss, against numbers and slopes worked by hand."""

import math

import pytest
import torch
from torch import tensor

from grpo_lab.algorithm.advantages import ADVANTAGES
from grpo_lab.algorithm.surrogates import CORRECTIONS, LEVELS, SURROGATES, Limits
from grpo_lab.config.catalog import preset
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.training.registry import FORMULAS, chosen_formulas
from tests.steps import steps_of as steps

LIMITS = Limits(0.2, 0.3, 2.0, 1.5, 2.5)


# Log-ratios 0.1 and 0.5, and one outside the mask; slopes of the sum in which they count once and three times.
@pytest.mark.parametrize(
    ("level", "values", "slopes"),
    [
        ("token", [0.1, 0.5], [1.0, 3.0, 0.0]),
        ("sequence", [0.3, 0.3], [2.0, 2.0, 0.0]),
        ("sequence_sum", [0.6, 0.6], [4.0, 4.0, 0.0]),
        ("sequence_token", [0.3, 0.3], [1.0, 3.0, 0.0]),
    ],
)
def test_the_ratio_of_each_level(level, values, slopes):
    assert len(LEVELS) == 4
    log_ratio, mask = tensor([[0.1, 0.5, 9.0]], requires_grad=True), tensor([[True, True, False]])
    found = LEVELS[level](log_ratio.masked_fill(~mask, 0.0), mask)
    assert found[0, :2].tolist() == pytest.approx(values)
    (slope,) = torch.autograd.grad((found * tensor([1.0, 3.0, 0.0])).sum(), log_ratio)
    assert slope[0].tolist() == pytest.approx(slopes)


# Of a token with log-probability -1: loss, its slope by the log-ratio, and by the log-probability.
@pytest.mark.parametrize(
    ("name", "ratio", "advantage", "loss", "by_log_ratio", "by_logprob"),
    [
        ("clip", 2.0, 1.0, -1.3, 0.0, 0.0),
        ("clip", 3.0, -1.0, 2.0, 0.0, 0.0),  # delta
        ("clip", 0.5, -1.0, 0.8, 0.0, 0.0),
        ("unclipped", 2.0, 1.0, -2.0, -2.0, 0.0),
        ("reinforce", 2.0, 1.0, 1.0, 0.0, -1.0),
        ("cispo", 2.0, 1.0, 1.3, 0.0, -1.3),
        ("cispo", 0.5, -1.0, -0.5, 0.0, 0.5),
        ("sapo", 1.0, 1.0, -2 / 1.5, -1.0, 0.0),
        ("sapo", 1.0, -1.0, 2 / 2.5, 1.0, 0.0),
        ("sapo", 3.0, 1.0, -4 / 1.5 / (1 + math.exp(-3)), -12 * math.exp(-3) / (1 + math.exp(-3)) ** 2, 0.0),
    ],
)
def test_each_surrogate(name, ratio, advantage, loss, by_log_ratio, by_logprob):
    log_ratio, logprob = tensor([[math.log(ratio)]], requires_grad=True), tensor([[-1.0]], requires_grad=True)
    found = SURROGATES[name](log_ratio, logprob, tensor([advantage]), LIMITS).sum()
    slopes = torch.autograd.grad(found, [log_ratio, logprob], allow_unused=True, materialize_grads=True)
    assert float(found.detach()) == pytest.approx(loss)
    assert [float(slope) for slope in slopes] == pytest.approx([by_log_ratio, by_logprob], abs=1e-6)


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


@pytest.mark.parametrize("name", BY_HAND)
def test_advantages_by_hand(name):
    assert torch.allclose(ADVANTAGES[name](REWARDS, scorable=SCORABLE), tensor(BY_HAND[name]), atol=1e-5)


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


# Sampler and trainer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "low", "high", "weights"),
    [
        ("token_truncate", None, None, [1.2, 4.0]),
        ("token_truncate", 1.5, 3.0, [1.5, 3.0]),
        ("token_mask", 0.5, 3.0, [1.2, 0.0]),
        ("sequence_truncate", None, None, [4.8, 4.8]),
        ("sequence_truncate", 0.5, 3.0, [3.0, 3.0]),
        ("sequence_mask", 0.5, 5.0, [4.8, 4.8]),
        ("sequence_mask", 0.5, 3.0, [0.0, 0.0]),
        ("none", 0.5, 3.0, [1.0, 1.0]),
    ],
)
def test_the_weight_between_sampler_and_trainer(mode, low, high, weights):
    """The policy finds two tokens 1.2 and 4 times as likely as the sampler did; a third is outside the mask."""
    one, old = torch.zeros(1, 1, dtype=torch.long), tensor([[-1.0, -2.0, -1.0]])
    mask, sampler = tensor([[True, True, False]]), old - tensor([[1.2, 4.0, 9.0]]).log()
    batch = Batch(one, one, one[0], one, mask, sampler, old, old_logprobs=old)
    found = CORRECTIONS[mode](torch.ones(1, 3), batch, low, high)
    assert found[0, :2].tolist() == pytest.approx(weights)


# In a run ------------------------------------------------------------------------------------------------------------

SMOKE = preset("smoke").with_("run.threads=1", "optimizer.learning_rate=1e-2", "loss.num_iterations=2")


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
        name: {
            key
            for key in steps(SMOKE.with_(f"loss.surrogate={name}", "run.num_steps=1"))[0].metrics
            if "clip_ratio" in key
        }
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


@pytest.mark.parametrize("setting", ["importance_sampling_level", "surrogate", "importance_sampling_mode"])
def test_every_named_formula_trains(setting):
    for name in FORMULAS[setting]:
        config = SMOKE.with_(f"loss.{setting}={name}", "sampling.top_k=4", "run.num_steps=1")
        assert callable(getattr(chosen_formulas(config), setting))
        assert all(math.isfinite(step.metrics["loss"]) for step in steps(config)), name
