"""The curves of runs over their steps, with the limits of their guards and what happened on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from grpo_lab.dashboard import CURVES, Screen, Series, decimate
from grpo_lab.events import METRICS
from grpo_lab.guards import GUARDS
from grpo_lab.plots.style import BLUE, FINE, GREY, LARGE, MARKS, PLAIN, SMALL, VERMILLION, Look, legible, looks

SCALES = {"grad_norm": "log", "kl": "symlog", "reward": "linear", "ratio/max": "log"}
HUGE = 1e100
"""A larger number is drawn as if it were not finite: axes cannot hold it."""
_GUARDS = (
    ("clip_gradients", "max_norm", "clipped to {:g}", "--"),
    ("skip_spikes", "threshold", "skipped above {:g}", ":"),
)


class Threshold(NamedTuple):
    """A limit that was in force, from `steps[i]` on at `values[i]`; NaN where its guard was off."""

    label: str
    line: str
    steps: list[int]
    values: list[float]


def panels(figure: Figure, top: float) -> dict[str, Axes]:
    """Axes for the four curves, from `top` inches below the top edge of the figure."""
    height = figure.get_size_inches()[1]
    place = {"left": 0.06, "right": 0.985, "top": 1 - top / height, "bottom": 1 - (top + 4.35) / height}
    grid = figure.add_gridspec(2, 2, hspace=0.38, wspace=0.13, **place)
    return {name: figure.add_subplot(grid[divmod(index, 2)]) for index, name in enumerate(CURVES)}


def draw(axes: Axes, name: str, screens: Mapping[str, Screen], span: tuple[int, int]) -> None:
    """One metric of every run in one panel; of a single run also its limits and what happened to it."""
    rows = [decimate(screen.series.get(name, Series())) for screen in screens.values()]
    alone = next(iter(screens.values())) if len(screens) == 1 else None
    limits = thresholds(name, alone) if alone else []
    values = [value for series in rows for value in series.values]
    held_out = alone.evaluations.values if alone and name == "reward" else ()
    lines = [value for limit in limits for value in limit.values if not math.isnan(value)]
    low, high = set_scale(axes, name, np.array([*values, *held_out, *lines], dtype=float))
    for look, series in zip(looks(rows), rows, strict=True):
        _curve(axes, name, series, look, low, high)
    metric = METRICS[name]
    axes.set_title(
        f"{metric.label} ({metric.unit})" if metric.unit else metric.label, fontsize=LARGE, loc="left", pad=9
    )
    axes.set_xlim(span[0] - 0.5, span[1] - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.tick_params(labelsize=SMALL)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if alone:
        _limits(axes, limits, span[1])
        _happenings(axes, name, alone, low, high)
        _legend(axes)


def thresholds(name: str, screen: Screen) -> list[Threshold]:
    """The limits that the run's settings put on a metric, each change of them included."""
    found = []
    if name == "grad_norm":
        for guard, setting, label, line in _GUARDS:
            default = getattr(GUARDS[guard], setting)
            found.append(
                (
                    label,
                    line,
                    [
                        c.get("guards", {}).get(guard, {setting: math.nan}).get(setting, default)
                        for _, c in screen.settings
                    ],
                )
            )
    elif name == "ratio/max":
        values = [_upper_ratio(config.get("loss", {})) for _, config in screen.settings]
        found.append(("clipped above {:g}", "--", values))
    steps = [step for step, _ in screen.settings]
    made = []
    for label, line, values in found:
        last = next((value for value in reversed(values) if not math.isnan(value)), None)
        if last is not None:
            made.append(Threshold(label.format(last), line, steps, values))
    return made


def set_scale(axes: Axes, name: str, values: np.ndarray) -> tuple[float, float]:
    """Set the axis to whole decades or round the values, and return its limits. Any values give a drawable axis."""
    finite = values[np.abs(values) < HUGE]
    room = int(len(finite) < len(values))  # so that a cross at the edge is above every number
    scale = SCALES[name]
    if scale == "log":
        return _log(axes, finite[finite > 1e-30], room)
    if scale == "symlog" and len(finite) and np.abs(finite).max() > 10:
        return _symlog(axes, float(finite.min()), float(finite.max()), room)
    low, high = (min(0.0, finite.min()), finite.max()) if len(finite) else (0.0, 1.0)
    if name == "reward" and low >= 0:
        high = max(high, 1.0)
    pad = 0.05 * (high - low) or 0.5
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    low, high = float(low - pad), float(high + pad * (1 + 2 * room))
    axes.set_ylim(low, high)
    return low, high


def _log(axes: Axes, positive: np.ndarray, room: int) -> tuple[float, float]:
    top = math.ceil(math.log10(1.5 * positive.max())) + room if len(positive) else 1
    bottom = min(top - 1 - room, math.floor(math.log10(positive.min() / 1.5))) if len(positive) else -1
    low, high = 10.0 ** max(bottom, top - 12), 10.0**top
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)
    return low, high


def _symlog(axes: Axes, smallest: float, largest: float, room: int) -> tuple[float, float]:
    """Linear up to 1 and logarithmic above: a KL may be 0 or negative, and explode."""
    up = math.floor(math.log10(max(largest, 1))) + 1 + room
    down = math.floor(math.log10(-smallest)) + 1 if smallest < -1 else -1
    low, high = (-(10.0**down) if down >= 0 else min(0.0, smallest)), 10.0**up
    stride = math.ceil((up + down + 2) / 6)
    axes.set_yscale("symlog", linthresh=1)
    first = stride if stride > 2 else 0  # so that the labels around 0 do not meet
    ticks = [
        0.0,
        *(10.0**k for k in range(first, up + 1, stride)),
        *(-(10.0**k) for k in range(first, down + 1, stride)),
    ]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)
    return low, high


def _curve(axes: Axes, name: str, series: Series, look: Look, low: float, high: float) -> None:
    steps, values = np.array(series.steps), np.array(series.values, dtype=float)
    drawn, finite = _clamped(values, low, high)
    style: dict[str, Any] = {"color": look.colour, "clip_on": False}
    marker = look.marker if len(steps) <= FINE else "none"
    axes.plot(steps, drawn, ls=look.line, lw=1.8, marker=marker, ms=4.5, gid=f"curve {name}", **style)
    if not finite.all():
        cross = axes.plot(steps[~finite], drawn[~finite], "x", ms=11, mew=2.5, gid=f"cross {name}", zorder=5, **style)
        cross[0].set_label("NaN or inf")


def _clamped(values: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """The values inside the axis, and which of them were finite."""
    finite = np.abs(values) < HUGE  # False for NaN too
    return np.clip(np.where(finite, values, np.where(values < 0, low, high)), low, high), finite


def _limits(axes: Axes, limits: list[Threshold], end: int) -> None:
    for limit in limits:
        style: dict[str, Any] = {"color": GREY, "ls": limit.line, "lw": 1.3, "label": limit.label}
        starts = [*limit.steps, end]
        parts = [
            (start - 0.5, stop - 0.5, value)
            for (start, stop), value in zip(pairwise(starts), limit.values, strict=True)
        ]
        x = [edge for start, stop, _ in parts for edge in (start, stop)]
        axes.plot(x, [value for *_, value in parts for _ in range(2)], gid=f"limit {limit.label}", **style)


def _happenings(axes: Axes, name: str, screen: Screen, low: float, high: float) -> None:
    """Refused steps on the gradient norm, held-out reward, and lines for changed settings and the crash."""
    if name == "grad_norm":
        series = screen.series.get(name, Series())
        values = dict(zip(series.steps, series.values, strict=True))
        for kind in ("skipped", "rolled back", "stopped"):
            if steps := screen.marked(kind):
                heights, _ = _clamped(np.array([values.get(step, low) for step in steps]), low, high)
                style: dict[str, Any] = {
                    "mfc": MARKS[kind].colour,
                    "mec": "black",
                    "ms": 9,
                    "zorder": 6,
                    "clip_on": False,
                }
                axes.plot(steps, heights, MARKS[kind].marker, gid=f"mark {kind}", **style)
    if name == "reward" and screen.evaluations.steps:
        heights, _ = _clamped(np.array(screen.evaluations.values, dtype=float), low, high)
        style = {"mfc": "white", "mec": BLUE, "mew": 1.8, "clip_on": False, "zorder": 4}
        axes.plot(screen.evaluations.steps, heights, "D", ms=8, gid="held out", label="held-out problems", **style)
    for step in screen.marked("changed"):
        axes.axvline(step - 0.5, color="black", lw=1.1, ls="-.", gid="changed")
    if screen.crash_step is not None:
        axes.axvline(screen.crash_step, color=VERMILLION, lw=1.6, ls=":", gid="crash")
        right = screen.crash_step < sum(axes.get_xlim()) / 2
        style = {"color": VERMILLION, "fontsize": SMALL, "fontweight": "bold", "ha": "left" if right else "right"}
        style["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        place = {"xycoords": axes.get_xaxis_transform(), "xytext": (5 if right else -5, 0)}
        axes.annotate("crash", (screen.crash_step, 0.07), textcoords="offset points", **place, **style)


def _upper_ratio(loss: Mapping[str, Any]) -> float:
    high = loss.get("epsilon_high")
    return 1 + float(loss.get("epsilon", math.nan) if high is None else high)


def _legend(axes: Axes) -> None:
    """The legend in the line of the title, outside the curves."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        texts = [legible(label) for label in labels]
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.045)}
        axes.legend(handles, texts, ncols=len(texts), handlelength=1.6, handletextpad=0.4, **place, **PLAIN)
