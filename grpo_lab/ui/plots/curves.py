"""The curves of runs over their steps, with the limits of guards, refused steps, changes and the crash."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from matplotlib.transforms import Transform

from grpo_lab.analysis.run_state import BY_OBJECTIVE, CURVES, Screen, Series, decimate
from grpo_lab.metrics import METRICS
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui.plots import style

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


REFUSED = ("skipped", "rolled back", "stopped")
NAMED = ("grad_norm", "reward")
"""The panels in which the names of guards are written."""
MOST_NAMES = 5
ABOVE = ("rescued by", "limit words", "changed words")
"""The gids of the texts that stand above moving curves."""
RESCUE: dict[str, Any] = {"color": style.BLUE, "lw": 1.2, "ls": (0, (4, 3))}


_LIMITS = {
    "grad_norm": (
        ("clip_gradients.max_norm", "clipped to {:g}", "--"),
        ("skip_spikes.threshold", "skipped above {:g}", ":"),
    ),
    "ratio/max": (("epsilon", "clipped above {:g}", "--"),),
}
"""The limits on a metric: a guard's setting or the loss's epsilon, the words beside it, and its line."""


class Threshold(NamedTuple):
    """A limit in force: `values[i]` from `steps[i]` on; NaN where its guard was off."""

    label: str
    line: str
    steps: list[int]
    values: list[float]

    @property
    def last(self) -> float:
        """The last value in force."""
        return next(value for value in reversed(self.values) if not math.isnan(value))


Points = dict[str, tuple[np.ndarray, np.ndarray]]
"""Points that move during a run: (x, y) by the gid of their artist."""


def rows_of(name: str, screen: Screen) -> list[Series]:
    """The decimated curves of one panel: of each objective, or of the run."""
    return [decimate(screen.series.get(own, Series())) for own in screen.curves(name)]


def panels(figure: Figure, top: float, tall: float = 4.35, left: float = 0.06, right: float = 0.985) -> dict[str, Axes]:
    """Axes for the four curves: `tall` inches in all, from `top` inches below the top edge of the figure."""
    height = figure.get_size_inches()[1]
    place = {"left": left, "right": right, "top": 1 - top / height, "bottom": 1 - (top + tall) / height}
    grid = figure.add_gridspec(2, 2, hspace=0.38, wspace=0.22, **place)
    return {name: figure.add_subplot(grid[divmod(index, 2)]) for index, name in enumerate(CURVES)}


def draw(
    axes: Axes,
    name: str,
    screens: Mapping[str, Screen],
    span: tuple[int, int],
    focus: Screen | None = None,
    scale: Scale | None = None,
    say: Callable[[str], str] = str,
    units: bool = True,
) -> None:
    """Draw one metric of every run in one panel; of the run in `focus` also its limits, changes and crash.

    Where one is in focus, every run shows its held-out reward, the others faded. Of objectives each has its own curve:
    its line is that of its place, its colour too where the run is alone.

    A single run is always in focus. `scale` replaces the scale that fits the values, `say` translates labels.
    """
    focus = next(iter(screens.values())) if len(screens) == 1 else focus
    rows = [series for screen in screens.values() for series in rows_of(name, screen)]
    scale = scale or scale_of(name, numbers(name, rows, focus, screens.values()))
    set_scale(axes, scale)
    for look, screen in reversed(list(zip(style.looks(screens), screens.values(), strict=True))):
        kept = screen is not focus
        found = points(name, rows_of(name, screen), scale, screen, kept, bool(focus))
        _moving(axes, found, _looks_of(name, screen, None if len(screens) == 1 else look, look), say, kept)
    named = name in BY_OBJECTIVE and _draw_objectives(axes, name, screens, span[1])
    metric = METRICS[name]
    title = f"{say(metric.label)} ({say(metric.unit)})" if metric.unit and units else say(metric.label)
    axes.set_title(title, fontsize=style.LARGE, loc="left", pad=9)
    axes.set_xlim(span[0] - 0.5, span[1] - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.tick_params(labelsize=style.SMALL)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if focus:
        for limit in thresholds(name, focus, say):
            x = [step - 0.5 for part in pairwise([*limit.steps, span[1]]) for step in part]
            line: dict[str, Any] = {"color": style.GREY, "ls": limit.line, "lw": 1.3}
            axes.plot(x, np.repeat(limit.values, 2), gid=f"limit {limit.label}", **line)
            words: dict[str, Any] = {"fontweight": "normal", "color": style.GREY, "va": "center", "gid": "limit words"}
            words |= {"path_effects": [withStroke(linewidth=2.5, foreground="white")], "zorder": 5}
            words["xycoords"] = axes.get_yaxis_transform()
            style.annotate(axes, limit.label, (1.0, limit.last), right=False, gap=1, **words)
        _happenings(axes, focus, say, named=name in NAMED)
        _rescues(axes, focus, named=name in NAMED)
    if focus or named:
        _legend(axes)


def numbers(name: str, rows: Iterable[Series], focus: Screen | None, screens: Iterable[Screen]) -> np.ndarray:
    """All numbers that a panel must show: of the curves, held-out problems and limits."""
    values = [value for series in rows for value in series.values]
    if focus and name == "reward":
        values += [value for screen in screens for each in _held_out(screen).values() for value in each.values]
    bands = [band for screen in screens for each in screen.objectives.values() for band in each if name == "kl"]
    values += [edge for _, *ends in bands for edge in ends if not math.isnan(edge)]
    if focus:
        values += [value for limit in thresholds(name, focus) for value in limit.values if not math.isnan(value)]
    return np.array(values, dtype=float)


def points(
    name: str, rows: Sequence[Series], scale: Scale, screen: Screen, kept: bool = False, more: bool = True
) -> Points:
    """The curves, crosses where they are not finite, and with `more` held-out rewards and, unless kept, refusals."""
    found: Points = {}
    for own, series in zip(screen.curves(name), rows, strict=True):
        steps, values = np.array(series.steps), np.array(series.values, dtype=float)
        drawn, finite = placed(values, scale)
        found[f"curve {own}"] = (steps, drawn)
        if not finite.all():
            found[f"cross {own}"] = (steps[~finite], drawn[~finite])
    if more and not kept and name == "grad_norm":
        norms = dict(zip(*screen.series.get(name, Series()), strict=True))
        for kind in REFUSED:
            few = thinned([step for step in screen.marked(kind) if step in norms])  # without a norm there is no height
            if len(few):
                found[f"mark {kind}"] = (few, placed(np.array([norms[step] for step in few]), scale)[0])
    if more and name == "reward":
        for own, held in _held_out(screen).items():
            heights, _ = placed(np.array(held.values, dtype=float), scale)
            gid = "held out" if own == name else f"held out {own}"
            found[gid] = (np.array(held.steps) - 0.5, heights)  # evaluated before the step
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
    for setting, label, line in _LIMITS.get(name, ()):
        values = [_limit(setting, config) for _, config in screen.settings]
        if not all(map(math.isnan, values)):
            found = Threshold(say(label), line, steps, values)
            made.append(found._replace(label=found.label.format(found.last)))
    return made


def _limit(setting: str, config: Mapping[str, Any]) -> float:
    """The limit that a config sets; NaN where its guard is off."""
    if setting == "epsilon":
        loss = config.get("loss", {})
        high = loss.get("epsilon_high")
        return 1 + float(loss.get("epsilon", math.nan) if high is None else high)
    guard, _, name = setting.partition(".")
    return config.get("guards", {}).get(guard, {name: math.nan}).get(name, getattr(GUARDS[guard], name))


def _moving(axes: Axes, found: Points, looks: Mapping[str, style.Look], say: Callable[[str], str], kept: bool) -> None:
    held_out = {"marker": "D", "ls": "none", "mfc": "white", "mew": 1.8, "ms": 8, "zorder": 4}
    held_out |= {"alpha": 0.5, "ms": 7, "zorder": 3} if kept else {}
    for gid, (x, y) in found.items():
        kind, _, rest = gid.partition(" ")
        look = looks.get(rest.rpartition(" ")[2]) or next(iter(looks.values()))
        if kind == "curve":
            options = {"color": look.colour, "ls": look.line, "lw": 1.8, "ms": 4.5}
            options["marker"] = look.marker if len(x) <= style.FINE else "none"
        elif kind == "cross":
            options = {"color": look.colour, "marker": "x", "ls": "none", "ms": 11, "mew": 2.5, "zorder": 7}
            options["label"] = say("NaN or inf")
        elif kind == "mark":
            options = {**style.mark(rest), "ms": 9, "zorder": 6}
        else:
            options = {**held_out, "mec": look.colour, "label": say("held-out problems")}
        axes.plot(x, y, gid=gid, clip_on=False, **options)


def _happenings(axes: Axes, screen: Screen, say: Callable[[str], str], named: bool) -> None:
    for step in thinned(screen.marked("changed"), 100):
        axes.axvline(step - 0.5, color="black", lw=1.1, ls="-.", gid="changed")
    changes = [(mark.step, each) for mark in screen.marks if mark.kind == "changed" for each in mark.text.split(", ")]
    for step, words in changes[-MOST_NAMES:] if named else ():
        short = words.partition(".")[2] if "=" in words.partition(".")[2] else words
        _name(axes, step - 0.5, style.legible(short, 26), style.BLACK, "changed words")
    lines = [(step - 0.5, "fork", "black", "-") for step in screen.marked("forked")]
    lines += [] if screen.crash_step is None else [(screen.crash_step, "crash", style.VERMILLION, ":")]
    for at, words, colour, line in lines:
        axes.axvline(at, color=colour, lw=1.6, ls=line, gid=words)
        options = {"color": colour, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
        place = {"at": (at, 0.07), "xycoords": axes.get_xaxis_transform()}
        style.annotate(axes, say(words), right=at < sum(axes.get_xlim()) / 2, gap=5, **place, **options)


def rescues(screen: Screen) -> list[tuple[int, str]]:
    """The first step of each guard that did what healthy runs do not need, and its name; at the end with its steps."""
    names = [(tally.since, name.rpartition(":")[2], tally.steps) for name, tally in screen.rescues()]
    return [(since, f"{name} ×{steps}" if screen.over else name) for since, name, steps in names]


def _rescues(axes: Axes, screen: Screen, named: bool) -> None:
    """Draw a line where a guard began to act, and write its name beside it, one below the other."""
    found = rescues(screen)
    for since in sorted({since for since, _ in found}):
        place = {"marker": "v", "markevery": [1], "ms": 8, "clip_on": False, "zorder": 3}
        axes.plot([since] * 2, [0, 1], transform=axes.get_xaxis_transform(), **RESCUE, **place, gid="rescue")
    if not named:
        return
    names = found if len(found) <= MOST_NAMES else [*found[: MOST_NAMES - 1], (found[MOST_NAMES - 1][0], "…")]
    for since, words in names:
        _name(axes, since, words, style.BLUE, "rescued by")


def _name(axes: Axes, step: float, words: str, colour: str, gid: str) -> None:
    """Write a name beside a line at a step; `keep_clear` finds its height."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    at = {"at": (step, 1.0), "xycoords": axes.get_xaxis_transform(), "right": step < sum(axes.get_xlim()) / 2, "gap": 7}
    style.annotate(axes, words, **at, va="center", color=colour, bbox=box, zorder=7, gid=gid)


def keep_clear(axes: Axes) -> None:
    """Move names of guards and changes, and words of limits, to where they cover neither a curve nor each other."""
    lines = [line for line in axes.lines if str(line.get_gid()).startswith(("curve", "held out"))]
    paths = [line.get_transform().transform_path(line.get_path()) for line in lines if len(line.get_path())]
    covered = np.concatenate([np.empty((0, 2)), *(path.interpolated(10).vertices for path in paths)])
    frame = np.array(axes.bbox.get_points())
    corners = np.stack(np.meshgrid(np.linspace(0, 1, 20), (0.0, 0.5, 1.0)), -1).reshape(-1, 2)
    for words in (each for each in axes.texts if isinstance(each, Annotation) and each.get_gid() in ABOVE):
        with style.DRAWING:
            size = np.array(words.get_window_extent().size)
        (x, y), (gap, _), place = words.xy, words.xyann, cast(Transform, words.xycoords)
        places = [(x, side, -down) for side in (gap, -gap) for down in range(9, 130, 13)]
        if words.get_gid() == "limit words":
            places = [(x, gap, up) for up in (7, -7) for x, gap in ((1.0, -1), (0.0, 1), (0.6, -1))]
        tried: list[Any] = []
        for x, gap, up in places:
            at = place.transform((x, y)) + np.array((gap, up)) * axes.figure.dpi / 72
            low = at + size * np.array(((gap > 0) - 1, -0.5))
            hits = ((covered > low - 2) & (covered < low + size + 2)).all(1).sum()
            hits += 10**6 * ((low < frame[0] - 4) | (low + size > frame[1] + 4)).any()
            tried.append((hits, len(tried), x, gap, up, low))
            if not hits:
                break
        _, _, x, gap, up, low = min(tried)
        words.xy, words.xyann = (x, y), (gap, up)
        words.set_horizontalalignment("left" if gap > 0 else "right")
        covered = np.concatenate([covered, low + size * corners])


def _legend(axes: Axes) -> None:
    """Put the legend in the line of the title, outside the curves; a label of several runs appears once."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    if once:
        place = {"loc": "lower right", "bbox_to_anchor": (1.02, 1.045), "ncols": len(once)}
        tight = {"handlelength": 1.4, "handletextpad": 0.3, "columnspacing": 0.8}
        axes.legend(once.values(), once.keys(), **{**style.PLAIN, **tight, **place})


def _looks_of(name: str, screen: Screen, run: style.Look | None, alone: style.Look) -> dict[str, style.Look]:
    """The look of each curve of a screen: objectives keep the colour and symbol of their `run` if there are several."""
    drawn = screen.curves(name)
    if not any(drawn.values()):
        return {name: alone}
    of_each = dict(zip(drawn, style.looks(drawn), strict=True))
    return {own: run._replace(line=look.line) if run else look for own, look in of_each.items()}


def _draw_objectives(axes: Axes, name: str, screens: Mapping[str, Screen], end: int) -> bool:
    """Draw the KL bands of objectives and name their lines; whether there are any."""
    names = dict.fromkeys(each for screen in screens.values() for each in screen.curves(name).values() if each)
    for objective, look in zip(names, style.looks(names), strict=True):
        colour = look.colour if len(screens) == 1 else style.GREY
        marker = look.marker if len(screens) == 1 else "none"
        axes.plot([], [], color=colour, ls=look.line, marker=marker, ms=4.5, label=objective)
        spans = {screen.objectives.get(objective, ()) for screen in screens.values()} if name == "kl" else ()
        for bands in filter(None, spans):
            for (start, low, high), stop in zip(bands, [*(band.step for band in bands[1:]), end], strict=True):
                place = {"alpha": 0.16, "lw": 0, "zorder": 0.5, "gid": f"band {objective}"}
                axes.fill_between([start - 0.5, stop - 0.5], low, high, color=colour, **place)
            if not math.isnan(bands[-1].low):
                at = {"xycoords": axes.get_yaxis_transform(), "va": "center", "color": colour, "gid": "band words"}
                middle = (bands[-1].low + bands[-1].high) / 2
                style.annotate(axes, objective, (0.0, middle), right=True, gap=3, **at)
    return bool(names)


def _held_out(screen: Screen) -> dict[str, Series]:
    found = {own: screen.evaluations_of.get(each, Series()) for own, each in screen.curves("reward").items() if each}
    return {own: held for own, held in (found or {"reward": screen.evaluations}).items() if held.steps}
