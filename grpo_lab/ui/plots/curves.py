"""The curves of runs over their steps, with the limits of guards, refused steps, changes and the crash."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from grpo_lab.analysis.run_state import CURVES, Screen, Series, decimate
from grpo_lab.metrics import METRICS
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui.plots import style

SCALES = {"grad_norm": "log", "kl": "symlog", "reward": "linear", "ratio/max": "log"}
REFUSED = ("skipped", "rolled back", "stopped")
HUGE = 1e100
"""A larger number is drawn like infinity: axes cannot hold it."""


def _guard_limit(guard: str, setting: str, config: Mapping[str, Any]) -> float:
    """The limit that a config sets for a guard; NaN where the guard is off."""
    default = getattr(GUARDS[guard], setting)
    return config.get("guards", {}).get(guard, {setting: math.nan}).get(setting, default)


def _upper_ratio(config: Mapping[str, Any]) -> float:
    """The ratio above which a config clips."""
    loss = config.get("loss", {})
    high = loss.get("epsilon_high")
    return 1 + float(loss.get("epsilon", math.nan) if high is None else high)


_LIMITS: dict[str, tuple[tuple[Callable[[Mapping[str, Any]], float], str, str], ...]] = {
    "grad_norm": (
        (partial(_guard_limit, "clip_gradients", "max_norm"), "clipped to {:g}", "--"),
        (partial(_guard_limit, "skip_spikes", "threshold"), "skipped above {:g}", ":"),
    ),
    "ratio/max": ((_upper_ratio, "clipped above {:g}", "--"),),
}


class Threshold(NamedTuple):
    """A limit in force: `values[i]` from `steps[i]` on; NaN where its guard was off."""

    label: str
    line: str
    steps: list[int]
    values: list[float]


class Scale(NamedTuple):
    """A y axis: `linear`, `log` or `symlog`, from `low` to `high`."""

    kind: str
    low: float
    high: float
    ticks: tuple[float, ...] = ()


Points = dict[str, tuple[np.ndarray, np.ndarray]]
"""Points that move during a run: (x, y) by the gid of their artist."""


def panels(figure: Figure, top: float, tall: float = 4.35, left: float = 0.06, right: float = 0.985) -> dict[str, Axes]:
    """Axes for the four curves: `tall` inches in all, from `top` inches below the top edge of the figure."""
    height = figure.get_size_inches()[1]
    place = {"left": left, "right": right, "top": 1 - top / height, "bottom": 1 - (top + tall) / height}
    grid = figure.add_gridspec(2, 2, hspace=0.38, wspace=0.13, **place)
    return {name: figure.add_subplot(grid[divmod(index, 2)]) for index, name in enumerate(CURVES)}


def draw(
    axes: Axes,
    name: str,
    screens: Mapping[str, Screen],
    span: tuple[int, int],
    focus: Screen | None = None,
    scale: Scale | None = None,
    say: Callable[[str], str] = str,
) -> None:
    """Draw one metric of every run in one panel; of the run in `focus` also its limits, changes and crash.

    A single run is always in focus. `scale` replaces the scale that fits the values, `say` translates labels.
    """
    focus = next(iter(screens.values())) if len(screens) == 1 else focus
    rows = [decimate(screen.series.get(name, Series())) for screen in screens.values()]
    limits = thresholds(name, focus, say) if focus else []
    scale = scale or scale_of(name, numbers(name, rows, focus))
    _set_scale(axes, scale)
    for look, screen, series in reversed(list(zip(style.looks(rows), screens.values(), rows, strict=True))):
        _moving(axes, name, points(name, series, scale, screen if screen is focus else None), look, say)
    metric = METRICS[name]
    title = f"{say(metric.label)} ({say(metric.unit)})" if metric.unit else say(metric.label)
    axes.set_title(title, fontsize=style.LARGE, loc="left", pad=9)
    axes.set_xlim(span[0] - 0.5, span[1] - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.tick_params(labelsize=style.SMALL)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if focus:
        _limits(axes, limits, span[1])
        _happenings(axes, focus, say)
        _legend(axes)


def numbers(name: str, rows: Iterable[Series], focus: Screen | None) -> np.ndarray:
    """All numbers that a panel must show: of the curves, held-out problems and limits."""
    values = [value for series in rows for value in series.values]
    if focus and name == "reward":
        values += focus.evaluations.values
    if focus:
        values += [value for limit in thresholds(name, focus) for value in limit.values if not math.isnan(value)]
    return np.array(values, dtype=float)


def points(name: str, series: Series, scale: Scale, focus: Screen | None = None) -> Points:
    """The curve, crosses where it is not finite, and of a run in focus its refused steps and held-out reward."""
    steps, values = np.array(series.steps), np.array(series.values, dtype=float)
    drawn, finite = _clamped(values, scale)
    found: Points = {f"curve {name}": (steps, drawn)}
    if not finite.all():
        found[f"cross {name}"] = (steps[~finite], drawn[~finite])
    if focus and name == "grad_norm":
        norms = dict(zip(*focus.series.get(name, Series()), strict=True))
        for kind in REFUSED:
            if len(few := thinned(focus.marked(kind))):
                found[f"mark {kind}"] = (few, _clamped(np.array([norms.get(step, 0.0) for step in few]), scale)[0])
    if focus and name == "reward" and focus.evaluations.steps:
        heights, _ = _clamped(np.array(focus.evaluations.values, dtype=float), scale)
        found["held out"] = (np.array(focus.evaluations.steps) - 0.5, heights)  # evaluated before the step
    return found


def thinned(steps: Sequence[int], columns: int = 600) -> np.ndarray:
    """The sorted steps, thinned to one in each of `columns` columns of equal width; few steps are all kept."""
    array = np.array(steps)
    if len(array) <= columns:
        return array
    width = math.ceil((array[-1] - array[0] + 1) / columns)
    return array[np.unique((array - array[0]) // width, return_index=True)[1]]


def thresholds(name: str, screen: Screen, say: Callable[[str], str] = str) -> list[Threshold]:
    """The limits that the run's settings put on a metric, with every change."""
    steps = [step for step, _ in screen.settings]
    made = []
    for limit, label, line in _LIMITS.get(name, ()):
        values = [limit(config) for _, config in screen.settings]
        last = next((value for value in reversed(values) if not math.isnan(value)), None)
        if last is not None:
            made.append(Threshold(say(label).format(last), line, steps, values))
    return made


def scale_of(name: str, values: np.ndarray, steady: bool = False) -> Scale:
    """The axis for these values: whole decades, or a margin around the values. Any values give a drawable axis.

    The limits of a `steady` linear axis are 1, 2, 5, 10 …, so that it seldom changes during a run.
    """
    finite = values[np.abs(values) < HUGE]
    room = int(len(finite) < len(values))  # a cross at the edge must be above every number
    kind = SCALES[name]
    if kind == "log":
        return _log(finite[finite > 1e-30], room)
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


def _log(positive: np.ndarray, room: int) -> Scale:
    top = math.ceil(math.log10(1.5 * positive.max())) + room if len(positive) else 1
    bottom = min(top - 1 - room, math.floor(math.log10(positive.min() / 1.5))) if len(positive) else -1
    return Scale("log", 10.0 ** max(bottom, top - 12), 10.0**top)


def _symlog(smallest: float, largest: float, room: int) -> Scale:
    """Linear up to 1 and logarithmic above: a KL may be 0 or negative, and explode."""
    up = math.floor(math.log10(max(largest, 1))) + 1 + room
    down = math.floor(math.log10(-smallest)) + 1 if smallest < -1 else -1
    low, high = (-(10.0**down) if down >= 0 else min(0.0, smallest)), 10.0**up
    stride = math.ceil((up + down + 2) / 6)
    first = stride if stride > 2 else 0  # the labels around 0 must not overlap
    above, below = range(first, up + 1, stride), range(first, down + 1, stride)
    return Scale("symlog", low, high, (0.0, *(10.0**k for k in above), *(-(10.0**k) for k in below)))


def _set_scale(axes: Axes, scale: Scale) -> None:
    if scale.kind == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=7))
        axes.yaxis.set_minor_locator(NullLocator())
    elif scale.kind == "symlog":
        axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_locator(FixedLocator(scale.ticks))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylim(scale.low, scale.high)


def _moving(axes: Axes, name: str, found: Points, look: style.Look, say: Callable[[str], str]) -> None:
    """Draw the moving points, each artist with its gid."""
    held_out = {"marker": "D", "ls": "none", "mfc": "white", "mec": style.BLUE, "mew": 1.8, "ms": 8, "zorder": 4}
    for gid, (x, y) in found.items():
        kind, _, rest = gid.partition(" ")
        if kind == "curve":
            options = {"color": look.colour, "ls": look.line, "lw": 1.8, "ms": 4.5}
            options["marker"] = look.marker if len(x) <= style.FINE else "none"
        elif kind == "cross":
            options = {"color": look.colour, "marker": "x", "ls": "none", "ms": 11, "mew": 2.5, "zorder": 5}
            options["label"] = say("NaN or inf")
        elif kind == "mark":
            options = {**style.mark(rest), "ms": 9, "zorder": 6}
        else:
            options = {**held_out, "label": say("held-out problems")}
        axes.plot(x, y, gid=gid, clip_on=False, **options)


def _clamped(values: np.ndarray, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """The values clipped to the axis, and which of them were finite."""
    low, high = scale.low, scale.high
    finite = np.abs(values) < HUGE  # False for NaN too
    return np.clip(np.where(finite, values, np.where(values < 0, low, high)), low, high), finite


def _limits(axes: Axes, limits: list[Threshold], end: int) -> None:
    for limit in limits:
        options: dict[str, Any] = {"color": style.GREY, "ls": limit.line, "lw": 1.3, "label": limit.label}
        starts = [*limit.steps, end]
        parts = [
            (start - 0.5, stop - 0.5, value)
            for (start, stop), value in zip(pairwise(starts), limit.values, strict=True)
        ]
        x = [edge for start, stop, _ in parts for edge in (start, stop)]
        axes.plot(x, [value for *_, value in parts for _ in range(2)], gid=f"limit {limit.label}", **options)


def _happenings(axes: Axes, screen: Screen, say: Callable[[str], str]) -> None:
    """Draw lines at changed settings and at the crash."""
    for step in thinned(screen.marked("changed"), 100):
        axes.axvline(step - 0.5, color="black", lw=1.1, ls="-.", gid="changed")
    if screen.crash_step is not None:
        axes.axvline(screen.crash_step, color=style.VERMILLION, lw=1.6, ls=":", gid="crash")
        right = screen.crash_step < sum(axes.get_xlim()) / 2
        options = {"color": style.VERMILLION, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
        place = {"at": (screen.crash_step, 0.07), "xycoords": axes.get_xaxis_transform()}
        style.annotate(axes, say("crash"), right=right, gap=5, **place, **options)


def _legend(axes: Axes) -> None:
    """Put the legend in the line of the title, outside the curves; a label of several runs appears once."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    if once:
        ncols = len(once) if style.figure_of(axes)[1] > 1.3 * len(once) else 2  # the title is in the same line
        place = {"loc": "lower right", "bbox_to_anchor": (1.02, 1.045)}
        tight = {"handlelength": 1.4, "handletextpad": 0.3, "columnspacing": 0.8}
        axes.legend(once.values(), once.keys(), ncols=ncols, **{**style.PLAIN, **tight, **place})
