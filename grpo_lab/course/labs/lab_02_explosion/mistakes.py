"""Known mistakes of lab 2: wrong formulas, each with the reason for an answer that gives its results."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lab.algorithm import kl
from grpo_lab.course.exercises import Mistake

Number = Callable[[float, float], float]
EPSILON = 0.2

# The gradient of one token -------------------------------------------------------------------------------------------


def _above(ratio: float, advantage: float) -> bool:
    return advantage > 0 and ratio > 1 + EPSILON


def _below(ratio: float, advantage: float) -> bool:
    return advantage < 0 and ratio < 1 - EPSILON


def _slope(
    flat: Callable[[float, float], bool] = lambda ratio, a: _above(ratio, a) or _below(ratio, a),
    slope: Number = lambda ratio, a: -ratio * a,
) -> Number:
    """The derivative of lab 2, with the flat places or the slope replaced; the defaults give the right one."""

    def function(log_ratio: float, advantage: float) -> float:
        ratio = math.exp(log_ratio)
        return 0.0 if flat(ratio, advantage) else slope(ratio, advantage)

    return function


def _bounded_log_ratio(above: bool, below: bool) -> Number:
    """The derivative where the given ends of the range are compared with the log-ratio."""

    def flat(ratio: float, a: float) -> bool:
        over = a > 0 and math.log(ratio) > EPSILON if above else _above(ratio, a)
        return over or (a < 0 and math.log(ratio) < -EPSILON if below else _below(ratio, a))

    return _slope(flat)


_OF_LOG = "The range is compared with the log-ratio here; it is a range of ratios."
GRADIENT = (
    Mistake(
        "The sign is the other way round: the loss is -r A, and its slope is below 0 for A > 0.",
        _slope(slope=lambda ratio, a: ratio * a),
    ),
    Mistake(
        "Nothing is clipped here: where min picks the clipped branch, the slope is 0.", _slope(lambda ratio, a: False)
    ),
    Mistake(
        "Every ratio outside of the range has a slope of 0 here; min picks the clipped branch on one side alone.",
        _slope(lambda ratio, a: not 1 - EPSILON <= ratio <= 1 + EPSILON),
    ),
    Mistake(
        "The slope is 0 on the other side here: work out for A > 0 and for A < 0 which branch is smaller.",
        _slope(lambda ratio, a: _above(ratio, -a) or _below(ratio, -a)),
    ),
    Mistake("Nothing is clipped below the range here, for A < 0.", _slope(_above)),
    Mistake("Nothing is clipped above the range here, for A > 0.", _slope(_below)),
    Mistake(
        "This is the slope by the ratio, not by the log-ratio: a factor is missing.", _slope(slope=lambda ratio, a: -a)
    ),
    *(Mistake(_OF_LOG, _bounded_log_ratio(*ends)) for ends in ((True, True), (True, False), (False, True))),
)

# The token that caused it --------------------------------------------------------------------------------------------

Pull = Callable[[Tensor, Tensor, float], Tensor]
"""(log-ratios (B, T), advantages (B, 1), beta) -> the size (B, T) of a gradient."""


def _of_ratio(log_ratio: Tensor, a: Tensor, beta: float) -> Tensor:
    ratio = log_ratio.exp()
    return (ratio * a).abs().masked_fill(_clipped(ratio, a), 0.0)


def _clipped(ratio: Tensor, a: Tensor) -> Tensor:
    return ((a > 0) & (ratio > 1 + EPSILON)) | ((a < 0) & (ratio < 1 - EPSILON))


def _of_kl(log_ratio: Tensor, a: Tensor, beta: float) -> Tensor:
    return beta * ((-log_ratio).exp() - 1).abs()


def _culprit(of_ratio: Pull = _of_ratio, of_kl: Pull = _of_kl) -> Callable[..., tuple[int, int, str]]:
    """The culprit of lab 2 with one of the two gradients replaced; the defaults give the right one."""

    def function(log_ratio: Tensor, advantages: Tensor, beta: float) -> tuple[int, int, str]:
        given = log_ratio.double(), advantages.double()[:, None], beta
        term, pull = max((("kl", of_kl(*given)), ("ratio", of_ratio(*given))), key=lambda each: float(each[1].max()))
        row, token = divmod(int(pull.argmax()), pull.shape[1])
        return row, token, term

    return function


def _told(change: Callable[[int, int, str], tuple[int, int, str]]) -> Callable[..., tuple[int, int, str]]:
    return lambda **given: change(*_culprit()(**given))


CULPRIT = (
    Mistake("Row and token are in the other order here.", _told(lambda row, token, term: (token, row, term))),
    Mistake(
        "Rows and tokens are counted from 1 here; the first is 0.",
        _told(lambda row, token, term: (row + 1, token + 1, term)),
    ),
    Mistake(
        "Row and token are right; the terms are spelt 'ratio' and 'kl'.",
        _told(lambda row, token, term: (row, token, term if term == "ratio" else term.upper())),
    ),
    Mistake(
        "The surrogate is clipped nowhere here: where it is clipped it has no gradient.",
        _culprit(lambda log_ratio, a, beta: (log_ratio.exp() * a).abs()),
    ),
    Mistake(
        "The advantage is not used here: the gradient of the surrogate has this factor.",
        _culprit(lambda log_ratio, a, beta: log_ratio.exp().masked_fill(_clipped(log_ratio.exp(), a), 0.0)),
    ),
    Mistake(
        "The KL estimate takes e^(+distance) here, of the ratio; delta is reference minus policy.",
        _culprit(of_kl=lambda log_ratio, *rest: _of_kl(-log_ratio, *rest)),
    ),
    Mistake("Only the ratio is looked at here.", _culprit(of_kl=lambda *given: 0 * given[0])),
    Mistake("Only the KL is looked at here.", _culprit(lambda *given: 0 * given[0])),
)

# The log-ratio that is right -----------------------------------------------------------------------------------------

LOG_RATIO = (
    Mistake(
        "This compares the policy with the reference, and not with the policy that sampled.",
        lambda logprobs, batch: logprobs - batch.ref_logprobs,
    ),
    Mistake(
        "This compares the policy with sampling_logprobs, which are of the distribution after top_p.",
        lambda logprobs, batch: logprobs - batch.sampling_logprobs,
    ),
    Mistake("The size is right and the sign is not.", lambda logprobs, batch: batch.old_logprobs - logprobs),
    Mistake("This is the ratio, and not its logarithm.", lambda logprobs, batch: (logprobs - batch.old_logprobs).exp()),
    Mistake(
        "The values are right and have no gradient: the policy's log-probabilities were detached.",
        lambda logprobs, batch: (logprobs - batch.old_logprobs).detach(),
    ),
)

# The KL estimate, bounded before exp ---------------------------------------------------------------------------------

BOUND = 10.0


def _bounded(delta: Tensor) -> Tensor:
    return kl.k3(delta.clamp(-BOUND, BOUND))


_AFTER_EXP = (
    "The clamp comes after exp here: the value is repaired, "
    "and where exp overflows, backward multiplies the clamp's 0 by inf."
)
BOUNDED = (
    Mistake("The bound is missing below -10: it holds on both sides.", lambda delta: kl.k3(delta.clamp(max=BOUND))),
    Mistake("The bound is missing above 10: it holds on both sides.", lambda delta: kl.k3(delta.clamp(min=-BOUND))),
    Mistake("There is no bound here.", kl.k3),
    Mistake(
        "The exponent is bounded, and the term - delta is not: both terms take the bounded delta.",
        lambda delta: torch.expm1(delta.clamp(-BOUND, BOUND)) - delta,
    ),
    Mistake(_AFTER_EXP, lambda delta: torch.expm1(delta).clamp(max=math.expm1(BOUND)) - delta.clamp(-BOUND, BOUND)),
    Mistake(_AFTER_EXP, lambda delta: kl.k3(delta).clamp(max=math.expm1(BOUND) - BOUND)),
    Mistake(
        "exp was taken of the whole delta too, even if the result is unused: it overflows, and 0 times inf is NaN.",
        lambda delta: _bounded(delta) + 0 * delta.exp(),
    ),
    Mistake("This is k3 of -delta: reference minus policy is the other way round.", lambda delta: _bounded(-delta)),
)
