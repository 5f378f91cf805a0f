"""The matrix as a heat map: scenarios x columns of guards; colours are the share of seeds that were stopped."""

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from grpo_lab.analysis.matrix import HEALTHY, NONE, REPORTED, STABLE, Fate, Findings
from grpo_lab.ui.plots.style import BLUE, GREY, NORMAL, ORANGE, PLAIN, SMALL, TITLE, legible, new_figure, write

LETTERS = {
    Fate.REFUSED: "r",
    Fate.IDLE: "i",
    Fate.SHOWN: "s",
    Fate.BROKEN: "b",
    Fate.HALTED: "h",
    Fate.CRASHED: "x",
    Fate.FAILED: "?",
}
"""The letter of a cell whose failure was stopped on no seed: the most frequent fate."""
_SCALE = LinearSegmentedColormap.from_list("stopped", ["#F4F4F4", "#9CC7E4", BLUE])
_LEFT, _CELL = 2.35, 0.27
"""Inches: room for the names of scenarios, and the height of a cell."""


def heat_map_figure(found: Findings) -> Figure:
    """A figure with a row for each scenario, the healthy run on top, and a column for each set of guards."""
    names, what = found.scenarios, "guard" if found.of_guards else "algorithm"
    top, bottom = 3.35 if found.has_healthy else 2.95, 0.75
    figure = new_figure(height := top + _CELL * max(1, len(names)) + bottom)
    write(figure, 0.35, f"Which {what} stops which failure", 70, fontsize=TITLE, fontweight="bold")
    subtitle = f"Share of {found.seeds} seeds in which the failure was stopped; cells show the number of seeds"
    write(figure, 0.7, subtitle, 150, fontsize=NORMAL, color="#333333")
    width, panels = (12 - _LEFT - 0.2) / 12, []
    if found.has_healthy:
        panels.append(figure.add_axes((_LEFT / 12, 1 - (top - 0.1) / height, width, _CELL / height)))
        _alarms(panels[-1], found)
    if names:
        panels.append(figure.add_axes((_LEFT / 12, bottom / height, width, _CELL * len(names) / height)))
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
    for line, text in enumerate(texts):
        figure.text(0.3, (0.48 - 0.22 * line) / height, text, fontsize=SMALL, va="center")
