"""Lab 1: the numbers worked by hand agree with the formulas."""

from functools import partial

import pytest
import torch

from grpo_lab.algorithm.losses import policy_loss
from grpo_lab.core.advantages import group_advantages
from tests.grading import mutants

cases = mutants.checks("01_grpo_by_hand")


def test_the_numbers_by_hand_are_those_of_the_formulas():
    approx = partial(pytest.approx, rel=1e-3)
    right, *wrong = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))[0].tolist()
    assert (right, wrong) == (approx(cases.HAND["right_one"]), [approx(cases.HAND["wrong_one"])] * 3)
    loss = policy_loss(torch.full((2, 1), -1.0), torch.full((2, 1), -1.5), torch.tensor([right, wrong[0]]))
    assert loss[:, 0].tolist() == approx([cases.HAND["loss_right"], cases.HAND["loss_wrong"]])


@pytest.mark.parametrize("name", cases.HAND)
def test_a_number_that_is_wrong_by_hand_is_told_alone(findings, name):
    found = findings("by_hand", **{**cases.HAND, name: -cases.HAND[name]})
    assert [bool(finding.why) for finding in found if not finding.right] == [True]
