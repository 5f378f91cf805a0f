"""Lab 2: expected slopes agree with those worked by hand, and only its gradient reveals a clamp after exp."""

import math

import pytest
import torch

from grpo_lab.algorithm import kl
from tests.grading import mutants

cases = mutants.checks("02_explosion")

SLOPE = cases._slope_of_a_token


def test_a_clamp_after_exp_fails_by_its_gradient_alone(findings):
    def k3(delta):
        return delta.exp().clamp(max=math.exp(10)) - delta.clamp(-10, 10) - 1

    (told,) = [finding.what for finding in findings("bounded", k3=k3) if not finding.right]
    assert told.startswith("the gradient there")


def test_the_expected_slope_is_the_one_worked_by_hand():
    at_18_55 = torch.tensor([[18.55]])
    assert float(cases._surrogate_slope(at_18_55, torch.tensor([-1.0]))) == pytest.approx(math.exp(18.55))
    assert float(cases._surrogate_slope(at_18_55, torch.tensor([1.0]))) == 0


def test_a_sign_error_is_not_told_where_the_range_ends(findings):
    wrong = [each for each in findings("gradient", gradient=lambda *a, **b: -SLOPE(*a, **b)) if not each.right]
    assert len(wrong) == 8
    assert all("-r A" in each.why for each in wrong)


@pytest.mark.parametrize(("nats", "said"), [(8.056, "base 10"), (26.76, "base 2"), (18.0, "two decimals")])
def test_the_base_is_named_only_where_it_is_the_mistake(findings, nats, said):
    (found,) = findings("reported", nats=nats)
    assert not found.right and said in found.why and ("base" in said or "base" not in found.why)


def test_a_smaller_bound_is_not_told_of_nan_or_of_two_sides(findings):
    wrong = [each for each in findings("bounded", k3=lambda delta: kl.k3(delta.clamp(-5, 5))) if not each.right]
    assert len(wrong) == 3
    assert all("10" in each.why for each in wrong)
    assert not any("exp came before" in each.why and "Where it is inf" not in each.why for each in wrong)


def test_detaching_is_named_only_where_something_was_detached(findings):
    wrong = findings("log_ratio", log_ratio=lambda logprobs, batch: batch.old_logprobs - logprobs)
    assert all("the sign is not" in each.why for each in wrong if not each.right)
    (_, _, found) = findings("log_ratio", log_ratio=lambda logprobs, batch: (logprobs - batch.old_logprobs).mean())
    assert "detached" not in found.why
