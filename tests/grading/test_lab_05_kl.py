"""Lab 5: expected estimates and gradients agree with the divergences."""

import math

import pytest
import torch
from torch import tensor

from grpo_lab.algorithm import kl
from grpo_lab.training.wrong_formulas import k3_exp
from tests.grading import mutants

cases = mutants.checks("05_kl")


def test_an_estimate_that_is_wrong_near_0_alone_is_told_apart_from_one_that_is_wrong_everywhere(findings):
    found = findings("k3", k3=k3_exp)
    assert [finding.what for finding in found if not finding.right] == [found[-1].what]
    assert "0.0002" in found[-1].what


def test_the_closed_forms_are_those_of_the_divergences(lab, load):
    """k2 has the gradient of KL(policy || ref), k3 that of KL(ref || policy), the hinge that of the total variation."""
    expected_gradient = load(mutants.solution(lab, "expected_gradient")).expected_gradient
    theta, reference = torch.randn(2, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    theta, log_q = theta.requires_grad_(), reference.log_softmax(0)
    q = log_q.exp()
    log_p = theta.log_softmax(0)
    values = {
        "k2": kl.exact(log_p, log_q),
        "k3": kl.exact(log_q, log_p),
        "hinge": (q - log_p.exp()).clamp(min=0).sum(),
    }
    for name, value in values.items():
        (gradient,) = torch.autograd.grad(value, theta, retain_graph=True)
        assert torch.allclose(gradient, expected_gradient(theta, log_q, kl.ESTIMATORS[name]))
    assert expected_gradient(theta, log_q, kl.k1).abs().max() < 1e-12


@pytest.mark.parametrize("name", cases.PULLS)
def test_each_match_has_a_finding_of_its_own(findings, name):
    found = findings("pulls", 0, **{**cases.PULLS, name: "e"})
    assert [finding.what for finding in found if not finding.right] == [f"the match of {name}"]


def test_the_straight_estimator_is_finite_where_k3_is_not(lab, load):
    delta = tensor([300.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(load(mutants.solution(lab, "straight")).straight(delta).sum(), delta)
    assert gradient.item() == pytest.approx(math.expm1(5))
    assert kl.k3(delta).item() == math.inf
