"""The y axes of curves: limits from the data, so that every number is drawn at its own height."""

import math
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

SCALES = {"grad_norm": "log", "kl": "symlog", "reward": "linear", "ratio/max": "log"}
HUGE, TINY = 1e100, 1e-30
"""A larger number is drawn like infinity, a smaller one of a log axis beside 0: axes cannot hold them."""


class Scale(NamedTuple):
    """A y axis: `linear`, `log` or `symlog`, from `low` to `high`."""

    kind: str
    low: float
    high: float
    ticks: tuple[float, ...] = ()
    threshold: float = 1.0
    """A symlog axis is linear up to this number and logarithmic above, so that 0 has a place."""


def scale_of(name: str, values: np.ndarray, steady: bool = False) -> Scale:
    """The axis for these values: whole decades, or a margin around the values. Any values give a drawable axis.

    The limits of a `steady` linear axis are 1, 2, 5, 10 …, so that it seldom changes during a run.
    """
    finite = values[np.abs(values) < HUGE]
    room = int(len(finite) < len(values))  # a cross at the edge must be above every number
    kind = SCALES[name]
    if kind == "log":
        return _log(finite, room)
    if kind == "symlog" and len(finite) and np.abs(finite).max() > 10:
        return _symlog(float(finite.min()), float(finite.max()), room)
    low, high = (min(0.0, finite.min()), finite.max()) if len(finite) else (0.0, 1.0)
    if name == "reward" and low >= 0:
        high = max(high, 1.0)
    if steady:
        low, high = -_round_up(-low), _round_up(high)
    pad = 0.05 * (high - low) or 0.5
    return Scale("linear", float(low - pad), float(high + pad * (1 + 2 * room)))


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 and 10 times a power of ten; 0 for a value that is not positive."""
    if value <= 0:
        return 0.0
    decade = 10.0 ** math.floor(math.log10(value))
    return next((factor * decade for factor in (1, 2, 5) if factor * decade >= value), 10 * decade)


def _log(finite: np.ndarray, room: int) -> Scale:
    """Whole decades around the numbers. Where one is 0, negative or below TINY, the axis has a place for 0, too."""
    positive = finite[finite > TINY]
    top = math.ceil(math.log10(1.5 * positive.max())) + room if len(positive) else 1
    bottom = min(top - 1 - room, math.floor(math.log10(positive.min() / 1.5))) if len(positive) else -1
    if len(positive) < len(finite):
        return _symlog(float(finite.min()), 10.0 ** (top - room) / 2, room, bottom)
    return Scale("log", 10.0**bottom, 10.0**top)


def _symlog(smallest: float, largest: float, room: int, bottom: int = 0) -> Scale:
    """Linear up to 10^bottom and logarithmic above: a KL may be 0 or negative, and explode."""
    linear = 10.0**bottom
    up = math.floor(math.log10(max(largest, linear))) + 1 + room
    down = math.floor(math.log10(-smallest)) + 1 if smallest < -linear else bottom - 1
    low, high = (-(10.0**down) if down >= bottom else min(0.0, smallest)), 10.0**up
    stride = math.ceil((up + down - 2 * bottom + 2) / 6)
    first = bottom + (stride if stride > 2 else 0)  # the labels around 0 must not overlap
    above, below = range(first, up + 1, stride), range(first, down + 1, stride)
    ticks = (0.0, *(10.0**k for k in above), *(-(10.0**k) for k in below))
    return Scale("symlog", low, high, ticks, linear)


def set_scale(axes: Axes, scale: Scale) -> None:
    """Give the axes this scale."""
    if scale.kind == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=7))
        axes.yaxis.set_minor_locator(NullLocator())
    elif scale.kind == "symlog":
        axes.set_yscale("symlog", linthresh=scale.threshold)
        axes.yaxis.set_major_locator(FixedLocator(scale.ticks))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylim(scale.low, scale.high)


def placed(values: np.ndarray, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """The values with those that are not finite at the edge of the axis, and which of them were finite."""
    finite = np.abs(values) < HUGE  # False for NaN too
    return np.where(finite, values, np.where(values < 0, scale.low, scale.high)), finite
