"""Lab 2: expected slopes agree with those worked by hand, and only its gradient reveals a clamp after exp."""

import math

import pytest
import torch

from grpo_lab.course.labs.lab_02_explosion import cases


def test_a_clamp_after_exp_fails_by_its_gradient_alone(findings):
    def k3(delta):
        return delta.exp().clamp(max=math.exp(10)) - delta.clamp(-10, 10) - 1

    (told,) = [finding.what for finding in findings("bounded", k3=k3) if not finding.right]
    assert told.startswith("the gradient there")


def test_the_expected_slope_is_the_one_worked_by_hand():
    at_18_55 = torch.tensor([[18.55]])
    assert float(cases._surrogate_slope(at_18_55, torch.tensor([-1.0]))) == pytest.approx(math.exp(18.55))
    assert float(cases._surrogate_slope(at_18_55, torch.tensor([1.0]))) == 0
