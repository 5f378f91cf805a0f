"""Figures of runs: curves with the actions of guards, and below them the chain, link by link.

Agg figures without pyplot, so that any thread may own one. A value that is not finite is a cross at the edge of its
axis. Every colour has a shape or a text beside it.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from grpo_lab.analysis.run_state import Screen, fold
from grpo_lab.analysis.screen_words import describe, tone
from grpo_lab.events import Event
from grpo_lab.metrics import LINKS
from grpo_lab.ui.plots import curves, strip, style
from grpo_lab.ui.plots.heat_map import heat_map_figure  # noqa: F401, a name of this package
from grpo_lab.ui.plots.rewards import objectives_figure, rewards_figure, rewards_in_words  # noqa: F401

_TONES = {"good": style.GREEN, "calm": style.BLUE, "odd": style.ORANGE, "bad": style.VERMILLION}
_LEFT, _RIGHT = 0.165, 0.985


def run_figure(events: Iterable[Event], title: str = "") -> Figure:
    """A figure of one run: gradient norm, KL, reward and largest ratio, and below them the strip of the chain."""
    screen = fold(events)
    figure = _headed(screen, title, 11.2)
    for name, axes in curves.panels(figure, top=1.25).items():
        curves.draw(axes, name, {"": screen}, strip.span([screen]))
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


def alt_text(events: Iterable[Event]) -> str:
    """The alternative text of these events' figure, in two sentences."""
    return describe(fold(events))


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
