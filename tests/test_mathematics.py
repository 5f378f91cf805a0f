"""The formulas, against numbers worked by hand and against the known ways to get them wrong.

Every right formula and every mutant of it is held to the same hand-worked numbers: the right one must give them, and
each mutant must miss them somewhere.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

from grpo_lab.algorithm import kl
from grpo_lab.algorithm.losses import aggregate, entropies, policy_loss
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.advantages import group_advantages
from grpo_lab.core.batch import Batch
from grpo_lab.core.logprobs import completion_logprobs
from grpo_lab.core.loss import clipped_surrogate, log_ratio_to_old, token_weights, weighted_sum
from grpo_lab.training import large_vocabulary
from grpo_lab.training import wrong_formulas as formulas

INF, NAN = math.inf, math.nan
LN = math.log


def close(found: Any, expected: Any, tolerance: float = 1e-6) -> bool:
    found = torch.as_tensor(found, dtype=torch.float64)
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return found.shape == expected.shape and torch.allclose(found, expected, tolerance, tolerance, equal_nan=True)


class Case(NamedTuple):
    """Inputs of a formula, and the result worked by hand."""

    args: tuple[Any, ...]
    expected: Any
    tolerance: float = 1e-6


def judge(function: Callable[..., Any], cases: list[Case]) -> list[bool]:
    return [close(function(*case.args), case.expected, case.tolerance) for case in cases]


# Advantages ----------------------------------------------------------------------------------------------------------

ROOT_HALF = math.sqrt(0.5)
ADVANTAGES = [
    # mean 1/4, deviations 3/4 and 3 x -1/4; sum of squares 9/16 + 3/16 = 3/4; / 3 = 1/4; std 1/2
    Case((tensor([[1.0, 0.0, 0.0, 0.0]]), "group", 0.0), [[1.5, -0.5, -0.5, -0.5]]),
    # mean 3, deviations -2 0 2; sum of squares 8; / 2 = 4; std 2. In the second row everything is a tenth.
    Case((tensor([[1.0, 3.0, 5.0], [0.1, 0.3, 0.5]]), "group", 0.0), [[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]),
    # std 2 + eps 2 = 4: eps is added outside the root
    Case((tensor([[1.0, 3.0, 5.0]]), "group", 2.0), [[-0.5, 0.0, 0.5]]),
    # all rewards 1 3 5 7: mean 4, squares 9 1 1 9 = 20, / 3; std sqrt(20/3); centred in each group: -1 1 -1 1;
    # 1 / sqrt(20/3) = sqrt(0.15)
    Case((tensor([[1.0, 3.0], [5.0, 7.0]]), "batch", 0.0), [[-math.sqrt(0.15), math.sqrt(0.15)]] * 2),
    # two groups of different means and spreads: neither is that of the batch
    Case((tensor([[1.0, 3.0, 5.0], [10.0, 20.0, 30.0]]), "group", 0.0), [[-1.0, 0.0, 1.0]] * 2),
    # no division, and so no eps
    Case((tensor([[1.0, 3.0]]), "none", 0.0), [[-1.0, 1.0]]),
    Case((tensor([[1.0, 3.0]]), "none", 1.0), [[-1.0, 1.0]]),
    # 0.1 has no exact mean in fp32; equal rewards must still give zeros
    Case((tensor([[0.1, 0.1, 0.1]]), "group", 1e-8), [[0.0, 0.0, 0.0]]),
    # a group of one: its std is NaN or 0, its advantage 0
    Case((tensor([[5.0], [-2.0]]), "group", 1e-6), [[0.0], [0.0]]),
    # the third is not scorable: mean of 0 and 1 is 1/2, std sqrt(1/4 + 1/4) = sqrt(1/2); it gets 0
    Case(
        (tensor([[0.0, 1.0, 9.0]]), "group", 0.0, tensor([[True, True, False]])),
        [[-ROOT_HALF, ROOT_HALF, 0.0]],
    ),
]


def spread(values: list[float], eps: float, wrong: str) -> float:
    """std + eps of some rewards, unbiased."""
    freedom = len(values) - (0 if wrong == "biased std" else 1)
    if freedom < 1:
        return NAN if wrong == "std of one" else 1.0
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / freedom
    return math.sqrt(variance + eps) if wrong == "eps inside the root" else math.sqrt(variance) + eps


def slow_advantages(
    rewards: Tensor, scale: str = "group", eps: float = 1e-6, scorable: Tensor | None = None, wrong: str = ""
) -> Tensor:
    """The advantages again, in plain Python, with one thing `wrong`, or nothing."""
    judged = torch.ones_like(rewards, dtype=torch.bool) if scorable is None or wrong == "unscorable kept" else scorable
    counted = torch.ones_like(judged) if wrong == "unscorable is 0 in the mean" else judged
    rewards = rewards.masked_fill(~judged, 0.0)
    everything = rewards[counted].tolist()
    scale = {"std of the batch": "batch", "std of the group": "group", "mean only": "none"}.get(wrong, scale)
    rows = []
    for values, there, keep in zip(rewards.tolist(), counted, judged.tolist(), strict=True):
        group = [value for value, count in zip(values, there, strict=True) if count]
        over = everything if wrong == "mean of the batch" else group
        mean = 0.0 if wrong == "no mean" else sum(over) / max(1, len(over))
        none = 1 + eps if wrong == "eps without a std" else 1.0
        divisor = none if scale == "none" else spread(everything if scale == "batch" else group, eps, wrong)
        sign = -1 if wrong == "sign flipped" else 1
        rows.append([sign * (value - mean) / divisor if k else 0.0 for value, k in zip(values, keep, strict=True)])
    return tensor(rows)


ADVANTAGE_MUTANTS: dict[str, Callable[..., Tensor]] = {
    wrong: partial(slow_advantages, wrong=wrong)
    for wrong in (
        "biased std",
        "mean only",
        "no mean",
        "std of the batch",
        "std of the group",
        "mean of the batch",
        "eps inside the root",
        "eps without a std",
        "sign flipped",
        "std of one",
        "unscorable kept",
        "unscorable is 0 in the mean",
    )
}


# The surrogate -------------------------------------------------------------------------------------------------------


def row(*values: float) -> Tensor:
    return tensor([values])


SURROGATE = [
    # r = 1: -A, whatever its sign
    Case((row(0.0), tensor([2.0])), [[-2.0]]),
    Case((row(0.0), tensor([-2.0])), [[2.0]]),
    # A > 0: -min(r A, min(r, 1.2) A); r = 2 is clipped, r = 1.1 and r = 0.5 are not
    Case((row(LN(2), LN(1.1), LN(0.5)), tensor([1.0])), [[-1.2, -1.1, -0.5]]),
    # A < 0: -min(-r, -max(r, 0.8)) = max(r, 0.8): r = 2 counts in full, r = 0.5 is clipped
    Case((row(LN(2), LN(1.1), LN(0.5)), tensor([-1.0])), [[2.0, 1.1, 0.8]]),
    # A = -3, r = 2: 6
    Case((row(LN(2)), tensor([-3.0])), [[6.0]]),
    # epsilon_high 0.5 moves the upper bound to 1.5 and leaves the lower at 0.8
    Case((row(LN(2), LN(0.5)), tensor([1.0]), 0.2, 0.5), [[-1.5, -0.5]]),
    Case((row(LN(2), LN(0.5)), tensor([-1.0]), 0.2, 0.5), [[2.0, 0.8]]),
    # epsilon 0.1: bounds 0.9 and 1.1
    Case((row(LN(2)), tensor([1.0]), 0.1), [[-1.1]]),
    Case((row(LN(0.5)), tensor([-1.0]), 0.1), [[0.9]]),
    # delta 3: with A = -2, r = 9 counts as 3 (6), r = 2 as itself (4); with A > 0 it changes nothing
    Case((row(LN(9), LN(2), LN(0.5)), tensor([-2.0]), 0.2, None, 3.0), [[6.0, 4.0, 1.6]]),
    Case((row(LN(9), LN(0.5)), tensor([1.0]), 0.2, None, 3.0), [[-1.2, -0.5]]),
    # one advantage a row
    Case((tensor([[0.0, 0.0], [0.0, 0.0]]), tensor([1.0, -4.0])), [[-1.0, -1.0], [4.0, 4.0]]),
]


def slow_objective(x: float, a: float, epsilon: float, high: float, delta: float | None, wrong: str) -> float:
    """min(r A, clip(r) A), and max(that, delta A) for A < 0, of one token."""
    r = {"upside down": math.exp(-x), "without exp": 1 + x}.get(wrong, math.exp(x))
    a = abs(a) if wrong == "absolute advantage" else a
    clipped = min(max(r, 1 - epsilon), 1 + high)
    if wrong == "log-ratio clipped":
        clipped = math.exp(min(max(x, -epsilon), high))
    objectives = {"not clipped": r * a, "clipped only": clipped * a, "max for min": max(r * a, clipped * a)}
    objective = objectives.get(wrong, min(r * a, clipped * a))
    if delta is None or wrong == "delta forgotten" or (a >= 0 and wrong != "delta on either sign"):
        return objective
    return max(objective, delta * a)


def slow_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    wrong: str = "",
) -> Tensor:
    """The surrogate again, in plain Python, with one thing `wrong`, or nothing."""
    high = epsilon if epsilon_high is None or wrong == "epsilon_high forgotten" else epsilon_high
    epsilon = high if wrong == "epsilon_high on both sides" else epsilon
    sign = 1 if wrong == "sign flipped" else -1
    pairs = zip(log_ratio.tolist(), advantages.tolist(), strict=True)
    return tensor([[sign * slow_objective(x, a, epsilon, high, delta, wrong) for x in row] for row, a in pairs])


SURROGATE_MUTANTS: dict[str, Callable[..., Tensor]] = {
    wrong: partial(slow_surrogate, wrong=wrong)
    for wrong in (
        "sign flipped",
        "max for min",
        "clipped only",
        "not clipped",
        "log-ratio clipped",
        "upside down",
        "without exp",
        "absolute advantage",
        "epsilon_high forgotten",
        "epsilon_high on both sides",
        "delta forgotten",
        "delta on either sign",
    )
}

# Aggregation ---------------------------------------------------------------------------------------------------------

VALUES = tensor([[1.0, 3.0, 5.0], [7.0, NAN, INF]])
MASK = tensor([[1, 1, 1], [1, 0, 0]])
AGGREGATE = [
    # 4 trained tokens: (1 + 3 + 5 + 7) / 4
    Case((VALUES, MASK, "token"), 4.0),
    # means 3 and 7, mean 5
    Case((VALUES, MASK, "sequence"), 5.0),
    # 16 / (2 completions x width 3)
    Case((VALUES, MASK, "constant"), 16 / 6),
    # 16 / (2 completions x length 8), which the other two have no use for
    Case((VALUES, MASK, "constant", 8), 1.0),
    Case((VALUES, MASK, "sequence", 8), 5.0),
    Case((VALUES, MASK, "token", 8), 4.0),
    # the second completion has no token and counts nowhere
    Case((VALUES, tensor([[1, 1, 0], [0, 0, 0]]), "token"), 2.0),
    Case((VALUES, tensor([[1, 1, 0], [0, 0, 0]]), "sequence"), 2.0),
    Case((VALUES, tensor([[1, 1, 0], [0, 0, 0]]), "constant"), 4 / 3),
    # sums 9 and 7, mean 8; of one completion with tokens its sum
    Case((VALUES, MASK, "sum"), 8.0),
    Case((VALUES, tensor([[1, 1, 0], [0, 0, 0]]), "sum", 8), 4.0),
    # no token at all
    Case((VALUES, torch.zeros(2, 3), "token"), 0.0),
    Case((VALUES, torch.zeros(2, 3), "sequence"), 0.0),
    Case((VALUES, MASK.bool(), "token"), 4.0),
]
AGGREGATE_MUTANTS: dict[str, Callable[..., Tensor]] = {
    "sequence for token": lambda v, m, how, *n: aggregate(v, m, "sequence" if how == "token" else how, *n),
    "token for sequence": lambda v, m, how, *n: aggregate(v, m, "token" if how == "sequence" else how, *n),
    "sequence for sum": lambda v, m, how, *n: aggregate(v, m, "sequence" if how == "sum" else how, *n),
    "constant for sum": lambda v, m, how, *n: aggregate(v, m, "constant" if how == "sum" else how, *n),
    "token for constant": lambda v, m, how, *n: aggregate(v, m, "token" if how == "constant" else how, *n),
    "0 times NaN": lambda v, m, how, *n: (v * token_weights(m, how, *n)).sum(),
    "mean over padding too": lambda v, m, how, *n: v.masked_fill(m == 0, 0.0).mean(),
    "sum": lambda v, m, how, *n: v.masked_fill(m == 0, 0.0).sum(),
    "empty rows counted": lambda v, m, how, *n: aggregate(v, m, how, *n) * (m.sum(1) > 0).sum() / len(m),
    "width for length": lambda v, m, how, *n: aggregate(v, m, how),
    "length everywhere": lambda v, m, how, *n: aggregate(v, m, "constant" if n else how, *n),
}

# KL ------------------------------------------------------------------------------------------------------------------

# exp(ln 2) - 1 - ln 2 = 1 - ln 2; exp(-ln 2) - 1 + ln 2 = ln 2 - 1/2
# At 1e-4: d^2/2 + d^3/6 = 5e-9 + 1.7e-13, far below what exp(d) in fp32 resolves near 1 (1.2e-7)
DELTA = tensor([[0.0, LN(2), -LN(2), 1e-4, 20.0]])
K3 = [Case((DELTA,), [[0.0, 1 - LN(2), LN(2) - 0.5, 5.00017e-9, math.expm1(20) - 20]], 1e-12)]
K3_RELATIVE = 1e-3
KL_CASES = {
    "k1": [Case((DELTA,), [[0.0, -LN(2), LN(2), -1e-4, -20.0]])],
    "k2": [Case((DELTA,), [[0.0, LN(2) ** 2 / 2, LN(2) ** 2 / 2, 5e-9, 200.0]])],
    "hinge": [Case((DELTA,), [[0.0, LN(2), 0.0, 1e-4, 10.0]])],
}
KL_MUTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "k3_exp": formulas.k3_exp,
    "sign flipped": lambda d: kl.k3(-d),
    "value flipped": lambda d: -kl.k3(d),
    "without - delta": torch.expm1,
    "+ delta": lambda d: torch.expm1(d) + d,
    "without - 1": lambda d: d.exp() - d,
    "k1": kl.k1,
    "k2": kl.k2,
    "hinge": kl.hinge,
    "absolute": torch.abs,
    "clamped after exp": lambda d: (d.exp() - 1).clamp(max=1e3) - d,
}

# Log-probabilities ---------------------------------------------------------------------------------------------------

# softmax of (ln 1, ln 2, ln 5) = 1/8 2/8 5/8; at temperature 1/2 the odds are squared: 1/30 4/30 25/30
LOGITS = tensor([[[0.0, LN(2), LN(5)], [LN(5), LN(2), 0.0]]])
TOKENS = tensor([[1, 1]])
FIRST = tensor([[0, 0]])
LOGPROBS = [
    Case((LOGITS, TOKENS), [[LN(2 / 8), LN(2 / 8)]]),
    Case((LOGITS, FIRST), [[LN(1 / 8), LN(5 / 8)]]),
    Case((LOGITS, FIRST, 0.5), [[LN(1 / 30), LN(25 / 30)]]),
    # a logit 1000 higher everywhere changes nothing
    Case((LOGITS + 1000, FIRST), [[LN(1 / 8), LN(5 / 8)]], 1e-4),
    # a filtered token has probability 0
    Case((tensor([[[0.0, -INF]]]), tensor([[0]])), [[0.0]]),
    Case((tensor([[[0.0, -INF]]]), tensor([[1]])), [[-INF]]),
]


def gathered(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(-1, tokens[..., None])[..., 0]


LOGPROB_MUTANTS: dict[str, Callable[..., Tensor]] = {
    "temperature forgotten": lambda x, t, temperature=1.0: completion_logprobs(x, t),
    "temperature after softmax": lambda x, t, temperature=1.0: completion_logprobs(x, t) / temperature,
    "temperature multiplied": lambda x, t, temperature=1.0: completion_logprobs(x * temperature, t),
    "log of sum of exp, unshifted": lambda x, t, temperature=1.0: gathered(
        x / temperature - (x / temperature).exp().sum(-1, keepdim=True).log(), t
    ),
    "not normalised": lambda x, t, temperature=1.0: gathered(x / temperature, t),
    "no log": lambda x, t, temperature=1.0: gathered((x / temperature).softmax(-1), t),
    "softmax over positions": lambda x, t, temperature=1.0: gathered((x / temperature).log_softmax(1), t),
    "the next token": lambda x, t, temperature=1.0: completion_logprobs(x, (t + 1) % x.shape[-1], temperature),
}

FORMULAS: dict[str, tuple[Callable[..., Any], list[Case], dict[str, Callable[..., Any]]]] = {
    "group_advantages": (group_advantages, ADVANTAGES, ADVANTAGE_MUTANTS),
    "clipped_surrogate": (clipped_surrogate, SURROGATE, SURROGATE_MUTANTS),
    # With nothing wrong they are right: so each mutant fails for its own error and no other.
    "slow_advantages": (slow_advantages, ADVANTAGES, {}),
    "slow_surrogate": (slow_surrogate, SURROGATE, {}),
    "aggregate": (aggregate, AGGREGATE, AGGREGATE_MUTANTS),
    "completion_logprobs": (completion_logprobs, LOGPROBS, LOGPROB_MUTANTS),
    "k1": (kl.k1, KL_CASES["k1"], {}),
    "k2": (kl.k2, KL_CASES["k2"], {}),
    "hinge": (kl.hinge, KL_CASES["hinge"], {}),
}


@pytest.mark.parametrize(
    ("function", "case"),
    [
        pytest.param(function, case, id=f"{name}-{number}")
        for name, (function, cases, _) in FORMULAS.items()
        for number, case in enumerate(cases)
    ],
)
def test_a_formula_gives_what_was_worked_by_hand(function, case):
    found = function(*case.args)
    assert judge(function, [case]) == [True], f"{found} is not {case.expected}"


@pytest.mark.parametrize(
    ("mutant", "cases"),
    [
        pytest.param(mutant, cases, id=f"{name}-{wrong}")
        for name, (_, cases, mutants) in FORMULAS.items()
        for wrong, mutant in mutants.items()
    ],
)
def test_a_wrong_formula_is_told_apart(mutant, cases):
    assert not all(judge(mutant, cases))


# More of the advantages ----------------------------------------------------------------------------------------------


def test_groups_of_equal_rewards_get_exact_zeros():
    values = torch.linspace(-3, 3, 41)[:, None].expand(-1, 7)
    assert bool((values - values.mean(dim=1, keepdim=True)).any())  # rounding alone would leave something to divide
    for scale in ("group", "batch", "none"):
        assert not group_advantages(values.contiguous(), scale, 1e-8).any()


def test_without_a_scale_nothing_divides():
    """To the last bit, with the epsilon of the trainer too."""
    advantages = group_advantages(tensor([[1000.0, 0.0], [0.25, 0.75]]), "none")
    assert torch.equal(advantages, tensor([[500.0, -500.0], [-0.25, 0.25]]))


def test_rewards_that_cannot_be_judged_may_hold_anything():
    scorable = tensor([[True, True, False], [False, False, False], [True, False, False]])
    rewards = tensor([[0.0, 1.0, NAN], [NAN, INF, -INF], [3.0, NAN, NAN]])
    for scale in ("group", "batch", "none"):
        advantages = group_advantages(rewards, scale, scorable=scorable)
        assert bool(advantages.isfinite().all())
        assert not advantages[~scorable].any()
        assert advantages[0, 0] == -advantages[0, 1] != 0
        assert not advantages[2].any()  # one that is left has nothing to be compared with


def test_the_batch_scale_counts_only_what_was_judged():
    # judged: 0 1 3; mean 4/3; squares 16/9 + 1/9 + 25/9 = 42/9; / 2 = 7/3. Centred in its group: -1/2, 1/2
    rewards, scorable = tensor([[0.0, 1.0], [3.0, 99.0]]), tensor([[True, True], [True, False]])
    half = 0.5 / math.sqrt(7 / 3)
    assert close(group_advantages(rewards, "batch", 0.0, scorable), [[-half, half], [0.0, 0.0]])


def test_a_nan_reward_spoils_its_own_group_only():
    advantages = group_advantages(tensor([[NAN, 1.0], [0.0, 1.0]]))
    assert bool(advantages[0].isnan().all())
    assert bool(advantages[1].isfinite().all())


finite_rewards = st.lists(st.integers(-8, 8).map(float), min_size=5, max_size=5)


@given(st.lists(finite_rewards, min_size=1, max_size=3), st.permutations(range(5)), st.sampled_from(["group", "batch"]))
def test_permuting_a_group_permutes_its_advantages(rewards, order, scale):
    rewards = tensor(rewards)
    assert close(group_advantages(rewards, scale)[:, order], group_advantages(rewards[:, order], scale), 1e-5)


@given(finite_rewards, st.floats(-100, 100, width=32), st.integers(1, 64))
def test_advantages_do_not_depend_on_the_zero_and_unit_of_rewards(rewards, shift, unit):
    group = tensor([rewards])
    assert close(group_advantages(group * unit + shift, eps=0.0), group_advantages(group, eps=0.0), 1e-3)


@given(finite_rewards)
def test_an_advantage_is_at_most_g_minus_1_over_root_g(rewards):
    assert float(group_advantages(tensor([rewards])).abs().max()) <= 4 / math.sqrt(5) + 1e-5


# More of the loss ----------------------------------------------------------------------------------------------------


def test_the_policy_loss_compares_with_the_policy_that_sampled():
    # ratio e^(-1 + 1.5) = 1.6487 -> clipped at 1.2, times A = 2
    assert close(policy_loss(row(-1.0), row(-1.5), tensor([2.0])), [[-2.4]])
    assert close(policy_loss(row(-1.5), row(-1.0), tensor([2.0])), [[-2 * math.exp(-0.5)]])
    assert close(policy_loss(row(-1.0), row(-1.5), tensor([-2.0]), 0.2, 0.9, 1.5), [[3.0]])


def test_the_ratio_against_the_reference_is_told_apart():
    zeros = torch.zeros(1, 2)
    batch = Batch(
        prompt_ids=torch.zeros(1, 1, dtype=torch.long),
        prompt_mask=torch.ones(1, 1, dtype=torch.long),
        group=torch.zeros(1, dtype=torch.long),
        completions=zeros.long(),
        completion_mask=zeros == 0,
        sampling_logprobs=zeros,
        entropy=zeros,
        old_logprobs=row(-1.0, -2.0),
        ref_logprobs=row(-4.0, -2.5),
    )
    expected = [[0.5, -1.0]]
    assert close(log_ratio_to_old(row(-0.5, -3.0), batch), expected)
    for name, wrong in formulas.FORMULAS["log_ratio"].items():
        assert not close(wrong(row(-0.5, -3.0), batch), expected), name


def surrogate_gradient(log_ratio: float, advantage: float, **options: Any) -> tuple[float, float]:
    x = tensor([[log_ratio]], requires_grad=True)
    loss = clipped_surrogate(x, tensor([advantage]), **options).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    return loss.item(), gradient.item()


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "options", "gradient"),
    [
        # d(-r A)/d(log r) = -r A where the minimum takes it, 0 where it takes the clipped side
        (0.0, 2.0, {}, -2.0),
        (LN(1.1), 2.0, {}, -2.2),
        (LN(2), 2.0, {}, 0.0),
        (LN(0.5), 2.0, {}, -1.0),
        (LN(2), -2.0, {}, 4.0),
        (LN(0.5), -2.0, {}, 0.0),
        (LN(2), 2.0, {"epsilon_high": 1.5}, -4.0),
        (LN(9), -2.0, {"delta": 3.0}, 0.0),
        (LN(2), -2.0, {"delta": 3.0}, 4.0),
        # FACTS: one token with log-ratio 18.55 is a gradient of 1.138e8
        (18.55, -1.0, {}, 1.138e8),
    ],
)
def test_the_gradient_of_the_surrogate(log_ratio, advantage, options, gradient):
    assert surrogate_gradient(log_ratio, advantage, **options)[1] == pytest.approx(gradient, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize(
    ("advantage", "options", "loss"),
    [(1.0, {}, -1.2), (2.5, {"epsilon_high": 0.28}, -3.2), (1.0, {"delta": 3.0}, -1.2), (-1.0, {"delta": 3.0}, 3.0)],
)
@pytest.mark.parametrize("log_ratio", [88.8, 1e4])
def test_past_88_7_the_loss_stays_finite_and_the_gradient_does_not(log_ratio, advantage, options, loss):
    """0 * inf: for A > 0, and for A < 0 only where delta hides the overflow."""
    found, gradient = surrogate_gradient(log_ratio, advantage, **options)
    assert found == pytest.approx(loss)
    assert math.isnan(gradient)
    assert all(map(math.isfinite, surrogate_gradient(88.7, advantage, **options)))


def test_past_88_7_a_negative_advantage_shows_in_the_loss():
    assert surrogate_gradient(88.8, -1.0) == (INF, INF)
    assert math.isnan(surrogate_gradient(88.8, 0.0)[0])  # even a group without spread: inf * 0


def test_in_fp16_the_ratio_overflows_at_11_09():
    for log_ratio, overflows in ((11.08, False), (11.1, True)):
        x = tensor([[log_ratio]], dtype=torch.float16, requires_grad=True)
        loss = clipped_surrogate(x, tensor([1.0], dtype=torch.float16)).sum()
        (gradient,) = torch.autograd.grad(loss, x)
        assert bool(loss.isfinite())
        assert bool(gradient.isnan().any()) == overflows


@pytest.mark.parametrize("wrong", ["after exp", "by 0", "where"])
def test_what_is_clamped_after_exp_does_not_help(wrong):
    x = tensor([[100.0, 0.0]], requires_grad=True)
    ratio = {
        "after exp": lambda: x.exp().clamp(max=math.exp(5)),
        "by 0": lambda: x.exp().clamp(max=1e30) * tensor([[0.0, 1.0]]),
        "where": lambda: torch.where(x < 5, x.exp(), 1.0),
    }[wrong]()
    assert bool(ratio.isfinite().all())
    (gradient,) = torch.autograd.grad(ratio.sum(), x)
    assert bool(gradient.isnan().any())
    before = x.clamp(-5, 5)
    (gradient,) = torch.autograd.grad(clipped_surrogate(before, tensor([1.0])).sum(), x)
    assert bool(gradient.isfinite().all())


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    st.lists(floats, min_size=1, max_size=6),
    st.floats(-1e3, 1e3, width=32),
    st.floats(0.0625, 1, width=32),
    st.none() | st.floats(1.125, 10, width=32),
)
def test_a_clamped_log_ratio_makes_loss_and_gradient_finite(log_ratio, advantage, epsilon, delta):
    x = tensor([log_ratio], requires_grad=True)
    per_token = clipped_surrogate(x.clamp(-5, 5), tensor([advantage]), epsilon, None, delta)
    loss = per_token.mean() + 0.1 * kl.k3(x.clamp(-5, 5)).mean()
    (gradient,) = torch.autograd.grad(loss, x)
    assert bool(loss.isfinite())
    assert bool(gradient.isfinite().all())
    assert float(per_token.detach().abs().max()) <= 149 * abs(advantage)


@given(st.lists(floats.filter(lambda v: abs(v) < 1e3), min_size=4, max_size=4), st.integers(0, 5), st.booleans())
def test_padding_never_changes_a_loss(values, padding, dead_row):
    """Without a length `constant` divides by the width, and the width is what padding changes; its sum must stay."""
    per_token, mask = tensor(values).view(2, 2), tensor([[1, 1], [1, 0]])
    wider = torch.nn.functional.pad(per_token, (0, padding, 0, int(dead_row)), value=NAN)
    wider_mask = torch.nn.functional.pad(mask, (0, padding, 0, int(dead_row)))
    for how, factor in (("token", 1.0), ("sequence", 1.0), ("constant", (2 + padding) / 2)):
        assert close(aggregate(wider, wider_mask, how) * factor, aggregate(per_token, mask, how), 1e-5)
        of_length = partial(aggregate, how=how, max_completion_length=7)
        assert close(of_length(wider, wider_mask), of_length(per_token, mask), 1e-5)


@pytest.mark.parametrize("how", ["token", "sequence", "constant", "sum"])
def test_padding_gets_no_gradient(how):
    values = VALUES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(aggregate(values, MASK, how), values)
    assert torch.equal(gradient, token_weights(MASK, how))
    assert not gradient[MASK == 0].any()


@pytest.mark.parametrize("how", ["token", "sequence", "constant", "sum"])
def test_micro_batches_add_up_to_the_batch(how):
    mask = tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]])
    values = torch.arange(12.0).view(4, 3)
    weights = token_weights(mask, how)
    parts = sum(weighted_sum(values[i : i + 1], weights[i : i + 1]) for i in range(4))
    assert close(parts, aggregate(values, mask, how))


def test_weights_of_token_and_sequence_sum_to_1():
    mask = tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    assert close(token_weights(mask, "token"), [[0.25] * 3, [0.25, 0, 0], [0, 0, 0]])
    assert close(token_weights(mask, "sequence"), [[1 / 6] * 3, [0.5, 0, 0], [0, 0, 0]])
    assert close(token_weights(mask, "constant"), [[1 / 6] * 3, [1 / 6, 0, 0], [0, 0, 0]])


# More of the KL ------------------------------------------------------------------------------------------------------


def relative_k3(function: Callable[[Tensor], Tensor]) -> bool:
    """Whether k3 holds to a thousandth of each value, so that rounding near 0 shows."""
    return all(
        torch.allclose(function(*case.args), tensor(case.expected), rtol=K3_RELATIVE, atol=case.tolerance)
        for case in K3
    )


def test_k3_gives_what_was_worked_by_hand_also_near_0():
    assert relative_k3(kl.k3)


@pytest.mark.parametrize("wrong", KL_MUTANTS)
def test_a_wrong_k3_is_told_apart(wrong):
    assert not relative_k3(KL_MUTANTS[wrong])


def test_every_named_wrong_formula_is_among_the_mutants():
    assert set(formulas.FORMULAS["kl_estimator"]) <= set(KL_MUTANTS)


def test_the_estimators_take_reference_minus_policy():
    for name, expected in {"k1": -0.5, "k2": 0.125, "k3": math.expm1(0.5) - 0.5, "hinge": 0.5}.items():
        assert close(kl.estimate(row(-1.5), row(-1.0), name), [[expected]])
    assert close(kl.estimate(row(-1.0), row(-1.5)), [[math.expm1(-0.5) + 0.5]])  # k3 unless told otherwise


@given(st.lists(floats.filter(lambda v: v < 88), min_size=1, max_size=8))
def test_k3_and_k2_are_never_negative(delta):
    assert float(kl.k3(tensor(delta)).min()) >= 0
    assert float(kl.k2(tensor(delta)).min()) >= 0


def test_k3_written_with_exp_goes_negative_by_rounding():
    near_zero = torch.linspace(-1e-3, 1e-3, 1001)
    assert float(formulas.k3_exp(near_zero).min()) < 0
    assert float(kl.k3(near_zero).min()) >= 0


def test_k3_overflows_past_88_7():
    assert kl.k3(tensor([88.8])).item() == INF
    assert math.isfinite(kl.k3(tensor([88.7])).item())


THETA = tensor([0.3, -1.2, 2.0, 0.0, -0.7, 1.1, -2.5], dtype=torch.float64)
REFERENCE = tensor([1.0, 0.2, -0.5, 0.0, 1.5, -1.0, -0.3], dtype=torch.float64).log_softmax(0)


def gradient_at_theta(function: Callable[[Tensor], Tensor]) -> Tensor:
    theta = THETA.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(theta.log_softmax(0)), theta)
    return gradient


def expected(estimator: str, logp: Tensor) -> Tensor:
    """The mean of the estimate over tokens drawn from the policy, as in a loss: the draw itself has no gradient."""
    return (logp.detach().exp() * kl.ESTIMATORS[estimator](REFERENCE - logp)).sum()


def forward_kl(logp: Tensor) -> Tensor:
    return (logp.exp() * (logp - REFERENCE)).sum()


def reverse_kl(logp: Tensor) -> Tensor:
    return (REFERENCE.exp() * (REFERENCE - logp)).sum()


def total_variation(logp: Tensor) -> Tensor:
    return (logp.exp() - REFERENCE.exp()).abs().sum() / 2


def test_k1_and_k3_are_unbiased_and_the_others_are_not():
    logp = THETA.log_softmax(0)
    true = float(forward_kl(logp))
    assert float(expected("k1", logp)) == pytest.approx(true)
    assert float(expected("k3", logp)) == pytest.approx(true)
    assert float(expected("k2", logp)) != pytest.approx(true, rel=0.05)
    assert float(expected("hinge", logp)) < 0.2 * true  # blind where the policy is the likelier one


def test_in_the_loss_k1_has_no_gradient_at_all():
    gradient = gradient_at_theta(lambda logp: expected("k1", logp))
    assert torch.allclose(gradient, torch.zeros_like(gradient), atol=1e-12)
    assert gradient_at_theta(forward_kl).abs().max() > 0.1


@pytest.mark.parametrize(("estimator", "divergence"), [("k2", forward_kl), ("k3", reverse_kl)])
def test_in_the_loss_k2_and_k3_pull_as_different_divergences_do(estimator, divergence):
    found = gradient_at_theta(lambda logp: expected(estimator, logp))
    torch.testing.assert_close(found, gradient_at_theta(divergence))
    other = reverse_kl if divergence is forward_kl else forward_kl
    assert not torch.allclose(found, gradient_at_theta(other), rtol=0.05)


def test_in_the_loss_the_hinge_pulls_only_at_tokens_the_policy_finds_unlikely():
    """The gradient is that of minus the policy's own probability there: total variation at fixed signs."""
    found = gradient_at_theta(lambda logp: expected("hinge", logp))
    torch.testing.assert_close(found, gradient_at_theta(total_variation))


# More of the log-probabilities ---------------------------------------------------------------------------------------


def random_logits(
    dtype: torch.dtype, rows: int = 3, width: int = 4, vocabulary: int = 11
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(rows, width, vocabulary, generator=generator) * 5).to(dtype)
    tokens = torch.randint(vocabulary, (rows, width), generator=generator)
    return logits, tokens, torch.randn(rows, width, generator=generator)


@pytest.mark.parametrize("chunk", [0, 1, 23, 2**22])  # 0: that of the core
@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_logprobs_and_gradients_are_those_of_log_softmax(monkeypatch, dtype, temperature, chunk):
    monkeypatch.setattr(large_vocabulary, "PIECE", chunk)
    logits, tokens, upstream = random_logits(dtype)
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = (large_vocabulary.completion_logprobs if chunk else completion_logprobs)(mine, tokens, temperature)
    right = gathered(torch.log_softmax(theirs.float() / temperature, dim=-1), tokens)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right)
    (found_gradient,) = torch.autograd.grad(found, mine, upstream)
    (right_gradient,) = torch.autograd.grad(right, theirs, upstream)
    assert found_gradient.dtype == dtype
    assert bool(found_gradient.any())
    torch.testing.assert_close(found_gradient, right_gradient)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [1, 23, 2**22])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_from_states_are_those_of_their_logits(monkeypatch, temperature, chunk, bias):
    monkeypatch.setattr(large_vocabulary, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(3)
    head, seen = torch.nn.Linear(5, 7, bias), []
    states = torch.randn(11, 5, generator=generator, requires_grad=True)
    tokens, upstream = torch.randint(7, (11,), generator=generator), torch.randn(11, generator=generator)
    inputs = [states, *head.parameters()]
    found = large_vocabulary.head_logprobs(
        states, head, tokens, temperature, lambda logits: seen.append(logits.clone())
    )
    right = completion_logprobs(head(states)[None], tokens[None], temperature)[0]
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(torch.cat(seen), head(states).detach())
    of_found, of_right = (torch.autograd.grad(each, inputs, upstream) for each in (found, right))
    assert all(gradient.any() for gradient in of_found)
    torch.testing.assert_close(of_found, of_right)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logprobs_from_states_follow_autocast_as_the_head_does(dtype):
    head, states, tokens = torch.nn.Linear(5, 7), torch.randn(11, 5), torch.arange(11) % 7
    seen = []
    with torch.autocast("cpu", dtype):
        found = large_vocabulary.head_logprobs(states, head, tokens, look=lambda logits: seen.append(logits.clone()))
        logits = head(states)
    found.sum().backward()
    gradient = head.weight.grad
    assert gradient is not None
    assert (seen[0].dtype, found.dtype, gradient.dtype) == (dtype, torch.float32, torch.float32)
    torch.testing.assert_close(seen[0], logits.detach())


def test_a_frozen_head_hands_the_gradient_on():
    head, states = torch.nn.Linear(2, 4).requires_grad_(False), torch.ones(3, 2, requires_grad=True)
    tokens = torch.tensor([0, 1, 2])
    right = completion_logprobs(head(states)[None], tokens[None])
    gradients = [
        torch.autograd.grad(found.sum(), states)
        for found in (large_vocabulary.head_logprobs(states, head, tokens), right)
    ]
    assert gradients[0][0].any()
    torch.testing.assert_close(*gradients)


def test_chunks_change_no_bit(monkeypatch):
    logits, tokens, upstream = random_logits(torch.float32)
    logits.requires_grad_()
    found = completion_logprobs(logits, tokens, 0.9)
    results = [(found, *torch.autograd.grad(found, logits, upstream))]
    for chunk in (11, 10**6):
        monkeypatch.setattr(large_vocabulary, "PIECE", chunk)
        found = large_vocabulary.completion_logprobs(logits, tokens, 0.9)
        results.append((found, *torch.autograd.grad(found, logits, upstream)))
    for of_core, one, other in zip(*results, strict=True):
        assert torch.equal(of_core, one) and torch.equal(one, other)


def test_logprobs_handed_on_get_the_right_gradient_through_the_loss():
    logits, tokens, _ = random_logits(torch.float64)
    logits = logits.float().requires_grad_()
    mask, advantages = tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]), tensor([1.0, -1.0, 0.5])
    old = torch.full(tokens.shape, -2.0)
    gradients = []
    for logp in (completion_logprobs(logits, tokens), gathered(logits.log_softmax(-1), tokens)):
        gradients.append(*torch.autograd.grad(aggregate(policy_loss(logp, old, advantages), mask), logits))
    torch.testing.assert_close(*gradients)
    assert not gradients[0][mask == 0].any()


def test_only_broken_logits_break_a_logprob():
    logits = tensor([[[0.0, NAN], [0.0, 0.0]]])
    found = completion_logprobs(logits, tensor([[0, 0]]))
    assert math.isnan(found[0, 0])
    assert float(found[0, 1]) == pytest.approx(-LN(2))


def test_a_filtered_token_elsewhere_leaves_the_gradient_finite():
    logits = tensor([[[0.0, -INF, 0.0]]], requires_grad=True)
    (gradient,) = torch.autograd.grad(completion_logprobs(logits, tensor([[0]])).sum(), logits)
    assert close(gradient, [[[0.5, 0.0, -0.5]]])


def test_entropies_by_hand():
    # 1/8 2/8 5/8: (ln 8)/8 + (ln 4)/4 + 5/8 ln(8/5)
    by_hand = LN(8) / 8 + LN(4) / 4 + 5 / 8 * LN(8 / 5)
    assert close(entropies(LOGITS), [[by_hand, by_hand]])
    # at temperature 1/2: 1/30 4/30 25/30
    colder = -sum(p * LN(p) for p in (1 / 30, 4 / 30, 25 / 30))
    assert close(entropies(LOGITS, 0.5), [[colder, colder]])
    # filtered tokens leave two equal ones, or a sure one
    assert close(entropies(tensor([[0.0, -INF, 0.0], [-INF, 3.0, -INF]])), [LN(2), 0.0])
    assert math.isnan(entropies(tensor([[0.0, NAN]])).item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_entropies_are_fp32_and_have_a_gradient(dtype):
    logits, _, _ = random_logits(dtype)
    found = entropies(logits.requires_grad_(), 0.8)
    right = torch.distributions.Categorical(logits=logits.float() / 0.8).entropy()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right)
    gradients = [torch.autograd.grad(each.sum(), logits)[0] for each in (found, right)]
    assert gradients[0].any()
    torch.testing.assert_close(*gradients)


def test_the_default_temperature_of_sampling_is_that_of_the_logprobs():
    default = SamplingConfig().temperature
    assert torch.equal(completion_logprobs(LOGITS, TOKENS), completion_logprobs(LOGITS, TOKENS, default))
