"""The checks of lab 5: KL estimators, their gradients and divergences, and an adaptive beta."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course import judges, pages
from grpo_lab.course.compare import other_kind, shown
from grpo_lab.course.exercises import Case, Finding, Function, Values, cases_by
from grpo_lab.course.probes import by_delta, by_estimator
from grpo_lab.course.relations import elementwise, permuted, scaled, shifted
from grpo_lab.errors import Sentence

TEXTS = pages.case_texts(__file__)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 500)


# k3 ------------------------------------------------------------------------------------------------------------------


def _k3(look: str, delta: Tensor) -> Tensor:
    """The expected result of `by_delta`, from the formula: near 0 the multiple of a computed k3 is not exact."""
    if look == "multiple":
        return torch.ones_like(delta)
    return torch.expm1(delta) - delta if look == "value" else torch.expm1(delta)


def _k3_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    usual = torch.randn(2, 4, generator=generator)
    # Below 3e-4 the nearest result of `exp` is 0 or 2.6 times too large, and fp32 holds expm1 to a thousandth.
    small = (1e-4 + 2e-4 * torch.rand(6, generator=generator)) * torch.tensor([1.0, -1.0]).repeat(3)
    far = -20 - 20 * torch.rand(3, generator=generator)
    policy, reference = 1.5 * torch.randn(2, 6, generator=generator)
    both = reference.log_softmax(0) - policy.log_softmax(0)
    rows = [
        ("value", torch.zeros(1, 2), *TEXTS["agree"]),
        ("value", torch.tensor([0.5, -0.5]), *TEXTS["both_sides"]),
        ("value", usual, *TEXTS["usual"]),
        ("value", far, *TEXTS["far"]),
        ("value", both, *TEXTS["both"]),
        ("gradient", both, *TEXTS["gradient"]),
        ("multiple", small, *TEXTS["small"]),
    ]
    return [Case(what, inputs, _k3(**inputs), why) for what, inputs, why in _looks(rows)]


def _looks(rows: Iterable[tuple[str, Tensor, str, str]]) -> list[tuple[str, dict[str, Any], str]]:
    """Rows (look, delta, what, why) as rows of inputs for `by_delta`."""
    return [(what, {"delta": delta, "look": look}, why) for look, delta, what, why in rows]


# The expected gradient -----------------------------------------------------------------------------------------------


def _closed_form(theta: Tensor, log_ref: Tensor, estimator: str) -> Tensor:
    """The gradient by the logits (V,), derived on paper: the sum over tokens of p * weight * (onehot - p)."""
    log_p, log_q = theta.log_softmax(0), log_ref
    p, q = log_p.exp(), log_q.exp()
    if estimator == "k1":
        return torch.zeros_like(p)
    if estimator == "k3":
        return p - q
    weight = log_p - log_q if estimator == "k2" else -((log_q > log_p) & (log_q - log_p < 10)).to(p.dtype)
    return p * (weight - (p * weight).sum())


def _gradient_cases(seed: int) -> Sequence[Case]:
    theta, reference = torch.randn(2, 7, generator=_generator(seed), dtype=torch.float64)
    fixed = {"theta": theta, "log_ref": reference.log_softmax(0)}
    rows = [(name, *TEXTS[f"gradient_{name}"]) for name in PULLS]
    return cases_by(_closed_form, [(what, {**fixed, "estimator": name}, why) for name, what, why in rows])


# Which divergence ----------------------------------------------------------------------------------------------------

PULLS = {"k1": "c", "k2": "a", "k3": "b", "hinge": "d"}


def _judge_pulls(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    for name, right in PULLS.items():
        got = judges.letter(values[name])
        what, why = TEXTS[f"match_{name}"]
        why = other_kind(got, "a text") or why
        yield Finding(got == right, what, shown(got), "the letter of its match", why)


# An estimator that keeps pulling -------------------------------------------------------------------------------------


def _straight_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    draw = torch.rand(4, generator=generator)
    # In fp32 the slope of 147 beyond the limit leaves 1e-5 of rounding here, too much for a gradient near 0.
    inside = torch.cat([-6 - 4 * draw[:1], -3 + 7 * draw[1:]]).double()
    beyond = 6 + 60 * torch.rand(3, generator=generator)
    value = "the value for delta = {}"
    rows = [
        ("value", inside, Sentence(value, shown(inside)), "Up to the limit of 5 it is k3 and nothing else."),
        ("value", beyond, Sentence(value, shown(beyond)), "Beyond 5 it is a line that goes on from k3(5)."),
        ("gradient", inside, "the gradient up to the limit", "Up to the limit the gradient is that of k3."),
        ("gradient", beyond, *TEXTS["beyond"]),
        ("gradient", torch.tensor([100.0, 300.0]), *TEXTS["overflow"]),
    ]
    return cases_by(pages.solved(__file__, "straight").straight, _looks(rows), by_delta)


# An adaptive beta ----------------------------------------------------------------------------------------------------


def _beta_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    beta, target, share = (0.01 + 0.2 * torch.rand(3, generator=generator)).tolist()
    rows = [
        (1.0, "a KL on target", "Nothing to correct: beta stays."),
        (1 + share / 2, "a KL a little above its target", "Too far away: beta rises by a tenth of the relative error."),
        (1 - share / 2, "a KL a little below its target", "Nearer than necessary: beta falls."),
        (50.0, "a KL 50 times its target", "The error is bounded at 0.2."),
        (0.0, "a KL of 0", "The error is bounded on this side too, at -0.2."),
        (math.nan, "a KL that is NaN", "A KL of NaN carries no information about the distance: keep beta."),
        (math.inf, "a KL that is inf", "A KL of inf carries no information about the distance: keep beta."),
    ]
    given = []
    for times, what, why in rows:
        inputs = {"beta": beta, "kl": times * target, "target": target}
        said = Sentence("{}: beta {:.3g}, KL {:.3g}, target {:.3g}", Sentence(what), *inputs.values())
        given.append((said, inputs, why))
    return cases_by(pages.solved(__file__, "next_beta").next_beta, given)


CHECKS = {
    "k3": Function("k3", _k3_cases, by_delta, (elementwise("delta"),)),
    # A constant added to all logits does not change a softmax.
    "expected_gradient": Function(
        "expected_gradient", _gradient_cases, by_estimator, (permuted("theta", "log_ref"), shifted("theta"))
    ),
    "pulls": Values(tuple(PULLS), _judge_pulls),
    "straight": Function("straight", _straight_cases, by_delta, (elementwise("delta"),)),
    "next_beta": Function("next_beta", _beta_cases, relations=(scaled("kl", "target"), scaled("beta", power=1))),
}
