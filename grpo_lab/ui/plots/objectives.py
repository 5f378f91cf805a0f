"""The curves of several objectives: a plot each, with the runs over each other, held-out rewards and KL bands."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from grpo_lab.config.schema import planned_steps
from grpo_lab.events import Evaluated, Event, Started, Stepped
from grpo_lab.metrics import METRICS, of_objective
from grpo_lab.ui.plots import style
from grpo_lab.ui.plots.rewards import smooth

WINDOW = 9
"""Steps over which a curve is the mean."""
LINEAR = 0.01
"""Below this KL its axis is linear, so that 0 has a place."""
Runs = Mapping[str, Sequence[Event]]


def objectives_figure(metric: str, runs: Runs, bands: Mapping[str, tuple[float, float] | None], title: str) -> Figure:
    """A figure of one metric, a plot for each objective in `bands`; the first run is drawn boldest.

    With `reward` diamonds are held-out rewards; otherwise bands are shaded and the axis is logarithmic.
    """
    rows = (len(runs) + 4) // 5
    figure = style.new_figure(4.9 + 0.26 * (rows - 1))
    height = figure.get_size_inches()[1]
    style.write(figure, 0.3, title, 100, fontsize=style.TITLE)
    style.name_runs(figure, list(runs), 0.015, 0.5, 5, handlelength=2.6)
    plots = figure.subplots(1, len(bands), sharey=True, squeeze=False)[0]
    top = 1 - (0.95 + 0.26 * rows) / height
    figure.subplots_adjust(left=0.06, right=0.985, top=top, bottom=0.62 / height, wspace=0.06)
    for axes, (objective, band) in zip(plots, bands.items(), strict=True):
        axes.set_title(objective, fontsize=style.LARGE, loc="left", fontweight="bold")
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
        if metric != "reward":
            axes.set_yscale("symlog", linthresh=LINEAR)
            axes.yaxis.set(minor_locator=NullLocator(), major_formatter=StrMethodFormatter("{x:g}"))
            axes.set_ylim(bottom=0)
            if band:
                axes.axhspan(*band, color=style.GREEN, alpha=0.18, lw=0)
        for place, (look, events) in enumerate(zip(style.looks(runs), runs.values(), strict=True)):
            _draw(axes, metric, objective, events, look, bold=not place)
        _stages(axes, next(iter(runs.values()), ()))
    plots[0].set_ylabel(f"{METRICS[metric].label} (mean of {WINDOW} steps)")
    return figure


def _draw(axes: Axes, metric: str, objective: str, events: Sequence[Event], look: style.Look, bold: bool) -> None:
    """Draw a run's curve, and with rewards a diamond for each evaluation, which is made before its step."""
    name = of_objective(metric, objective)
    found = [(e.step, e.metrics[name]) for e in events if isinstance(e, Stepped) and name in e.metrics]
    steps, values = zip(*found, strict=True) if found else ((), ())
    width, front = (2.8, 4) if bold else (1.5, 3)
    axes.plot(steps, smooth(values, WINDOW), color=look.colour, ls=look.line, lw=width, zorder=front)
    if metric == "reward":
        evaluated = [e for e in events if isinstance(e, Evaluated) and objective in e.objectives]
        held = {"mec": "black", "mfc": look.colour, "ms": 10 if bold else 7, "clip_on": False, "zorder": front + 1}
        places, heights = [e.step - 0.5 for e in evaluated], [e.objectives[objective] for e in evaluated]
        axes.plot(places, heights, ls="none", marker=look.marker, **held)


def _stages(axes: Axes, events: Sequence[Event]) -> None:
    """Separate and name the stages of a run."""
    started = next((event for event in events if isinstance(event, Started)), None)
    begin = 0
    for stage, steps in planned_steps(started.config if started else {}).items():
        if begin:
            axes.axvline(begin - 0.5, color=style.GREY, lw=1, ls=":")
        at = (begin + steps / 2, 1.0)
        axes.annotate(
            stage.upper(), at, (0, 4), ("data", "axes fraction"), "offset points", ha="center", color=style.GREY
        )
        begin += steps
    axes.set_xlim(-1 - 0.01 * begin, 1.02 * max(1, begin))
