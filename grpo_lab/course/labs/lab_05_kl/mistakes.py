"""Known mistakes of lab 5: wrong formulas, each with the reason for an answer that gives its results."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lab.algorithm import kl
from grpo_lab.course.exercises import Mistake

Formula = Callable[[Tensor], Tensor]

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
