"""Figures of runs: the curves with what guards did to them, and below them the chain, link by link.

Agg figures without pyplot, so that any thread may own one. A value that is not finite is drawn at the edge of its axis
with a cross; nothing is said by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_lab.analysis.run_state import Screen, decimate, describe, fold
from grpo_lab.events import Event
from grpo_lab.metrics import LINKS
from grpo_lab.ui.plots import curves, strip
from grpo_lab.ui.plots.heat_map import heat_map_figure, heat_map_in_words
from grpo_lab.ui.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    NORMAL,
    ORANGE,
    PLAIN,
    TITLE,
    VERMILLION,
    legible,
    looks,
    new_figure,
    write,
)

__all__ = [
    "alt_text",
    "comparison_figure",
    "decimate",
    "heat_map_figure",
    "heat_map_in_words",
    "run_figure",
    "save",
    "strip_figure",
]

_CALM = {"healthy": GREEN, "done": GREEN, "stopped": BLUE, "waiting": GREY, "starting": GREY}
_BROKEN = ("crashed", "poisoned", "failed")
_LEFT, _RIGHT = 0.165, 0.985


def run_figure(events: Iterable[Event], title: str = "") -> Figure:
    """One run: gradient norm, KL, reward and largest ratio, and below them the strip of the chain."""
    screen, height = fold(events), 11.2
    figure, steps = new_figure(height), strip.span([screen])
    _header(figure, title or screen.name or "a run", screen)
    for name, axes in curves.panels(figure, top=1.25).items():
        curves.draw(axes, name, {"": screen}, steps)
    axes = figure.add_axes((_LEFT, 0.55 / height, _RIGHT - _LEFT, 4.15 / height))
    strip.draw(axes, screen, steps)
    strip.legend(axes, [screen])
    return figure


def comparison_figure(runs: Mapping[str, Iterable[Event]], title: str = "") -> Figure:
    """The same curves of several runs over each other, and a strip for each, three in a row."""
    screens = {name: fold(events) for name, events in runs.items()}
    columns = min(3, max(1, len(screens)))
    rows = math.ceil(len(screens) / columns)
    names = [legible(name, 40) for name in screens]
    in_a_row = max(1, int(11.5 / (0.85 + 0.09 * max(map(len, names), default=0))))
    extra = 0.24 * max(0, math.ceil(len(names) / in_a_row) - 1)
    height = 6.6 + extra + 4.6 * rows
    figure, steps = new_figure(height), strip.span(list(screens.values()))
    write(figure, 0.35, title, 100, fontsize=TITLE, fontweight="bold")
    for name, axes in curves.panels(figure, top=1.35 + extra).items():
        curves.draw(axes, name, screens, steps)
    if not screens:
        return figure
    handles = [Line2D([], [], color=look.colour, ls=look.line, marker=look.marker, lw=2) for look in looks(screens)]
    style = {**PLAIN, "fontsize": NORMAL, "handlelength": 2.6}
    figure.legend(handles, names, ncols=in_a_row, loc="upper left", bbox_to_anchor=(0.015, 1 - 0.62 / height), **style)
    place = {"left": _LEFT, "right": _RIGHT, "top": 1 - (7.0 + extra) / height, "bottom": 0.55 / height}
    grid = figure.add_gridspec(rows, columns, wspace=0.05, hspace=0.3, **place)
    for index, (look, (name, screen)) in enumerate(zip(looks(screens), screens.items(), strict=True)):
        axes = figure.add_subplot(grid[divmod(index, columns)])
        strip.draw(axes, screen, steps, names=index % columns == 0)
        heading = "\n".join(legible(text, 100 // columns) for text in (name, screen.status))
        axes.set_title(heading, fontsize=NORMAL, loc="left", fontweight="bold", pad=9)
        axes.plot([0, 1], [1.015, 1.015], color=look.colour, lw=4, transform=axes.transAxes, clip_on=False)
        if index == 0:
            strip.legend(axes, screens.values(), raised=0.5)
    return figure


def strip_figure(events: Iterable[Event], title: str = "") -> Figure:
    """The chain alone: links x steps."""
    screen, height = fold(events), 5.9
    figure = new_figure(height)
    _header(figure, title or screen.name or "a run", screen)
    axes = figure.add_axes((_LEFT, 0.55 / height, _RIGHT - _LEFT, 3.9 / height))
    strip.draw(axes, screen, strip.span([screen]))
    strip.legend(axes, [screen])
    return figure


def alt_text(events: Iterable[Event]) -> str:
    """What the figure of these events shows, in two sentences, for a reader who cannot see it."""
    return describe(fold(events))


def save(figure: Figure, path: str | Path) -> Path:
    """Write a PNG, 1200 pixels wide, and make its folder; the same figure gives the same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=100, metadata={"Software": None})
    return path


def _header(figure: Figure, title: str, screen: Screen) -> None:
    """Title, the status as a badge, and one line that says what broke or why it ended."""
    broken = any(word in screen.status for word in _BROKEN)
    colour = VERMILLION if broken else _CALM.get(screen.status, ORANGE)
    write(figure, 0.35, title, 70, fontsize=TITLE, fontweight="bold")
    badge = {"facecolor": colour, "edgecolor": "none", "boxstyle": "round,pad=0.4"}
    ink = BLACK if colour == ORANGE else "white"
    style = {"fontsize": NORMAL + 1, "fontweight": "bold", "color": ink, "ha": "right", "bbox": badge}
    write(figure, 0.35, screen.status, 40, x=0.975, **style)
    found, line = screen.first_break, screen.message
    if found and found.link in LINKS:
        caught = f"caught by {found.caught_by}" if found.caught_by else "caught by no guard"
        place = f"{LINKS[found.link].label} at step {found.step}, update {found.update}"
        line = f"First break: {place}. Operator: {found.operator}; {caught}."
    if not line and not found and screen.completed:
        line = f"No link of the chain broke in {screen.completed} steps."
    write(figure, 0.72, line, 140, fontsize=NORMAL, color="#333333")
