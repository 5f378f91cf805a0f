"""The formulas, against numbers worked by hand, and what holds of them for any numbers."""

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
from grpo_lab.algorithm.losses import aggregate, entropies
from grpo_lab.core.advantages import group_advantages
from grpo_lab.core.logprobs import completion_logprobs
from grpo_lab.core.loss import clipped_surrogate, token_weights
from grpo_lab.training import large_vocabulary
from grpo_lab.training import wrong_formulas as formulas

INF, NAN = math.inf, math.nan
LN = math.log


def close(found: Any, expected: Any, tolerance: float = 1e-6, absolute: float | None = None) -> bool:
    found = torch.as_tensor(found, dtype=torch.float64)
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return found.shape == expected.shape and torch.allclose(
        found, expected, tolerance, tolerance if absolute is None else absolute, equal_nan=True
    )


class Case(NamedTuple):
    """Inputs of a formula, and the result worked by hand."""

    args: tuple[Any, ...]
    expected: Any
    tolerance: float = 1e-6
    absolute: float | None = None
    """The absolute tolerance, where it is another than the relative one."""


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

# KL ------------------------------------------------------------------------------------------------------------------

# exp(ln 2) - 1 - ln 2 = 1 - ln 2; exp(-ln 2) - 1 + ln 2 = ln 2 - 1/2
# At 1e-4: d^2/2 + d^3/6 = 5e-9 + 1.7e-13, far below what exp(d) in fp32 resolves near 1 (1.2e-7)
DELTA = tensor([[0.0, LN(2), -LN(2), 1e-4, 20.0]])
K3 = [Case((DELTA,), [[0.0, 1 - LN(2), LN(2) - 0.5, 5.00017e-9, math.expm1(20) - 20]], 1e-3, 1e-12)]
KL_CASES = {
    "k1": [Case((DELTA,), [[0.0, -LN(2), LN(2), -1e-4, -20.0]])],
    "k2": [Case((DELTA,), [[0.0, LN(2) ** 2 / 2, LN(2) ** 2 / 2, 5e-9, 200.0]])],
    "hinge": [Case((DELTA,), [[0.0, LN(2), 0.0, 1e-4, 10.0]])],
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


FORMULAS: dict[str, tuple[Callable[..., Any], list[Case]]] = {
    "group_advantages": (group_advantages, ADVANTAGES),
    "clipped_surrogate": (clipped_surrogate, SURROGATE),
    "aggregate": (aggregate, AGGREGATE),
    "completion_logprobs": (completion_logprobs, LOGPROBS),
    "k3": (kl.k3, K3),
    "k1": (kl.k1, KL_CASES["k1"]),
    "k2": (kl.k2, KL_CASES["k2"]),
    "hinge": (kl.hinge, KL_CASES["hinge"]),
}


@pytest.mark.parametrize(
    ("function", "case"),
    [
        pytest.param(function, case, id=f"{name}-{number}")
        for name, (function, cases) in FORMULAS.items()
        for number, case in enumerate(cases)
    ],
)
def test_a_formula_gives_what_was_worked_by_hand(function, case):
    found = function(*case.args)
    assert close(found, case.expected, case.tolerance, case.absolute), f"{found} is not {case.expected}"


# More of the advantages ----------------------------------------------------------------------------------------------


def test_groups_of_equal_rewards_get_exact_zeros():
    values = torch.linspace(-3, 3, 41)[:, None].expand(-1, 7)
    assert bool((values - values.mean(dim=1, keepdim=True)).any())  # rounding alone would leave something to divide
    for scale in ("group", "batch", "none"):
        assert not group_advantages(values.contiguous(), scale, 1e-8).any()


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


def test_weights_of_token_and_sequence_sum_to_1():
    mask = tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    assert close(token_weights(mask, "token"), [[0.25] * 3, [0.25, 0, 0], [0, 0, 0]])
    assert close(token_weights(mask, "sequence"), [[1 / 6] * 3, [0.5, 0, 0], [0, 0, 0]])
    assert close(token_weights(mask, "constant"), [[1 / 6] * 3, [1 / 6, 0, 0], [0, 0, 0]])


# More of the KL ------------------------------------------------------------------------------------------------------


def test_k3_written_with_exp_goes_negative_by_rounding():
    near_zero = torch.linspace(-1e-3, 1e-3, 1001)
    assert float(formulas.k3_exp(near_zero).min()) < 0
    assert float(kl.k3(near_zero).min()) >= 0


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


@pytest.mark.parametrize("chunk", [0, 1, 23, 2**22])  # 0: that of the core
@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_logprobs_and_gradients_are_those_of_log_softmax(monkeypatch, dtype, temperature, chunk):
    monkeypatch.setattr(large_vocabulary, "PIECE", chunk)
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(3, 4, 11, generator=generator) * 5).to(dtype)
    tokens, upstream = torch.randint(11, (3, 4), generator=generator), torch.randn(3, 4, generator=generator)
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
