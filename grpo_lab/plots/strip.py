"""The strip of the chain: links x steps, from the sampling probabilities down to torch.multinomial."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from grpo_lab.dashboard import MULTINOMIAL, Screen
from grpo_lab.events import LINKS
from grpo_lab.plots.style import FINE, LARGE, MARKS, NORMAL, PLAIN, SMALL, STATUSES, VERMILLION, legible

ROWS = {**{name: link.label for name, link in LINKS.items()}, MULTINOMIAL: MULTINOMIAL, "": "guards and changes"}
"""The strip from top to bottom; the last row holds marks."""
_ORDER = list(ROWS)
_CODES = {status: code for code, status in enumerate(STATUSES)}
_COLUMNS = 600


def span(screens: Collection[Screen]) -> tuple[int, int]:
    """First step to show and the one after the last; a run cut short leaves room for some of what it did not reach."""
    steps = [step for screen in screens for step in (*screen.statuses, screen.step) if step >= 0]
    steps += [screen.crash_step for screen in screens if screen.crash_step is not None]
    first, end = min(steps, default=0), max(steps, default=0) + 1
    room = 10
    while room < end - first:
        room *= 2
    planned = max((screen.num_steps for screen in screens), default=0)
    return first, max(end, min(planned, first + room))


def draw(axes: Axes, screen: Screen, steps: tuple[int, int], names: bool = True) -> None:
    """The statuses as cells, the first break outlined and named, and below them what guards did."""
    first, end = steps
    cells, width = grid(screen, first, end)
    colours = ListedColormap(list(STATUSES.values()))
    extent = (first - 0.5, first - 0.5 + cells.shape[1] * width, len(ROWS) - 1.5, -0.5)
    style: dict[str, Any] = {"cmap": colours, "vmin": 0, "vmax": len(STATUSES) - 1, "interpolation": "nearest"}
    axes.imshow(cells, aspect="auto", extent=extent, gid="cells", **style)
    axes.hlines(np.arange(len(ROWS) - 1) + 0.5, first - 0.5, end - 0.5, color="white", lw=1.5)
    inches = axes.get_position().width * 12
    if end - first <= FINE * inches / 10:
        axes.vlines(np.arange(first, end) + 0.5, -0.5, len(ROWS) - 1.5, color="white", lw=1.5)
        rows, columns = np.nonzero(cells == _CODES["broken"])
        axes.plot(columns + first, rows, "x", color="white", ms=6, mew=1.8, gid="broken")
    for kind, look in MARKS.items():
        between = 0.5 if kind == "changed" else 0.0  # settings change before a step
        marked = [step - between for step in screen.marked(kind)]
        size = 6 if kind == "acted" else 8
        edge = look.colour if kind == "acted" else "black"
        axes.plot(
            marked, [len(ROWS) - 1] * len(marked), look.marker, ms=size, mfc=look.colour, mec=edge, gid=f"mark {kind}"
        )
    _frame(axes, screen, first, end, names)
    _first_break(axes, screen, first, end)


def grid(screen: Screen, first: int, end: int) -> tuple[np.ndarray, int]:
    """(links, columns) codes, the worst of the steps of a column, and how many steps a column holds."""
    width = math.ceil((end - first) / _COLUMNS)
    cells = np.full((len(ROWS) - 1, math.ceil((end - first) / width)), -1)
    for step, row in screen.statuses.items():
        for link, status in row.items():
            if link in ROWS and first <= step < end:
                place = _ORDER.index(link), (step - first) // width
                cells[place] = max(cells[place], _CODES[status])
    cells[cells < 0] = _CODES["not reached"]
    return cells, width


def legend(axes: Axes, screens: Iterable[Screen], raised: float = 0.0) -> None:
    """What the colours mean, and those marks that occur, in a line above the strip (`raised` inches higher)."""
    kinds = {mark.kind for screen in screens for mark in screen.marks}
    handles: list[Any] = [Patch(facecolor=colour, label=status) for status, colour in STATUSES.items()]
    for kind, look in MARKS.items():
        if kind in kinds:
            label = {"acted": "guard acted", "changed": "settings changed"}.get(kind, kind)
            edge = look.colour if kind == "acted" else "black"
            handles.append(Line2D([], [], ls="none", marker=look.marker, mfc=look.colour, mec=edge, ms=8, label=label))
    figure = axes.get_figure(root=True)
    assert figure is not None
    box, height = axes.get_position(), figure.get_size_inches()[1]
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (box.x0, box.y1 + (0.1 + raised) / height)}
    figure.legend(handles=handles, ncols=len(handles), handlelength=1.1, handletextpad=0.5, **place, **PLAIN)
    figure.text(0.015, box.y1 + (0.18 + raised) / height, "The chain", fontsize=LARGE, va="center")


def _frame(axes: Axes, screen: Screen, first: int, end: int, names: bool) -> None:
    axes.set_xlim(first - 0.5, end - 0.5)
    axes.set_ylim(len(ROWS) - 0.5, -0.5)
    axes.set_yticks(range(len(ROWS)), list(ROWS.values()) if names else [""] * len(ROWS), fontsize=NORMAL - 1)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12 if names else 6))
    axes.set_xlabel("step", fontsize=NORMAL)
    axes.spines[:].set_visible(False)


def _first_break(axes: Axes, screen: Screen, first: int, end: int) -> None:
    """Outline the first broken cell and the crash, and say beside them what they are."""
    found, narrow = screen.first_break, (end - first) * 0.008
    if found and found.link in ROWS:
        width = max(1.0, narrow)
        corner = (found.step - width / 2, _ORDER.index(found.link) - 0.5)
        axes.add_patch(
            Rectangle(corner, width, 1, fill=False, ec="black", lw=2.5, gid="first break", zorder=6, clip_on=False)
        )
        _beside(axes, f"first break: step {found.step}", found.step, _ORDER.index(found.link), width / 2, first, end)
    if screen.crash_step is not None:
        end_of_chain = screen.statuses.get(screen.crash_step, {}).get(MULTINOMIAL) == "broken"
        row = _ORDER.index(MULTINOMIAL if end_of_chain else "")
        _beside(axes, "crash", screen.crash_step, row, max(0.5, narrow), first, end, color=VERMILLION)


def _beside(axes: Axes, text: str, step: int, row: int, gap: float, first: int, end: int, color: str = "black") -> None:
    right = step < (first + end) / 2
    x = step + gap if right else step - gap
    box = {"facecolor": "white", "edgecolor": color, "boxstyle": "square,pad=0.12", "alpha": 0.95}
    style: dict[str, Any] = {"fontsize": SMALL, "fontweight": "bold", "color": color, "zorder": 7, "bbox": box}
    align = {"ha": "left" if right else "right", "va": "center_baseline"}
    offset = (6 if right else -6, 0)
    axes.annotate(legible(text), (x, row), xytext=offset, textcoords="offset points", **align, **style)
