"""Curves of several runs over each other: a plot for each scenario of a before/after table, or for each objective."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from grpo_lab.analysis.run_state import Screen, Series, fold
from grpo_lab.analysis.screen_words import status_words
from grpo_lab.config.schema import planned_steps
from grpo_lab.events import Event
from grpo_lab.messages import text
from grpo_lab.metrics import METRICS, of_objective
from grpo_lab.ui.plots import style

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
            _draw_objective(axes, metric, objective, screen, look, bold=not place)
        _stages(axes, screens[0].settings[0][1] if screens and screens[0].settings else {})
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


def _draw_objective(axes: Axes, metric: str, objective: str, screen: Screen, look: style.Look, bold: bool) -> None:
    steps, values = screen.series.get(of_objective(metric, objective), Series())
    width, front = (2.8, 4) if bold else (1.5, 3)
    axes.plot(steps, smooth(values, 9), color=look.colour, ls=look.line, lw=width, zorder=front)
    if metric == "reward":
        evaluated = screen.evaluations_of.get(objective, Series())
        held = {"mec": "black", "mfc": look.colour, "ms": 10 if bold else 7, "clip_on": False, "zorder": front + 1}
        axes.plot([step - 0.5 for step in evaluated.steps], evaluated.values, ls="none", marker=look.marker, **held)


def _stages(axes: Axes, config: Mapping[str, Any]) -> None:
    begin = 0
    for stage, steps in planned_steps(config).items():
        if begin:
            axes.axvline(begin - 0.5, color=style.GREY, lw=1, ls=":")
        at, where = (begin + steps / 2, 1.0), ("data", "axes fraction")
        axes.annotate(stage.upper(), at, (0, 4), where, "offset points", ha="center", color=style.GREY)
        begin += steps
    axes.set_xlim(-1 - 0.01 * begin, 1.02 * max(1, begin))


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
