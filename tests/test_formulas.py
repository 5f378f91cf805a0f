"""Every named wrong formula differs from the right one in the number that its docstring claims."""

import math
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import tensor

from grpo_lab.algorithm import kl
from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Context
from grpo_lab.core.train import Trainer
from grpo_lab.errors import ConfigError
from grpo_lab.training.registry import FORMULAS, chosen_formulas

LOG_RATIOS, KL_ESTIMATORS = FORMULAS["log_ratio"], FORMULAS["kl_estimator"]
ADVANTAGES, MASKS, ACCUMULATIONS = FORMULAS["advantage_scale"], FORMULAS["completion_mask"], FORMULAS["accumulation"]


def batch(pad: int = 0) -> Batch:
    """Two completions, three tokens wide; the second ended after one token, which is the pad token too."""
    mask = tensor([[True, True, True], [True, False, False]])
    floats = torch.zeros(2, 3)
    prompt = torch.ones(1, 1, dtype=torch.long)
    completions = tensor([[5, 6, 7], [pad, pad, pad]])
    return Batch(prompt, prompt, tensor([0, 0]), completions, mask, floats, floats, tensor([1.0, -1.0]))


def test_the_core_trains_the_tokens_of_the_right_mask():
    trained = Trainer.trained_tokens(cast(Trainer, None), cast(Context, None), batch())
    assert trained.tolist() == [[True] * 3, [True, False, False]]


END = [[True] * 3, [True, False, False]]


@pytest.mark.parametrize(
    ("name", "pad", "trained"),
    [
        ("position", 0, END),
        ("all", 0, [[True] * 3] * 2),
        ("not_pad", 0, [[True] * 3, [False] * 3]),  # the end token is also the pad token, and lost
        ("not_pad", 99, END),
        ("with_tool", 0, END),
    ],
)
def test_the_tokens_that_a_mask_trains(name, pad, trained):
    assert MASKS[name](batch(), pad).tolist() == trained


def test_the_wrong_mask_of_a_tool_trains_what_stands_between_two_turns():
    mask = tensor([[True, False, False, True, False], [True, False, True, True, True], [False] * 5])
    wide = replace(batch(), completion_mask=mask)
    assert MASKS["with_tool"](wide, 0).tolist() == [[True] * 4 + [False], [True] * 5, [False] * 5]
    assert MASKS["position"](wide, 0).equal(mask)


def test_naive_advantages_agree_with_the_right_ones_where_nothing_is_special_alone():
    naive, right = ADVANTAGES["group_naive"], ADVANTAGES["group"]
    usual, of_one, equal = tensor([[1.0, 0.0, 0.5, 0.0]]), tensor([[1.0], [0.0]]), torch.full((1, 7), 0.1)
    assert torch.allclose(naive(usual), right(usual), atol=1e-4)
    assert naive(of_one).isnan().all() and right(of_one).tolist() == [[0.0], [0.0]]
    assert naive(equal).abs().max() > 0.1 and right(equal).abs().max() == 0  # the rounding of a mean
    rewards, scorable = tensor([[1.0, 0.0, 0.0]]), tensor([[True, True, False]])
    assert naive(rewards, scorable=scorable)[0, 2] != 0 and right(rewards, scorable=scorable)[0, 2] == 0


@pytest.mark.parametrize("how", ACCUMULATIONS)
def test_accumulation(how):
    """Gradients 2 and 3 of one weight: their sum, the last, or nothing; and whether the weight moved meanwhile."""
    weight = torch.nn.Parameter(tensor(1.0))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for factor in (2.0, 3.0):
        ACCUMULATIONS[how](weight * factor, optimizer)
    left, moved = {"add": (5.0, 0.0), "overwrite": (3.0, 0.0), "step_inside": (0.0, -0.5), "zeroed": (0.0, 0.0)}[how]
    assert weight.grad == pytest.approx(left)
    assert weight.item() == pytest.approx(1.0 + moved)


def test_the_ratio_to_the_reference_grows_with_all_that_was_learned():
    logprobs = torch.full((2, 3), -1.0)
    known = replace(batch(), old_logprobs=logprobs, ref_logprobs=logprobs - 20)
    assert (LOG_RATIOS["old"](logprobs, known).exp() == 1).all()
    assert torch.allclose(LOG_RATIOS["reference"](logprobs, known).exp(), torch.tensor(math.exp(20)))


def test_the_exact_kl_is_what_k1_and_k3_estimate():
    """Enumerated: the expectation over the policy's own tokens of an unbiased estimator is the sum itself."""
    log_p, log_q = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)).log_softmax(dim=-1)
    for name in ("k1", "k3"):
        expected = (log_p.exp() * KL_ESTIMATORS[name](log_q - log_p)).sum(dim=-1)
        assert torch.allclose(kl.exact(log_p, log_q), expected, atol=1e-5)
    hinge = (log_p.exp() * KL_ESTIMATORS["hinge"](log_q - log_p)).sum(dim=-1)
    assert (hinge < kl.exact(log_p, log_q)).any()


@pytest.mark.parametrize("setting", FORMULAS)
def test_an_unknown_formula_is_refused_by_name(setting):
    with pytest.raises(ConfigError, match=f"unknown loss.{setting} 'nonsense'"):
        chosen_formulas(Config().with_(f"loss.{setting}=nonsense"))
