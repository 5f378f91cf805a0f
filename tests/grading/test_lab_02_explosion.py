"""The checks of lab 2 accept what is right, on any seed, and tell the usual mistakes apart."""

import math

import pytest
import torch

from grpo_lab import kl
from grpo_lab.faults.formulas import LOG_RATIOS
from grpo_lab.grading import checking
from grpo_lab.grading.checks import cases_02_explosion as cases
from grpo_lab.grading.checks import exercise, lab_page

LAB = lab_page("02_explosion")
SEEDS = range(5)


def findings(name, seed=0, **answer):
    return checking.check(exercise("02_explosion", name), answer, seed)


def right_on_every_seed(name, **answer):
    return all(checking.all_right(findings(name, seed, **answer)) for seed in SEEDS)


def gradient(log_ratio, advantage, epsilon=0.2, clip_above=True, clip_below=True, both_sides=False):
    ratio = math.exp(log_ratio)
    outside = ratio > 1 + epsilon or ratio < 1 - epsilon
    above = clip_above and advantage > 0 and ratio > 1 + epsilon
    below = clip_below and advantage < 0 and ratio < 1 - epsilon
    return 0.0 if above or below or (both_sides and outside) else -ratio * advantage


def culprit(log_ratio, advantages, beta, epsilon=0.2, clipped=True, kl_sign=-1, by_advantage=True, by_beta=True):
    ratio, a = log_ratio.exp(), advantages[:, None]
    flat = ((a > 0) & (ratio > 1 + epsilon)) | ((a < 0) & (ratio < 1 - epsilon))
    of_ratio = (ratio * (a.abs() if by_advantage else 1)).masked_fill(flat & clipped, 0.0)
    of_kl = (beta if by_beta else 1) * ((kl_sign * log_ratio).exp() - 1).abs()
    term, pull = max({"ratio": of_ratio, "kl": of_kl}.items(), key=lambda item: float(item[1].max()))
    return *divmod(int(pull.argmax()), pull.shape[1]), term


def furthest(log_ratio, advantages, beta):
    row, token = divmod(int(log_ratio.abs().argmax()), log_ratio.shape[1])
    return row, token, "ratio" if log_ratio[row, token] > 0 else "kl"


def k3(delta, limit=10.0):
    return kl.k3(delta.clamp(-limit, limit))


RIGHT = {"gradient": gradient, "culprit": culprit, "log_ratio": LOG_RATIOS["old"], "k3": k3}
EXERCISE = {"gradient": "gradient", "culprit": "culprit", "log_ratio": "log_ratio", "k3": "bounded"}
WRONG = {
    "gradient": {
        "never clipped": lambda r, a: gradient(r, a, clip_above=False, clip_below=False),
        "clipped above only": lambda r, a: gradient(r, a, clip_below=False),
        "clipped below only": lambda r, a: gradient(r, a, clip_above=False),
        "clipped on both sides": lambda r, a: gradient(r, a, both_sides=True),
        "the sign of the objective": lambda r, a: -gradient(r, a),
        "the value of the ratio": lambda r, a: math.exp(r),
        "without the advantage": lambda r, a: gradient(r, math.copysign(1, a)),
        "by the ratio": lambda r, a: gradient(r, a) / math.exp(r),
    },
    "culprit": {
        "the furthest": furthest,
        "without the clip": lambda r, a, b: culprit(r, a, b, clipped=False),
        "without beta": lambda r, a, b: culprit(r, a, b, by_beta=False),
        "without the advantage": lambda r, a, b: culprit(r, a, b, by_advantage=False),
        "the KL the other way round": lambda r, a, b: culprit(r, a, b, kl_sign=1),
        "rows and tokens swapped": lambda r, a, b: (culprit(r, a, b)[1], culprit(r, a, b)[0], culprit(r, a, b)[2]),
        "only the ratio": lambda r, a, b: culprit(r, a, 0.0),
    },
    "log_ratio": {
        "reference": LOG_RATIOS["reference"],
        "the sampler's own": lambda logprobs, batch: logprobs - batch.sampling_logprobs,
        "the other way round": lambda logprobs, batch: batch.old_logprobs - logprobs,
        "the ratio": lambda logprobs, batch: (logprobs - batch.old_logprobs).exp(),
        "detached": lambda logprobs, batch: logprobs.detach() - batch.old_logprobs,
        "always 1": lambda logprobs, batch: logprobs - logprobs.detach(),
    },
    "k3": {
        "unbounded": kl.k3,
        "clamped after exp": lambda d: d.exp().clamp(max=math.exp(10)) - d.clamp(-10, 10) - 1,
        "the estimate clamped": lambda d: kl.k3(d).clamp(max=math.expm1(10) - 10),
        "the hinge": kl.hinge,
        "only the exponent": lambda d: torch.expm1(d.clamp(-10, 10)) - d,
        "where after exp": lambda d: torch.where(d.abs() < 10, kl.k3(d), kl.k3(d.clamp(-10, 10))),
        "one side": lambda d: kl.k3(d.clamp(max=10)),
        "the wrong limit": lambda d: kl.k3(d.clamp(-5, 5)),
    },
}


@pytest.mark.parametrize("function", RIGHT)
def test_what_is_right_is_accepted(function):
    def renamed(*args, **named):
        return RIGHT[function](*args, **named)

    assert right_on_every_seed(EXERCISE[function], **{function: renamed})


@pytest.mark.parametrize(("function", "mistake"), [(name, mistake) for name, row in WRONG.items() for mistake in row])
def test_a_usual_mistake_is_told_on_every_seed_and_why(function, mistake):
    wrong = WRONG[function][mistake]
    positional = {
        "gradient": lambda log_ratio, advantage: wrong(log_ratio, advantage),
        "culprit": lambda log_ratio, advantages, beta: wrong(log_ratio, advantages, beta),
    }.get(function, wrong)
    for seed in SEEDS:
        told = [
            finding for finding in findings(EXERCISE[function], seed, **{function: positional}) if not finding.right
        ]
        assert told
        assert all(finding.why for finding in told)


def test_a_clamp_after_exp_fails_by_its_gradient_alone():
    wrong = WRONG["k3"]["clamped after exp"]
    told = [finding.what for finding in findings("bounded", k3=wrong) if not finding.right]
    assert len(told) == 1
    assert told[0].startswith("the gradient there")


def test_the_expected_slope_is_the_one_worked_by_hand():
    at_18_55 = torch.tensor([[18.55]])
    assert float(cases._surrogate_slope(at_18_55, torch.tensor([-1.0]))) == pytest.approx(math.exp(18.55))
    assert float(cases._surrogate_slope(at_18_55, torch.tensor([1.0]))) == 0


@pytest.mark.parametrize("nats", [18.55, 18.5501, math.log(113_818_385), 18.56])
def test_the_reported_norm_is_18_55_nats_away(nats):
    assert right_on_every_seed("reported", nats=nats)


@pytest.mark.parametrize(
    "nats", [8.056, 26.76, 113_818_385, 1e9, -18.55, 18.6, math.nan, math.inf, True, "18.55", None]
)
def test_other_numbers_are_not(nats):
    told = findings("reported", nats=nats)
    assert not checking.all_right(told)
    assert told[0].why


@pytest.mark.parametrize(("answer", "accepted"), [("a", True), ("d", True), ("e", False), (3, False)])
def test_any_letter_is_a_prediction(answer, accepted):
    assert right_on_every_seed("forecast", answer=answer) is accepted


def test_the_page_adds_up():
    assert sum(exercise.minutes for exercise in LAB.exercises.values()) < LAB.minutes
    assert len(LAB.questions) == 3
    assert all(0 <= question.right < len(question.options) for question in LAB.questions)
