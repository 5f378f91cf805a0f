"""Figures of runs: curves with the actions of guards, and below them the chain, link by link.

Agg figures without pyplot, so that any thread may own one. A value that is not finite is a cross at the edge of its
axis. Every colour has a shape or a text beside it.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator, StrMethodFormatter

from grpo_lab.analysis.matrix import HEALTHY, NONE, REPORTED, STABLE, Fate, Findings
from grpo_lab.analysis.run_state import Screen, Series, fold, status_words, tone
from grpo_lab.config.schema import planned_steps
from grpo_lab.events import Event
from grpo_lab.messages import text
from grpo_lab.metrics import LINKS, METRICS, of_objective
from grpo_lab.ui.plots import curves, strip, style
from grpo_lab.ui.plots.style import BLUE, GREY, NORMAL, ORANGE, PLAIN, SMALL, TITLE, legible, new_figure, write

_TONES = {"good": style.GREEN, "calm": style.BLUE, "odd": style.ORANGE, "bad": style.VERMILLION}
_LEFT, _RIGHT = 0.165, 0.985


def run_figure(events: Iterable[Event], title: str = "") -> Figure:
    """A figure of one run: gradient norm, KL, reward and largest ratio, and below them the strip of the chain."""
    screen = fold(events)
    figure = _headed(screen, title, 11.2)
    for name, axes in curves.panels(figure, top=1.25).items():
        curves.draw(axes, name, {"": screen}, strip.span([screen]))
        curves.keep_clear(axes)
    return _with_strip(figure, screen, 4.15)


def comparison_figure(runs: Mapping[str, Iterable[Event]], title: str = "") -> Figure:
    """A figure of several runs: their curves over each other, and a strip for each, three in a row."""
    screens = {name: fold(events) for name, events in runs.items()}
    columns = min(3, max(1, len(screens)))
    rows = math.ceil(len(screens) / columns)
    names = [style.legible(name, 40) for name in screens]
    in_a_row = max(1, int(11.5 / (0.85 + 0.09 * max(map(len, names), default=0))))
    extra = 0.24 * max(0, math.ceil(len(names) / in_a_row) - 1)
    height = 6.6 + extra + 4.6 * rows
    figure, steps = style.new_figure(height), strip.span(list(screens.values()))
    style.write(figure, 0.35, title, 100, fontsize=style.TITLE, fontweight="bold")
    for name, axes in curves.panels(figure, top=1.35 + extra).items():
        curves.draw(axes, name, screens, steps)
        curves.keep_clear(axes)
    if not screens:
        return figure
    style.name_runs(figure, names, 0.015, 0.62, in_a_row, handlelength=2.6)
    place = {"left": _LEFT, "right": _RIGHT, "top": 1 - (7.0 + extra) / height, "bottom": 0.55 / height}
    grid = figure.add_gridspec(rows, columns, wspace=0.05, hspace=0.3, **place)
    for index, (look, (name, screen)) in enumerate(zip(style.looks(screens), screens.items(), strict=True)):
        axes = figure.add_subplot(grid[divmod(index, columns)])
        strip.draw(axes, screen, steps, names=index % columns == 0)
        heading = "\n".join(style.legible(text, 100 // columns) for text in (name, screen.status))
        axes.set_title(heading, fontsize=style.NORMAL, loc="left", fontweight="bold", pad=9)
        axes.plot([0, 1], [1.015, 1.015], color=look.colour, lw=4, transform=axes.transAxes, clip_on=False)
        if index == 0:
            strip.legend(axes, screens.values(), raised=0.5)
    return figure


def strip_figure(events: Iterable[Event], title: str = "") -> Figure:
    """A figure of the chain alone: links x steps."""
    screen = fold(events)
    return _with_strip(_headed(screen, title, 5.9), screen, 3.9)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a PNG, 1200 pixels wide, and make its folder; equal figures give equal bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=100, metadata={"Software": None})
    return path


def _with_strip(figure: Figure, screen: Screen, tall: float) -> Figure:
    height = figure.get_size_inches()[1]
    axes = figure.add_axes((_LEFT, 0.55 / height, _RIGHT - _LEFT, tall / height))
    strip.draw(axes, screen, strip.span([screen]))
    strip.legend(axes, [screen])
    return figure


def _headed(screen: Screen, title: str, height: float) -> Figure:
    """An empty figure with a title, the status as a badge, and one line about the first break or the end."""
    figure = style.new_figure(height)
    colour = _TONES[tone(screen.status)]
    style.write(figure, 0.35, title or screen.name or "a run", 70, fontsize=style.TITLE, fontweight="bold")
    badge = {"facecolor": colour, "edgecolor": "none", "boxstyle": "round,pad=0.4"}
    ink = style.BLACK if colour == style.ORANGE else "white"
    options = {"fontsize": style.NORMAL + 1, "fontweight": "bold", "color": ink, "ha": "right", "bbox": badge}
    style.write(figure, 0.35, screen.status, 40, x=0.975, **options)
    found, line = screen.first_break, screen.message
    if found and found.link in LINKS:
        caught = f"caught by {found.caught_by}" if found.caught_by else "caught by no guard"
        place = f"{LINKS[found.link].label} at step {found.step}, update {found.update}"
        line = f"First break: {place}. Operator: {found.operator}; {caught}."
    if not line and not found and screen.completed:
        line = f"No link of the chain broke in {screen.completed} steps."
    style.write(figure, 0.72, line, 140, fontsize=style.NORMAL, color="#333333")
    return figure


LINEAR = 0.01
"""Below this KL its axis is linear, so that 0 has a place."""


def rewards_figure(groups: Mapping[str, Mapping[str, Iterable[Event]]], num_steps: int) -> Figure:
    """A figure of runs by scenario and column: training reward against the step, and the held-out reward at the end.

    A cross marks a crash. The last column is drawn boldest.
    """
    names = list(next(iter(groups.values()), {}))
    title = "The reward of each run: cause, reported fix, guards, heal"
    figure, plots = _plots(4.6, title, names, 4, groups, top=0.74, bottom=0.13)
    for axes, runs in zip(plots, groups.values(), strict=True):
        axes.set(xlim=(-0.5, num_steps + 0.5), ylim=(-0.03, 1.0))
        for look, (name, events) in zip(style.looks(runs), runs.items(), strict=True):
            screen = fold(events)
            steps, values = screen.series.get("reward", Series())
            line = {"color": look.colour, "ls": look.line, "lw": 3.4 if name == names[-1] else 2.0}
            axes.plot(steps, smooth(values, 3), marker=look.marker, ms=4, markevery=5, **line)
            if screen.crash_step is not None:
                last = next((value for value in reversed(values) if math.isfinite(value)), 0.0)
                axes.plot([screen.crash_step], [last], **style.mark("crashed"), ms=13)
            if len(screen.evaluations.values) > 1:
                at, reward = screen.evaluations.steps[-1], screen.evaluations.values[-1]
                axes.plot([at], [reward], marker=look.marker, ms=11, mfc=look.colour, mec="black", clip_on=False)
    plots[0].set_ylabel("reward (mean of 3 steps)")
    return figure


def objectives_figure(
    metric: str,
    runs: Mapping[str, Sequence[Event]],
    bands: Mapping[str, tuple[float, float] | None],
    title: str,
) -> Figure:
    """A figure of one metric, a plot for each objective in `bands`; the first run is drawn boldest.

    With `reward` diamonds are held-out rewards; otherwise bands are shaded and the axis is logarithmic.
    """
    screens, rows = list(map(fold, runs.values())), (len(runs) + 4) // 5
    height = 4.9 + 0.26 * (rows - 1)
    top = 1 - (0.95 + 0.26 * rows) / height
    figure, plots = _plots(height, title, list(runs), 5, bands, top=top, bottom=0.62 / height)
    for axes, (objective, band) in zip(plots, bands.items(), strict=True):
        if metric != "reward":
            axes.set_yscale("symlog", linthresh=LINEAR)
            axes.yaxis.set(minor_locator=NullLocator(), major_formatter=StrMethodFormatter("{x:g}"))
            axes.set_ylim(bottom=0)
            if band:
                axes.axhspan(*band, color=style.GREEN, alpha=0.18, lw=0)
        for place, (look, screen) in enumerate(zip(style.looks(runs), screens, strict=True)):
            steps, values = screen.series.get(of_objective(metric, objective), Series())
            width, front, size = (1.5, 3, 7) if place else (2.8, 4, 10)
            axes.plot(steps, smooth(values, 9), color=look.colour, ls=look.line, lw=width, zorder=front)
            if metric == "reward":
                evaluated = screen.evaluations_of.get(objective, Series())
                held = {"marker": look.marker, "mec": "black", "mfc": look.colour, "ms": size, "clip_on": False}
                before = [step - 0.5 for step in evaluated.steps]
                axes.plot(before, evaluated.values, ls="none", zorder=front + 1, **held)
        begin, planned = 0, screens[0].settings[0][1] if screens and screens[0].settings else {}
        for stage, length in planned_steps(planned).items():
            if begin:
                axes.axvline(begin - 0.5, color=style.GREY, lw=1, ls=":")
            at, where = (begin + length / 2, 1.0), ("data", "axes fraction")
            axes.annotate(stage.upper(), at, (0, 4), where, "offset points", ha="center", color=style.GREY)
            begin += length
        axes.set_xlim(-1 - 0.01 * begin, 1.02 * max(1, begin))
    plots[0].set_ylabel(f"{METRICS[metric].label} (mean of 9 steps)")
    return figure


def rewards_in_words(groups: Mapping[str, Mapping[str, Iterable[Event]]]) -> str:
    """The alternative text of the rewards: held-out reward before and after, or the crash, of every run."""
    return " ".join(
        text("reproduction.runs", scenario=scenario, runs=text("summary.comma").join(_results(runs)))
        for scenario, runs in groups.items()
    )


def smooth(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and those before it in the window."""
    windows = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def _plots(
    height: float, title: str, runs: Sequence[str], in_a_row: int, of: Collection[str], *, top: float, bottom: float
) -> tuple[Figure, Sequence[Axes]]:
    """A figure with a legend of the runs, and beside each other a plot of each name, with one y axis."""
    figure = style.new_figure(height)
    style.write(figure, 0.3, title, 100, fontsize=style.TITLE)
    style.name_runs(figure, runs, 0.015, 0.5, in_a_row, handlelength=2.6)
    plots = figure.subplots(1, max(1, len(of)), sharey=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.06, right=0.985, top=top, bottom=bottom, wspace=0.06)
    for axes, name in zip(plots, of, strict=False):
        axes.set_title(name, fontsize=style.LARGE, loc="left", fontweight="bold")
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
    return figure, plots[: len(of)] if of else plots


def _results(runs: Mapping[str, Iterable[Event]]) -> Iterator[str]:
    for name, events in runs.items():
        screen = fold(events)
        values = screen.evaluations.values
        if screen.crash_step is not None:
            yield text("reproduction.crashes", name=name, step=screen.crash_step)
        elif len(values) > 1:
            yield text("reproduction.goes", name=name, before=f"{values[0]:.2f}", after=f"{values[-1]:.2f}")
        else:
            yield f"{name} {status_words(screen.status)}"


LETTERS = {Fate.REFUSED: "r", Fate.IDLE: "i", Fate.SHOWN: "s", Fate.BROKEN: "b", Fate.HALTED: "h"}
LETTERS |= {Fate.CRASHED: "x", Fate.FAILED: "?"}
"""The letter of a cell whose failure was stopped on no seed: the most frequent fate."""
_SCALE = LinearSegmentedColormap.from_list("stopped", ["#F4F4F4", "#9CC7E4", BLUE])
_NAMES, _CELL = 2.35, 0.27
"""Inches: room for the names of scenarios, and the height of a cell."""


def heat_map_figure(found: Findings) -> Figure:
    """A figure with a row for each scenario, the healthy run on top, and a column for each set of guards."""
    names, what = found.scenarios, "guard" if found.of_guards else "algorithm"
    top, bottom = 3.35 if found.has_healthy else 2.95, 0.75
    figure = new_figure(height := top + _CELL * max(1, len(names)) + bottom)
    write(figure, 0.35, f"Which {what} stops which failure", 70, fontsize=TITLE, fontweight="bold")
    subtitle = f"Share of {found.seeds} seeds in which the failure was stopped; cells show the number of seeds"
    write(figure, 0.7, subtitle, 150, fontsize=NORMAL, color="#333333")
    width, panels = (12 - _NAMES - 0.2) / 12, []
    if found.has_healthy:
        panels.append(figure.add_axes((_NAMES / 12, 1 - (top - 0.1) / height, width, _CELL / height)))
        _alarms(panels[-1], found)
    if names:
        panels.append(figure.add_axes((_NAMES / 12, bottom / height, width, _CELL * len(names) / height)))
        _failures(panels[-1], found)
    if panels:
        _columns(panels, found)
    _legend(figure, height)
    return figure


def mark(found: Findings, name: str, column: str) -> str:
    """The text of a cell: the number of seeds in which the failure was stopped, or a letter of LETTERS."""
    fates = found.fates(name, column)
    if not fates:
        return "–" if found.cells(name, column) else ""
    return str(fates[Fate.STOPPED] or LETTERS[Fate(fates.most_common(1)[0][0])])


def _grid(axes: Axes, values: np.ndarray, names: list[str], scale: Any, gid: str) -> None:
    axes.set_facecolor("white")
    axes.imshow(values, cmap=scale, vmin=0, vmax=1, aspect="auto", interpolation="nearest", gid=gid)
    rows, columns = values.shape
    axes.hlines(np.arange(rows + 1) - 0.5, -0.5, columns - 0.5, color="white", lw=1.5)
    axes.vlines(np.arange(columns + 1) - 0.5, -0.5, rows - 0.5, color="white", lw=1.5)
    axes.set_yticks(range(len(names)), [legible(name, 30) for name in names], fontsize=SMALL)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _failures(axes: Axes, found: Findings) -> None:
    shares = np.array([[found.share(name, column) for column in found.columns] for name in found.scenarios])
    _grid(axes, shares, found.scenarios, _SCALE, "cells")
    for row, name in enumerate(found.scenarios):
        for index, column in enumerate(found.columns):
            _write(axes, index, row, mark(found, name, column), shares[row, index] > 0.85)


def _alarms(axes: Axes, found: Findings) -> None:
    """Draw the healthy run: its refused steps, in another colour."""
    alarms = [found.alarms(column) if found.cells(HEALTHY, column) else math.nan for column in found.columns]
    scale = LinearSegmentedColormap.from_list("alarms", ["#F4F4F4", ORANGE])
    _grid(axes, np.minimum([alarms], 1.0), ["healthy: false alarms"], scale, "alarms")
    for index, number in enumerate(alarms):
        _write(axes, index, 0, "" if math.isnan(number) else f"{number:.0f}", False)


def _write(axes: Axes, column: int, row: int, text: str, on_dark: bool) -> None:
    axes.text(column, row, text, ha="center", va="center", fontsize=SMALL - 1, color="white" if on_dark else "black")


def _columns(panels: list[Axes], found: Findings) -> None:
    """Write the names of the columns above the upper panel, turned, and draw lines between their kinds."""
    upper = panels[0]
    upper.xaxis.tick_top()
    labels = [legible(column, 34) for column in found.columns]
    upper.set_xticks(range(len(labels)), labels, rotation=90, fontsize=SMALL - 1)
    upper.tick_params(length=0)
    kinds = ["algorithm" if column in found.algorithms else _kind(column) for column in found.columns]
    edges = [index - 0.5 for index in range(1, len(kinds)) if kinds[index] != kinds[index - 1]]
    for panel in panels:
        low, high = sorted(panel.get_ylim())
        panel.vlines(edges, low, high, color=GREY, lw=1.2)


def _kind(column: str) -> str:
    if column in (NONE, REPORTED, STABLE):
        return column
    return "without" if column.startswith(STABLE) else "alone"


def _legend(figure: Figure, height: float) -> None:
    patches = [Patch(facecolor=_SCALE(share), edgecolor=GREY, label=f"{share:.0%}") for share in (0.0, 0.5, 1.0)]
    style = {**PLAIN, "ncols": 3, "loc": "lower left", "bbox_to_anchor": (0.015, 0.12 / height)}
    figure.legend(handles=patches, title="stopped", title_fontsize=SMALL, alignment="left", **style)
    words = ", ".join(f"{letter} {fate}" for fate, letter in LETTERS.items())
    texts = (f"Stopped on no seed: {words}.", "– the unguarded run did not fail.")
    for line, said in enumerate(texts):
        figure.text(0.3, (0.48 - 0.22 * line) / height, said, fontsize=SMALL, va="center")
