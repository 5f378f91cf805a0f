"""The figure of the before/after table: the reward of every run, one plot a scenario."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_lab.analysis.run_state import Screen, fold
from grpo_lab.analysis.screen_words import status_words
from grpo_lab.events import Event
from grpo_lab.messages import text
from grpo_lab.ui.plots import style

Runs = Mapping[str, Mapping[str, Iterable[Event]]]
WINDOW = 3
"""Steps over which the curve is the mean."""


def rewards_figure(groups: Runs, num_steps: int) -> Figure:
    """A figure of runs by scenario and column: training reward against the step, and the held-out reward at the end.

    A cross marks a crash. The last column is drawn boldest.
    """
    figure = style.new_figure(4.6)
    names = list(next(iter(groups.values()), {}))
    style.write(figure, 0.3, "The reward of each run: cause, reported fix, guards, heal", 100, fontsize=style.TITLE)
    style.name_runs(figure, names, 0.015, 0.5, 4, handlelength=2.6)
    axes = figure.subplots(1, max(1, len(groups)), sharey=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.06, right=0.985, top=0.74, bottom=0.13, wspace=0.06)
    for place, (scenario, runs) in zip(axes, groups.items(), strict=True):
        screens = {name: fold(events) for name, events in runs.items()}
        place.set_title(scenario, fontsize=style.LARGE, loc="left", fontweight="bold")
        place.set(xlim=(-0.5, num_steps + 0.5), ylim=(-0.03, 1.0), xlabel="step")
        place.grid(alpha=0.25)
        for look, (name, screen) in zip(style.looks(screens), screens.items(), strict=True):
            _draw(place, look, screen, width=3.4 if name == names[-1] else 2.0)
    axes[0].set_ylabel(f"reward (mean of {WINDOW} steps)")
    return figure


def _draw(axes: Axes, look: style.Look, screen: Screen, width: float) -> None:
    steps, values = screen.series.get("reward", ((), ()))
    line = {"color": look.colour, "ls": look.line, "lw": width}
    axes.plot(steps, smooth(values, WINDOW), marker=look.marker, ms=4, markevery=5, **line)
    if screen.crash_step is not None:
        last = next((value for value in reversed(values) if math.isfinite(value)), 0.0)
        axes.plot([screen.crash_step], [last], **style.mark("crashed"), ms=13)
    if len(screen.evaluations.values) > 1:
        at, reward = screen.evaluations.steps[-1], screen.evaluations.values[-1]
        axes.plot([at], [reward], marker=look.marker, ms=11, mfc=look.colour, mec="black", clip_on=False)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and those before it in the window."""
    windows = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def rewards_in_words(groups: Runs) -> str:
    """The alternative text of the figure: held-out reward before and after, or the crash, of every run."""
    return " ".join(
        text("reproduction.runs", scenario=scenario, runs=text("summary.comma").join(_results(runs)))
        for scenario, runs in groups.items()
    )


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
