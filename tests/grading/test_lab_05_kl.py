"""The checks of lab 5 accept what is right, on any seed, and tell the usual mistakes apart."""

import math

import pytest
import torch
from torch import tensor

from grpo_lab import kl
from grpo_lab.faults.formulas import KL_ESTIMATORS
from grpo_lab.grading import checking
from grpo_lab.grading.checks import cases_05_kl as cases
from grpo_lab.grading.checks import exercise, lab_page

LAB = lab_page("05_kl")
SEEDS = range(5)


def findings(name, seed=0, **answer):
    return checking.check(exercise("05_kl", name), answer, seed)


def right_on_every_seed(name, **answer):
    return all(checking.all_right(findings(name, seed, **answer)) for seed in SEEDS)


def expected_gradient(theta, log_ref, estimator):
    log_p = theta.log_softmax(0)
    loss = (log_p.exp().detach() * estimator(log_ref - log_p)).sum()
    (gradient,) = torch.autograd.grad(loss, theta)
    return gradient


def with_weights(weights, sign=1.0):
    def answer(theta, log_ref, estimator):
        log_p = theta.log_softmax(0)
        loss = (weights(log_p, log_ref) * estimator(sign * (log_ref - log_p))).sum()
        return torch.autograd.grad(loss, theta)[0]

    return answer


def by_backward(theta, log_ref, estimator):
    log_p = theta.log_softmax(0)
    with torch.no_grad():
        weights = log_p.exp()
    (weights * estimator(log_ref - log_p)).sum().backward()
    return theta.grad


def straight(delta, limit=5.0):
    inside = delta.clamp(max=limit)
    return torch.expm1(inside) - inside + math.expm1(limit) * (delta - inside)


def next_beta(beta, kl, target):
    if not math.isfinite(kl):
        return beta
    return beta * (1 + 0.1 * max(-0.2, min(0.2, kl / target - 1)))


RIGHT = {"k3": lambda d: torch.expm1(d) - d, "expected_gradient": expected_gradient, "straight": straight}
WRONG = {
    "k3": {
        **{name: estimator for name, estimator in KL_ESTIMATORS.items() if name != "k3"},
        "sign flipped": lambda d: kl.k3(-d),
        "value flipped": lambda d: -kl.k3(d),
        "without - delta": torch.expm1,
        "without - 1": lambda d: d.exp() - d,
        "a number for all": lambda d: kl.k3(d).mean(),
        "absolute": torch.abs,
    },
    "expected_gradient": {
        "differentiates the draw": with_weights(lambda log_p, log_ref: log_p.exp()),
        "drawn from the reference": with_weights(lambda log_p, log_ref: log_ref.exp()),
        "every token counts alike": with_weights(lambda log_p, log_ref: torch.full_like(log_p, 1 / 7)),
        "policy minus reference": with_weights(lambda log_p, log_ref: log_p.exp().detach(), -1.0),
        "logprobs for probabilities": with_weights(lambda log_p, log_ref: log_p.detach()),
        "the value": lambda theta, log_ref, estimator: estimator(log_ref - theta.log_softmax(0)),
    },
    "straight": {
        "k3": kl.k3,
        "clamped, flat": lambda d: kl.k3(d.clamp(max=5.0)),
        "clamped after exp": lambda d: kl.k3(d).clamp(max=math.expm1(5) - 5),
        "where after exp": lambda d: torch.where(d > 5, straight(d), kl.k3(d)),
        "slope e^limit": lambda d: kl.k3(d.clamp(max=5.0)) + math.exp(5) * (d - d.clamp(max=5.0)),
        "slope 1": lambda d: kl.k3(d.clamp(max=5.0)) + (d - d.clamp(max=5.0)),
        "clamped on both sides": lambda d: straight(d.clamp(min=-5.0)),
        "hinge": kl.hinge,
    },
    "next_beta": {
        "naive": lambda beta, kl, target: beta * (1 + 0.1 * max(-0.2, min(0.2, kl / target - 1))),
        "clipped the other way round": lambda beta, kl, target: beta * (1 + 0.1 * min(0.2, max(-0.2, kl / target - 1))),
        "NaN becomes 0": lambda beta, kl, target: next_beta(beta, kl if math.isfinite(kl) else 0.0, target),
        "NaN alone": lambda beta, kl, target: beta if math.isnan(kl) else beta * (1 + 0.1 * min(0.2, kl / target - 1)),
        "not clipped": lambda beta, kl, target: beta * (1 + 0.1 * (kl / target - 1)) if math.isfinite(kl) else beta,
        "upside down": lambda beta, kl, target: next_beta(beta, target * target / kl if kl else math.inf, target),
        "sign flipped": lambda beta, kl, target: 2 * beta - next_beta(beta, kl, target),
        "added": lambda beta, kl, target: beta + next_beta(1.0, kl, target) - 1,
        "gain forgotten": lambda beta, kl, target: beta * (1 + 10 * (next_beta(1.0, kl, target) - 1)),
    },
}


ANOTHER_WAY = {
    "k3": lambda d: (torch.expm1(d.double()) - d.double()).float(),
    "expected_gradient": by_backward,
    "straight": lambda d: torch.where(d > 5, kl.k3(tensor(5.0)) + math.expm1(5) * (d - 5), kl.k3(d.clamp(max=5.0))),
    "next_beta": lambda beta, kl, target: (
        beta * (1.02 if kl > 1.2 * target else next_beta(1.0, kl, target)) if math.isfinite(kl) else beta
    ),
}


@pytest.mark.parametrize(("name", "function"), [*RIGHT.items(), ("next_beta", next_beta), *ANOTHER_WAY.items()])
def test_what_is_right_passes_on_every_seed(name, function):
    assert right_on_every_seed(name, **{name: function})


@pytest.mark.parametrize(
    ("name", "wrong"), [pytest.param(name, w, id=f"{name}-{w}") for name, answers in WRONG.items() for w in answers]
)
def test_a_usual_mistake_is_found_and_explained(name, wrong):
    for seed in SEEDS:
        found = [finding for finding in findings(name, seed, **{name: WRONG[name][wrong]}) if not finding.right]
        assert found and all(finding.why for finding in found)
        assert any("Error" not in finding.got for finding in found)  # wrong, and not only broken


def test_an_estimate_that_is_wrong_near_0_alone_is_told_apart_from_one_that_is_wrong_everywhere():
    found = findings("k3", k3=KL_ESTIMATORS["k3_exp"])
    assert [finding.what for finding in found if not finding.right] == [found[-1].what]
    assert "0.0002" in found[-1].what


def test_the_closed_forms_are_those_of_the_divergences():
    """k2 in the loss pulls like KL(policy || ref), k3 like KL(ref || policy), the hinge like the total variation."""
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


def test_each_estimator_has_one_match():
    assert right_on_every_seed("pulls", **cases.PULLS)
    for name in cases.PULLS:
        found = findings("pulls", 0, **{**cases.PULLS, name: "e"})
        assert [finding.what for finding in found if not finding.right] == [f"what {name} pulls on"]


def test_a_prediction_counts_when_it_is_made():
    assert right_on_every_seed("forecast", answer="a")
    assert not checking.all_right(findings("forecast", answer="both"))


def test_the_straight_estimator_is_finite_where_k3_is_not():
    delta = tensor([300.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(straight(delta).sum(), delta)
    assert gradient.item() == pytest.approx(math.expm1(5))
    assert kl.k3(delta).item() == math.inf


def test_the_page_holds_what_a_lab_must_hold():
    assert 4 <= len(LAB.exercises) <= 6
    assert len(LAB.questions) == 3
    assert sum(each.minutes for each in LAB.exercises.values()) < LAB.minutes
