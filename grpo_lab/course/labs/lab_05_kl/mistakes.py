"""Known mistakes of lab 5: wrong formulas, each with the reason for an answer that gives its results."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lab.algorithm import kl
from grpo_lab.course.exercises import Mistake

Formula = Callable[[Tensor], Tensor]

# k3 ------------------------------------------------------------------------------------------------------------------

_ROUNDED = (
    "Near 0 only rounding is left here: exp(delta) is stored next to 1 in fp32, in steps of 1.2e-7, before 1 is "
    "subtracted. "
    "torch has one function for both."
)
K3 = (
    Mistake(_ROUNDED, lambda delta: delta.exp() - 1 - delta),
    Mistake(_ROUNDED, lambda delta: delta.exp() - delta - 1),
    Mistake(_ROUNDED, lambda delta: delta.exp() - (1 + delta)),
    Mistake("This is k1, which is -delta.", kl.k1),
    Mistake("This is k2, which is a parabola.", kl.k2),
    Mistake("This is k3 of -delta: reference minus policy is the other way round.", lambda delta: kl.k3(-delta)),
    Mistake("The size is right and the sign is not.", lambda delta: -kl.k3(delta)),
    Mistake("The term - delta is missing.", torch.expm1),
    Mistake("1 is not subtracted here.", lambda delta: delta.exp() - delta),
)

# The expected gradient -----------------------------------------------------------------------------------------------


def _drawn(log_p: Tensor, log_ref: Tensor) -> Tensor:
    return log_p.exp().detach()


def _mean_gradient(
    weights: Callable[[Tensor, Tensor], Tensor] = _drawn,
    delta: Callable[[Tensor, Tensor], Tensor] = lambda log_p, log_ref: log_ref - log_p,
    log_p_of: Formula = lambda theta: theta.log_softmax(0),
    factor: Callable[[Tensor], float] = lambda theta: 1.0,
) -> Callable[[Tensor, Tensor, Formula], Tensor]:
    """The mean gradient (V,) of lab 5 with one of its parts replaced; the defaults give the right one."""

    def function(theta: Tensor, log_ref: Tensor, estimator: Formula) -> Tensor:
        log_p = log_p_of(theta)
        loss = (weights(log_p, log_ref) * estimator(delta(log_p, log_ref))).sum()
        return factor(theta) * torch.autograd.grad(loss, theta, allow_unused=True, materialize_grads=True)[0]

    return function


EXPECTED_GRADIENT = (
    Mistake(
        "The probability that weighs each term has a gradient here. Tokens were drawn before the loss was built: it "
        "is a number.",
        _mean_gradient(weights=lambda log_p, _: log_p.exp()),
    ),
    Mistake(
        "Each token counts with the reference's probability here; tokens are drawn from the policy.",
        _mean_gradient(weights=lambda _, log_ref: log_ref.exp()),
    ),
    Mistake(
        "Every token counts alike here; each is drawn with the policy's probability.",
        _mean_gradient(weights=lambda log_p, _: torch.full_like(log_p, 1 / len(log_p))),
    ),
    Mistake(
        "Each token counts with its log-probability here: exp is missing.",
        _mean_gradient(weights=lambda log_p, _: log_p.detach()),
    ),
    Mistake("delta is policy minus reference here.", _mean_gradient(delta=lambda log_p, log_ref: log_p - log_ref)),
    Mistake(
        "The gradient is 0 for every estimator here: something on its way to theta was detached.",
        _mean_gradient(factor=lambda theta: 0.0),
    ),
    Mistake(
        "The sum is divided by the number of tokens here; the probabilities already add up to 1.",
        _mean_gradient(factor=lambda theta: 1 / len(theta)),
    ),
    Mistake(
        "The logits are taken for log-probabilities here: softmax is missing.", _mean_gradient(log_p_of=torch.clone)
    ),
    Mistake("The size is right and the sign is not.", _mean_gradient(factor=lambda theta: -1.0)),
)

# An estimator that keeps pulling -------------------------------------------------------------------------------------

LIMIT = 5.0
SLOPE = math.expm1(LIMIT)


def _line(slope: float = SLOPE, low: float = -math.inf) -> Formula:
    """k3 up to the limit, and a line with this slope beyond it; below `low` k3 is constant."""

    def function(delta: Tensor) -> Tensor:
        return kl.k3(delta.clamp(low, LIMIT)) + slope * (delta - delta.clamp(max=LIMIT))

    return function


def _where(delta: Tensor) -> Tensor:
    """The right values, and k3 of every delta in the branch that is not used."""
    return torch.where(delta > LIMIT, _line()(delta), kl.k3(delta))


def _line_detached(delta: Tensor) -> Tensor:
    inside = delta.clamp(max=LIMIT)
    return kl.k3(inside) + SLOPE * (delta - inside).detach()


STRAIGHT = (
    Mistake(
        "The slope of the line is e^limit here; that of k3 is smaller, because its term - delta counts too.",
        _line(math.exp(LIMIT)),
    ),
    Mistake("This is k3 beyond the limit too: the line is missing.", kl.k3),
    Mistake("The line is flat here; it goes on with the slope that k3 has at the limit.", _line(0.0)),
    Mistake("The slope of the line is 1 here.", _line(1.0)),
    Mistake("The line falls here: the sign of its slope is the other way round.", _line(-SLOPE)),
    Mistake("The values are right beyond the limit, and the line has no gradient: it was detached.", _line_detached),
    Mistake("k3 is bounded below too here; only above the limit it becomes a line.", _line(low=-LIMIT)),
    Mistake(
        "The gradient is NaN: exp was taken of 100, even if the result is unused, and 0 times inf is NaN. Clamp "
        "before exp.",
        _where,
    ),
)

# An adaptive beta ----------------------------------------------------------------------------------------------------


def _bounded(error: float) -> float:
    return min(0.2, max(-0.2, error))


def _beta(
    bounded: Callable[[float], float] = _bounded,
    gain: float = 0.1,
    error: Callable[[float, float], float] = lambda kl, target: kl / target - 1,
    kept: Callable[[float], bool] = lambda kl: not math.isfinite(kl),
) -> Callable[[float, float, float], float]:
    """The next beta of lab 5 with one of its parts replaced; the defaults give the right one."""

    def function(beta: float, kl: float, target: float) -> float:
        return beta if kept(kl) else beta * (1 + gain * bounded(error(kl, target)))

    return function


def _other_way(error: float) -> float:
    """The same bounds, and another one of them for NaN, with which Python's min and max return their first number."""
    return max(-0.2, min(0.2, error))


NEXT_BETA = (
    *(
        Mistake("NaN is not looked for here, and moves beta.", _beta(each, kept=math.isinf))
        for each in (_bounded, _other_way)
    ),
    *(
        Mistake("Neither NaN nor inf is looked for here, and both move beta.", _beta(each, kept=lambda _: False))
        for each in (_bounded, _other_way)
    ),
    Mistake("An infinite KL is not looked for here, and moves beta.", _beta(kept=math.isnan)),
    Mistake("The error has no bound here.", _beta(lambda error: error)),
    Mistake("The error has no lower bound here.", _beta(lambda error: min(0.2, error))),
    Mistake("The error has no upper bound here.", _beta(lambda error: max(-0.2, error))),
    Mistake("The sign is the other way round: beta rises where the KL is above its target.", _beta(gain=-0.1)),
    Mistake("The factor 0.1 of the error is missing.", _beta(gain=1.0)),
    Mistake(
        "The error is a difference here; it is relative to the target.", _beta(error=lambda kl, target: kl - target)
    ),
)
