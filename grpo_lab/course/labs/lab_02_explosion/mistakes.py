"""Known mistakes of lab 2: wrong formulas, each with the reason for an answer that gives its results."""

import math
from collections.abc import Callable

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
