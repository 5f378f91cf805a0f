"""A curve of a log: its noise, trend and course, and the states, units and places that symptoms are made of."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_lab.analysis.logs.text import tables

Curve = NDArray[np.float64]
Mask = NDArray[np.bool_]
_LIMITS = tables("limits")["curves"]


def finite(values: Curve) -> Curve:
    """The finite values of a curve, of shape (finite steps,)."""
    return values[np.isfinite(values)]


def start(values: Curve) -> float:
    """The level at which a curve begins: the mean of its first tenth, and of three values at least.

    If the first update changed the level already, the first value is the beginning.
    """
    first = values[: max(3, len(values) // 10)]
    changed = len(first) > 2 and abs(float(first[0] - first[1:].mean())) > 3 * noise(values[1:])
    return float(first[0] if changed else first.mean())


def noise(values: Curve) -> float:
    """The standard deviation of a curve about its own slow course, from the differences of neighbours; 0 for one value.

    Differences of normal noise have a mean magnitude of 2 / sqrt(pi) standard deviations. A course of many steps, and
    a few jumps, hardly change it.
    """
    return float(np.mean(np.abs(np.diff(values)))) * math.sqrt(math.pi) / 2 if len(values) > 1 else 0.0


def trend(values: Curve) -> float:
    """The slope of a straight line through the curve, in its standard errors; 0 for less than four values."""
    if len(values) < 4 or np.ptp(values) == 0:
        return 0.0
    steps = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(steps @ values / (steps @ steps))
    rest = values - values.mean() - slope * steps
    error = math.sqrt(float(rest @ rest) / (len(values) - 2) / float(steps @ steps))
    return slope / error if error > 0 else math.copysign(math.inf, slope)


def unrest(values: Curve) -> float:
    """The magnitude of the trend; infinite for a curve so short that its noise may hide a change by a fifth."""
    hidden = 3 * noise(values) * math.sqrt(12 / len(values)) > 0.2 * float(np.abs(values).max())
    return math.inf if hidden and len(values) < _LIMITS["enough"] else abs(trend(values))


class Course(NamedTuple):
    """The course of one curve: its levels, and the places where it changed; data/diagnosis/story.toml explains them."""

    kind: str
    first: float
    last: float
    top: float
    top_at: int
    fell_at: int
    high: int
    """The number of values about the highest level."""
    dip: float
    dip_at: int
    sure: float
    width: int
    """The number of values at the end that are of the last level."""


def without_lone_outlier(values: Curve) -> Curve:
    """The curve, where the one value that is far from its neighbours, as no other is, becomes their mean."""
    away = np.abs(values[1:-1] - (values[:-2] + values[2:]) / 2)
    inside = int(np.argmax(away)) + 1
    others = np.delete(away, slice(max(0, inside - 2), inside + 1))
    if away[inside - 1] <= 4 * max(np.max(others, initial=0.0), abs(float(values[inside - 1] - values[inside + 1]))):
        return values
    return np.concatenate([values[:inside], [(values[inside - 1] + values[inside + 1]) / 2], values[inside + 1 :]])


def change_points(values: Curve, deviation: float) -> list[int]:
    """The places at which the mean of a curve changes from one value to the next, by halves of the halves.

    The means of the two halves must differ by `jump` of their standard errors.
    """
    found, parts = [], [(0, len(values))]
    while parts:
        begin, end = parts.pop()
        sizes = np.arange(1, end - begin)
        sums = np.cumsum(values[begin:end])
        gaps = np.abs(sums[:-1] / sizes - (sums[-1] - sums[:-1]) / sizes[::-1])
        errors = np.maximum(deviation * np.sqrt(1 / sizes + 1 / sizes[::-1]), 1e-12)
        jumps = gaps / errors
        if len(values) >= _LIMITS["many"] and end == len(values):
            jumps[-1:] /= 2  # one of many rows
        if np.max(jumps, initial=0) > _LIMITS["jump"]:
            place = begin + 1 + int(np.argmax(jumps))
            found.append(place)
            parts += [(begin, place), (place, end)]
    return sorted(found)


def level_change(values: Curve) -> tuple[float, int]:
    """The most standard errors by which the ranks before a place differ from their mean, and the place.

    Four values and a tenth of them at least are on both sides.
    """
    size = len(values)
    least = max(4, size // 10)
    before = np.arange(least, size - least + 1)
    ranks = np.unique(values, return_inverse=True)[1]
    sums = np.cumsum(ranks - ranks.mean())[before - 1]
    errors = np.abs(sums) / np.sqrt(before * (size - before) / (size - 1) * max(float(ranks.var()), 1e-12))
    return float(np.max(errors, initial=0)), int(before[np.argmax(errors)]) if len(before) else 0


def course(values: Curve) -> Course | None:
    """The course of finite values; None for less than six of them."""
    if len(values) < 6:
        return None
    size = len(values)
    if size >= _LIMITS["few"]:  # in a zigzag of less each value is one
        values = without_lone_outlier(values)
    width = min(20, max(3, size // 8))
    bends = values[:-2] - 2 * values[1:-1] + values[2:]  # about straight lines: a steep course is no noise
    deviation = float(np.mean(np.abs(bends))) * math.sqrt(math.pi / 12)
    hits = values != np.median(values)
    if hits.mean() < _LIMITS["rare"] and np.count_nonzero(np.diff(hits)) >= hits.sum():  # lone hits are no level
        deviation = float(values.std())
    rest = values[1:]
    if abs(float(values[0] - rest.mean())) > _LIMITS["jump"] * float(rest.std()):  # the first value alone differs
        deviation = min(deviation, float(rest.std()))
    parts = np.array([0, *change_points(values, deviation), size])
    part = np.searchsorted(parts, np.arange(size), "right") - 1
    low = np.maximum(parts[part], np.minimum(np.arange(size) - width // 2, parts[part + 1] - width))
    high = np.minimum(parts[part + 1], low + width)
    level = np.add.reduceat(np.append(values, 0), np.stack([low, high], 1).ravel())[::2] / (high - low)
    first, last, top, top_at = float(level[0]), float(level[-1]), float(level.max()), int(np.argmax(level))
    rows = int(high[-1] - low[-1])
    sure = _LIMITS["sure"] * deviation * math.sqrt(1 / rows + 1 / (high[0] - low[0]))
    least = 0.02 * float(np.abs(level).max())
    sure = max(sure, least)
    lost, gained = top - last, top - first
    high_at = np.flatnonzero(level >= top - 0.2 * max(lost, 0))
    still_high = int(high_at[-1])
    middle = (top + last) / 2
    below = np.flatnonzero(level[still_high:] < middle)
    for_good = len(below) > 0 and np.mean(level[still_high + below[0] :] > middle) <= _LIMITS["back"]
    slow = gained <= sure and np.sum(level[still_high:] > last + 0.2 * lost) > _LIMITS["slow"] * size
    depth = np.minimum(np.maximum.accumulate(level), np.maximum.accumulate(level[::-1])[::-1]) - level
    dip_at = int(np.argmax(depth))
    early, late = values[: size // 2], values[-(size // 2) :]
    apart = size >= _LIMITS["apart"] and (np.max(early) < np.min(late) or np.max(late) < np.min(early))
    change, place = level_change(values)
    slope = abs(trend(values))
    moved = slope > _LIMITS["trend"] or change > _LIMITS["level"] - 4 / size
    if lost > max(sure, 0.1 * abs(top)) and (gained <= sure or lost > 0.5 * gained) and for_good and not slow:
        kind = "fell"
    elif depth[dip_at] > max(1.5 * sure, 0.4 * abs(float(level[dip_at] + depth[dip_at]))):
        kind = "dipped"
    elif not apart and abs(last - first) <= (least if moved else sure):
        kind = "flat"
    else:
        if abs(last - first) <= sure:  # no level of few rows shows it
            before, after = (size // 3, -(size // 3)) if slope > change else (place, place)
            first, last = float(values[:before].mean()), float(values[after:].mean())
        kind = "rose" if last > first else "declined"
    fell_at, dip, high = min(still_high + 1, size - 1), float(level[dip_at]), len(high_at)
    return Course(kind, first, last, top, top_at, fell_at, high, dip, dip_at, sure, rows)


def at(place: int, values: Curve, shown: bool = True) -> Mask:
    """The mask of one place of a curve, if it shows the state."""
    return (np.arange(len(values)) == place) & shown


def fell(values: Curve) -> Mask:
    """The one value from which on a curve is below its highest level, and does not come back."""
    known = np.flatnonzero(np.isfinite(values))
    found = course(values[known])
    if found is None or found.kind != "fell":
        return at(0, values, False)
    lasts = min(len(known) - found.fell_at, found.high) > max(2, len(known) / 20)
    return at(known[found.fell_at], values, lasts and found.top - found.last > 0.3 * abs(found.top))


def first_lasting(mask: Mask) -> int | None:
    """The first place from which on three quarters of the places are set, or else the first that is set; or None."""
    lasting = mask & (np.cumsum(mask[::-1])[::-1] >= 0.75 * np.arange(len(mask), 0, -1))
    return first_true(lasting if lasting.any() else mask)


def falls(values: Curve) -> Mask:
    """The one value from which on a curve has fallen from its highest level, or ends below its first one."""
    kept, found = finite(values), fell(values)
    if found.any() or not len(kept):
        return found
    bound = start(kept) - 3 * level_noise(kept)
    return at(first_lasting(values < bound) or 0, values, float(kept[-max(2, len(kept) // 10) :].mean()) < bound)


def same_to_the_end(values: Curve) -> Mask:
    """Which values are followed only by values equal to them."""
    return np.logical_and.accumulate((values == values[-1])[::-1])[::-1]


def level_noise(values: Curve) -> float:
    """The noise of a curve, at least a twentieth of its first level: a smaller change of a mean is none."""
    return max(noise(values), 0.05 * abs(start(values)))


def outlier(values: Curve) -> Mask:
    """Which values are farther from the median than 50 times the median distance, 12 of its ninth decile, and 3."""
    if not len(kept := finite(values)):
        return at(0, values, False)
    usual, large = np.quantile(np.abs(kept - np.median(kept)), (0.5, 0.9), method="lower")
    return np.isfinite(values) & (np.abs(values - np.median(kept)) > max(50 * usual, 12 * large, 3))


def breaks(values: Curve) -> Mask:
    """The one value from which on the curve has another level, for good: constant below its best, or lower at once.

    A mean of rewards that varied and is then exactly the same in each of four steps is not measured any more. A curve
    that comes to rest varies less and less before.
    """
    if len(values) < 8 or not np.isfinite(values).all():
        return at(0, values, False)
    constant = int(np.argmax(same_to_the_end(values)))
    if 3 <= constant <= len(values) - 4:
        before = values[:constant]
        new = float(np.mean(before == values[-1])) < 0.2
        lively = float(np.mean(np.abs(np.diff(values[constant - 3 : constant + 1])))) > 0.5 * noise(before) > 0
        repeats = np.mean(np.diff(before) == 0) > _LIMITS["repeats"]  # each value stands in several rows
        return at(constant, values, new and lively and not repeats and values[-1] < before.max())
    place = max(range(3, len(values) - 3), key=lambda k: float(values[k - 3 : k].mean() - values[k : k + 5].mean()))
    before, after = values[:place], values[place:]
    jump = float(np.median(before[-5:]) - np.median(after[:5]))
    drops = values[:-2] - values[2:]  # a row may be the mean of steps before and after
    slope = float(np.max(np.delete(drops, [place - 2, place - 1]), initial=0))
    at_once = float(drops[place - 1]) > max(0.6 * jump, 1.5 * slope)
    lower = float(np.max(after[1:])) < float(np.min(before[-5:]))
    return at(place, values, jump > 3.5 * max(level_noise(before), noise(after)) and at_once and lower)


def stops(values: Curve) -> Mask:
    """The one value from which on a share is 1, if each of the three before it was below 0.6."""
    place = int(np.argmax(same_to_the_end(values)))
    inside = 3 <= place <= len(values) - 4 and values[-1] == 1
    return at(place, values, inside and float(np.max(values[place - 3 : place])) < 0.6)


def vanishes(values: Curve) -> Mask:
    """The first of the values that are less than a fifth of the first one, if nearly all after it are."""
    small = values < 0.2 * values[0]
    place = first_true(small)
    return small & (place is not None and place <= 3 and bool(small[place:].mean() > 0.8))


def returns(values: Curve) -> Mask:
    """The one value from which on a curve that had left its first level is back there, at once."""
    if len(values) < 16 or not np.isfinite(values).all():
        return at(0, values, False)
    jumps = [abs(float(values[k : k + 3].mean() - values[k - 3 : k].mean())) for k in range(8, len(values) - 3)]
    place = 8 + int(np.argmax(jumps))
    began = float(values[:2].mean())
    away = float(np.median(values[place - 5 : place])) - began
    back = float(values[place : place + 2].mean()) - began
    least = 3 * max(noise(values[:place]), 0.02 * abs(began))
    return at(place, values, abs(away) > least and abs(back) < 0.4 * abs(away))


def quotient_spread(values: Curve, other: Curve) -> float:
    """The spread of a curve's quotient to another one, relative to its median; 0 if one is the other times a number.

    It is infinite for two curves that are constant: their quotient shows nothing.
    """
    if np.ptp(values) == np.ptp(other) == 0:
        return math.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = finite(values / other)
    middle = float(np.median(quotient)) if len(quotient) else 0.0
    return float(np.median(np.abs(quotient - middle))) / abs(middle) if middle else math.inf


STATES: dict[str, Callable[[Curve], Mask]] = {
    "nan": np.isnan,
    "inf": np.isinf,
    "nonfinite": lambda values: ~np.isfinite(values),
    "whole": lambda values: np.isfinite(values) & (values == np.round(values)),
    "same": same_to_the_end,
    "lowest": lambda values: values == np.min(finite(values), initial=math.inf),
    "highest": lambda values: values == np.max(finite(values), initial=-math.inf),
    "outlier": outlier,
    "breaks": breaks,
    "fell": fell,
    "falls": falls,
    "moves": lambda values: at(0, values, getattr(course(finite(values)), "kind", "flat") != "flat"),
    "stops": stops,
    "below first": lambda values: at(1, values, len(values) > 1 and bool(np.max(values[1:]) < values[0])),
    "vanishes": vanishes,
    "returns": returns,
}
UNITS: dict[str, Callable[[Curve], float]] = {
    "median": lambda values: float(np.median(values)),
    "start": lambda values: float(np.mean(values[: max(2, len(values) // 10)])),
    "beginning": start,
    "first": lambda values: float(values[0]),
    "largest": lambda values: float(np.max(values)),
    "noise": level_noise,
}
"""The units of a limit, and the levels that differences are taken to, from the finite values of the curve itself."""


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
    **dict.fromkeys(("first", "first update"), lambda mask, values: 0 if mask[0] else None),
    "always in few": lambda mask, values: 0 if mask.all() and len(mask) < _LIMITS["in_few"] else None,
    "soon": soon,
    "often": share(0.4),
    "mostly": share(0.5),
    "passing": lambda mask, values: first_true(mask) if mask.mean() < 0.3 and not mask[-1] else None,
    "nearly always": lambda mask, values: share(0.9)(mask, values) if mask[0] else None,
    "throughout": share(0.9),
    "always": share(1.0),
    "alone": alone,
}
"""For each `when` of a symptom that looks at steps, the step of a mask that shows it."""
WHOLES: dict[str, Callable[[Curve], float]] = {
    "late": lambda values: float(np.median(values[len(values) // 2 :])),
    "late mean": lambda values: float(np.mean(values[len(values) // 2 :])),
    "end": lambda values: float(np.mean(values[-max(2, len(values) // 10) :])),
    "trend": trend,
    "unrest": unrest,
}
"""For each `when` of a symptom that looks at the whole curve, the number that its limits are compared with."""
