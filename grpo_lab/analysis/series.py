"""One curve of a screen: its values by step, decimated for drawing, and its numbers as text."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Series(NamedTuple):
    """One curve: a value for each step that has one."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


class Band(NamedTuple):
    """The KL band of an objective from a step on; NaN where it has none."""

    step: int
    low: float
    high: float


def bands(settings: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, tuple[Band, ...]]:
    """Each objective that configs list, with its bands, from (step, config from it on)."""
    found: dict[str, tuple[Band, ...]] = {}
    for step, config in settings:
        for table in config.get("objectives", ()):
            band = Band(step, float(table.get("kl_low", math.nan)), float(table.get("kl_high", math.nan)))
            found[table["name"]] = (*found.get(table["name"], ()), band)
    return found


def decimate(series: Series, limit: int = 600) -> Series:
    """At most `limit` points of the curve: of each bucket its smallest, its largest and its first non-finite value.

    A spike of one step survives, and so do the first and the last point.
    """
    count = len(series.steps)
    if count <= limit:
        return series
    width = math.ceil(count / max(1, (limit - 2) // 3))
    table = np.full((math.ceil(count / width), width), math.nan)
    table.flat[:count] = series.values
    finite, starts = np.isfinite(table), width * np.arange(len(table))
    odd = ~finite
    odd.flat[count:] = False  # the last bucket is filled up with NaN
    extremes = [np.where(finite, table, math.inf).argmin(1), np.where(finite, table, -math.inf).argmax(1)]
    picked = [(starts + place)[finite.any(1)] for place in extremes] + [(starts + odd.argmax(1))[odd.any(1)]]
    chosen = np.unique(np.concatenate([*picked, [0, count - 1]])).tolist()
    return Series(tuple(series.steps[i] for i in chosen), tuple(series.values[i] for i in chosen))


def shown(value: float) -> str:
    """A number as text: three digits, or NaN.

    >>> shown(812.43), shown(3435618.5), shown(float("nan"))
    ('812', '3.44e+06', 'NaN')
    """
    return "NaN" if math.isnan(value) else f"{value:.3g}"
