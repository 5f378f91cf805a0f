"""What one curve shows: states of its values, the units of limits, its noise and trend, and when a mask is a symptom."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]
Mask = NDArray[np.bool_]


def finite(values: Curve) -> Curve:
    """The finite values of a curve, of shape (finite steps,)."""
    return values[np.isfinite(values)]


def start(values: Curve) -> float:
    """The mean of the first tenth of a curve, and of three values at least."""
    return float(np.mean(values[: max(3, len(values) // 10)]))


def noise(values: Curve) -> float:
    """The standard deviation of a curve about its own slow course, from the differences of neighbours; 0 for one value.

    Differences of normal noise have a mean magnitude of 2 / sqrt(pi) standard deviations. A course of many steps, and
    a few jumps, hardly change it.

    >>> round(noise(np.array([0.0, 1.0, 0.0, 1.0])), 2), noise(np.array([0.0, 0.0, 0.0]))
    (0.89, 0.0)
    """
    return float(np.mean(np.abs(np.diff(values)))) * math.sqrt(math.pi) / 2 if len(values) > 1 else 0.0


def trend(values: Curve) -> float:
    """The slope of a straight line through the curve, in its standard errors; 0 for less than four values.

    >>> trend(np.array([1.0, 2.0, 1.0, 2.0, 1.0])), trend(np.arange(9.0) + np.array([0.1, -0.1, 0.0] * 3)) > 50
    (0.0, True)
    """
    if len(values) < 4 or np.ptp(values) == 0:
        return 0.0
    steps = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(steps @ values / (steps @ steps))
    rest = values - values.mean() - slope * steps
    error = math.sqrt(float(rest @ rest) / (len(values) - 2) / float(steps @ steps))
    return slope / error if error > 0 else math.copysign(math.inf, slope)


def same_to_the_end(values: Curve) -> Mask:
    """Which values are followed only by values equal to them."""
    return np.logical_and.accumulate((values == values[-1])[::-1])[::-1]


STATES: dict[str, Callable[[Curve], Mask]] = {
    "nan": np.isnan,
    "inf": np.isinf,
    "nonfinite": lambda values: ~np.isfinite(values),
    "whole": lambda values: np.isfinite(values) & (values == np.round(values)),
    "same": same_to_the_end,
}
UNITS: dict[str, Callable[[Curve], float]] = {
    "median": lambda values: float(np.median(values)),
    "start": lambda values: float(np.mean(values[: max(2, len(values) // 10)])),
    "largest": lambda values: float(np.max(values)),
    "noise": noise,
}
"""The units of a limit that are computed from the finite values of the curve itself."""


def first_true(mask: Mask) -> int | None:
    """The first place where a mask is true."""
    return int(np.argmax(mask)) if mask.any() else None


def share(least: float) -> Callable[[Mask, Curve], int | None]:
    """The first place, if the mask is true for at least this share of the steps."""
    return lambda mask, values: first_true(mask) if mask.mean() >= least else None


def alone(mask: Mask, values: Curve) -> int | None:
    """A jump of at most two steps, not in the first step, over before the end, and only a few times."""
    place = first_true(mask)
    if place is None or place == 0 or mask.sum() > max(2, len(mask) // 10):
        return None
    back = np.flatnonzero(~mask[place:])
    return place if len(back) and back[0] <= 2 and np.isfinite(values[place + back[0]]) else None


def soon(mask: Mask, values: Curve) -> int | None:
    """The first place, if it is among the first tenth of the steps, or the first five."""
    place = first_true(mask)
    return place if place is not None and place < max(5, len(mask) // 10) else None


PLACES: dict[str, Callable[[Mask, Curve], int | None]] = {
    "once": lambda mask, values: first_true(mask),
    "first": lambda mask, values: 0 if mask[0] else None,
    "soon": soon,
    "mostly": share(0.5),
    "nearly always": share(0.9),
    "always": share(1.0),
    "alone": alone,
    "later": lambda mask, values: first_true(mask) if mask[len(mask) // 2 :].any() else None,
    "from inside": lambda mask, values: first_true(mask) if 2 <= (first_true(mask) or 0) <= len(mask) - 4 else None,
}
"""For each `when` of a symptom that looks at steps, the step of a mask that shows it."""
WHOLES: dict[str, Callable[[Curve], float]] = {
    "late": lambda values: float(np.median(values[len(values) // 2 :])),
    "end": lambda values: float(np.median(values[-max(3, len(values) // 5) :])),
    "trend": trend,
}
"""For each `when` of a symptom that looks at the whole curve, the number that its limits are compared with."""
