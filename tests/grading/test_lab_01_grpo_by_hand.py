"""The checks of lab 1 accept what is right, on any seed, and tell the usual mistakes apart."""

import warnings
from functools import partial

import pytest
import torch

from grpo_lab.advantages import group_advantages
from grpo_lab.faults.formulas import ADVANTAGES
from grpo_lab.grading import checking
from grpo_lab.grading.checks import cases_01_grpo_by_hand as cases
from grpo_lab.grading.checks import exercise, lab_page
from grpo_lab.losses import aggregate, policy_loss, token_weights

LAB = lab_page("01_grpo_by_hand")
SEEDS = range(5)


def findings(name, seed=0, **answer):
    return checking.check(exercise("01_grpo_by_hand", name), answer, seed)


def with_std(ddof=1, eps=1e-6, sign=1, whole=False, dim=1):
    """Advantages worked another way."""

    def answer(rewards, scorable=None):
        mean = rewards.mean() if whole else rewards.mean(dim=dim, keepdim=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            std = rewards.std() if whole else rewards.std(dim=dim, keepdim=True, correction=ddof)
        found = sign * (rewards - mean) / (std + eps)
        same = rewards.amax(dim=1, keepdim=True) == rewards.amin(dim=1, keepdim=True)
        return found.masked_fill(same, 0.0)

    return answer


def naive(rewards, eps):
    return (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + eps)


def surrogate(ratio=torch.exp, pick=torch.min, sign=-1, spread=lambda a: a[:, None], bounds=(0.8, 1.28)):
    """The loss per token, with one part exchanged."""

    def answer(logprobs, old_logprobs, advantages, epsilon=0.2, epsilon_high=0.2):
        r, a = ratio(logprobs - old_logprobs), spread(advantages)
        return sign * pick(r * a, r.clamp(*bounds) * a)

    return answer


def mean_by(function):
    def answer(per_token, mask, how):
        return function(per_token.masked_fill(mask == 0, 0.0), mask.float(), how)

    return answer


def slope(f, x, h):
    return (f(x + h) - f(x - h)) / (2 * h)


RIGHT = {
    "advantages": with_std(),
    "policy_loss": surrogate(),
    "aggregate": lambda per_token, mask, how: aggregate(per_token, mask, how),
    "slope": slope,
}
WRONG = {
    "advantages": {
        "group_naive": ADVANTAGES["group_naive"],
        "std of the batch": ADVANTAGES["batch"],
        "no division": ADVANTAGES["none"],
        "biased std": with_std(ddof=0),
        "sign flipped": with_std(sign=-1),
        "mean and std of everything": with_std(whole=True),
        "over the prompts": with_std(dim=0),
        "the rewards": lambda rewards, scorable=None: rewards,
        "equal rewards not looked for": lambda rewards, scorable=None: naive(rewards, 1e-6),
    },
    "policy_loss": {
        "sign flipped": surrogate(sign=1),
        "no exp": surrogate(ratio=lambda x: 1 + x),
        "log-ratio for ratio": surrogate(ratio=lambda x: x),
        "upside down": surrogate(ratio=lambda x: (-x).exp()),
        "max for min": surrogate(pick=torch.max),
        "not clipped": surrogate(pick=lambda a, b: a),
        "clipped only": surrogate(pick=lambda a, b: b),
        "epsilon_high forgotten": surrogate(bounds=(0.8, 1.2)),
        "epsilon_high on both sides": surrogate(bounds=(0.72, 1.28)),
        "an advantage a column": surrogate(spread=lambda a: a[None, :]),
        "absolute advantage": surrogate(spread=lambda a: a.abs()[:, None]),
        "ratio without gradient": surrogate(ratio=lambda x: x.exp().detach() * (1 + 0 * x)),
        "the mean": lambda **given: policy_loss(**given).mean(),
    },
    "aggregate": {
        "mask ignored": lambda per_token, mask, how: per_token.mean(),
        "mask multiplied": lambda per_token, mask, how: (per_token * token_weights(mask, how)).sum(),
        "mean over padding": mean_by(lambda values, mask, how: values.mean()),
        "token for sequence": mean_by(lambda v, m, how: aggregate(v, m, "token" if how == "sequence" else how)),
        "sequence for token": mean_by(lambda v, m, how: aggregate(v, m, "sequence" if how == "token" else how)),
        "token for constant": mean_by(lambda v, m, how: aggregate(v, m, "token" if how == "constant" else how)),
        "sum": mean_by(lambda v, m, how: v.sum()),
        "sum of sequence means": mean_by(lambda v, m, how: aggregate(v, m, how) * (len(m) if how == "sequence" else 1)),
        "completions forgotten": mean_by(lambda v, m, how: aggregate(v, m, how) * (len(m) if how == "constant" else 1)),
    },
    "slope": {
        "forwards": lambda f, x, h: (f(x + h) - f(x)) / h,
        "backwards": lambda f, x, h: (f(x) - f(x - h)) / h,
        "2 forgotten": lambda f, x, h: (f(x + h) - f(x - h)) / h,
        "h forgotten": lambda f, x, h: (f(x + h) - f(x - h)) / 2,
        "rise only": lambda f, x, h: f(x + h) - f(x - h),
        "a step of its own": lambda f, x, h: slope(f, x, 1e-4),
        "sign flipped": lambda f, x, h: -slope(f, x, h),
    },
}


def in_two_steps(rewards, scorable=None):
    if rewards.shape[1] < 2:
        return rewards * 0
    variance, mean = torch.var_mean(rewards, dim=1, keepdim=True)
    spread = rewards.max(dim=1, keepdim=True).values - rewards.min(dim=1, keepdim=True).values
    return torch.where(spread > 0, (rewards - mean) / (variance.sqrt() + 1e-8), 0.0)


def larger_loss(logprobs, old_logprobs, advantages, epsilon=0.2, epsilon_high=0.2):
    ratio = logprobs.exp() / old_logprobs.exp()
    losses = [-advantages.unsqueeze(1) * r for r in (ratio, ratio.clamp(1 - epsilon, 1 + epsilon_high))]
    return torch.stack(losses).amax(dim=0)


def by_rows(per_token, mask, how):
    if how == "sequence":
        return torch.stack([row[kept.bool()].mean() for row, kept in zip(per_token, mask, strict=True)]).mean()
    kept = per_token[mask == 1]
    return kept.mean() if how == "token" else kept.sum() / (mask.shape[0] * mask.shape[1])


ANOTHER_WAY = {"advantages": in_two_steps, "policy_loss": larger_loss, "aggregate": by_rows}


@pytest.mark.parametrize("name", ANOTHER_WAY)
def test_another_way_is_right_too(name):
    for seed in SEEDS:
        assert checking.all_right(findings(name, seed, **{name: ANOTHER_WAY[name]}))


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_right_passes_on_every_seed(name, seed):
    found = findings(name, seed, **{name: RIGHT[name]})
    assert [finding for finding in found if not finding.right] == []
    assert found


@pytest.mark.parametrize(
    ("name", "wrong"), [pytest.param(name, w, id=f"{name}-{w}") for name, answers in WRONG.items() for w in answers]
)
def test_a_usual_mistake_is_found_and_explained(name, wrong):
    for seed in SEEDS:
        found = [finding for finding in findings(name, seed, **{name: WRONG[name][wrong]}) if not finding.right]
        assert found and all(finding.why for finding in found)
        assert any("Error" not in finding.got for finding in found)  # wrong, and not only broken


def test_the_numbers_by_hand_are_those_of_the_formulas():
    approx = partial(pytest.approx, rel=1e-3)
    right, *wrong = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))[0].tolist()
    assert (right, wrong) == (approx(cases.HAND["right_one"]), [approx(cases.HAND["wrong_one"])] * 3)
    loss = policy_loss(torch.full((2, 1), -1.0), torch.full((2, 1), -1.5), torch.tensor([right, wrong[0]]))
    assert loss[:, 0].tolist() == approx([cases.HAND["loss_right"], cases.HAND["loss_wrong"]])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("right_one", 1.732),  # std over G
        ("wrong_one", 0.5),
        ("ratio", 0.5),  # no exp
        ("loss_right", -2.474),  # not clipped
        ("loss_right", 1.8),
        ("loss_wrong", 0.6),  # clipped where the minimum is not
        ("loss_wrong", "0.824"),
    ],
)
def test_a_number_that_is_wrong_by_hand_is_found_alone(name, value):
    assert checking.all_right(findings("by_hand", 0, **cases.HAND))
    found = findings("by_hand", 0, **{**cases.HAND, name: value})
    assert [bool(finding.why) for finding in found if not finding.right] == [True]


def test_a_prediction_counts_when_it_is_made():
    assert checking.all_right(findings("flipped", answer="a"))
    assert not checking.all_right(findings("flipped", answer="the loss"))


def test_the_page_holds_what_a_lab_must_hold():
    assert 4 <= len(LAB.exercises) <= 6
    assert len(LAB.questions) == 3
    assert sum(each.minutes for each in LAB.exercises.values()) < LAB.minutes
