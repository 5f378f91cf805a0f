"""The strip of the chain: links x steps, from the sampling probabilities to torch.multinomial."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from grpo_lab.analysis.run_state import MULTINOMIAL, Screen
from grpo_lab.metrics import LINKS
from grpo_lab.runs.first_break import ChainBreak
from grpo_lab.ui.plots import style
from grpo_lab.ui.plots.curves import Points, thinned

ROWS = {**{name: link.label for name, link in LINKS.items()}, MULTINOMIAL: MULTINOMIAL, "": "guards and changes"}
"""The rows from top to bottom; the last one holds marks."""
_ORDER = list(ROWS)
GROUPS = {"sampling and rewards": 3, "loss": 8, "gradients": 3, "weights": 3}
"""The rows of a strip for beginners: neighbouring links, and their number."""
BANDS = {
    grouped: [
        (name, end - size, end - 1) for (name, size), end in zip(rows.items(), accumulate(rows.values()), strict=True)
    ]
    for grouped, rows in ((False, dict.fromkeys(list(ROWS.values())[:-1], 1)), (True, GROUPS))
}
"""The rows that are seen in a strip: name, first and last link; without the one of marks."""
Say = Callable[[str], str]
_CODES = {status: code for code, status in enumerate(style.STATUSES)}
_COLUMNS = 600
_NOT_USED = -2


def span(screens: Collection[Screen], room: int = 10) -> tuple[int, int]:
    """The first step to show and the one after the last.

    A run that ended early leaves room for its planned steps, at most `room`, doubled until the steps fit; before the
    first event, `room` steps are shown.
    """
    steps = [step for screen in screens for step in (*screen.statuses, screen.step) if step >= 0]
    steps += [screen.crash_step for screen in screens if screen.crash_step is not None]
    first, end = min(steps, default=0), max(steps, default=0) + 1
    while room < end - first:
        room *= 2
    planned = max((screen.num_steps for screen in screens), default=0) or (0 if steps else room)
    return first, max(end, min(planned, first + room))


def draw(
    axes: Axes, screen: Screen, steps: tuple[int, int], names: bool = True, say: Say = str, grouped: bool = False
) -> None:
    """Draw the statuses as cells, outline and name the first break, and mark the actions of guards below."""
    first, end = steps
    cells, width = grid(screen, first, end, grouped)
    colours = ListedColormap(list(style.STATUSES.values()))
    extent = (first - 0.5, first - 0.5 + cells.shape[1] * width, len(ROWS) - 1.5, -0.5)
    options: dict[str, Any] = {"cmap": colours, "vmin": 0, "vmax": len(style.STATUSES) - 1, "interpolation": "nearest"}
    axes.imshow(cells, aspect="auto", extent=extent, gid="cells", **options)
    axes.hlines([last + 0.5 for *_, last in BANDS[grouped]], first - 0.5, end - 0.5, color="white", lw=1.5)
    if _fine(axes, first, end):
        axes.vlines(np.arange(first, end) + 0.5, -0.5, len(ROWS) - 1.5, color="white", lw=1.5)
    for gid, (x, y) in points(axes, screen, steps, cells).items():
        kind = gid.removeprefix("mark ")
        cross = {"ls": "none", "marker": "x", "ms": 6, "mew": 1.8, "mec": "white"}
        look = {**style.mark(kind), "ms": {"acted": 5, "by design": 6}.get(kind, 8)} if kind in style.MARKS else cross
        axes.plot(x, y, gid=gid, **look)
    _frame(axes, grouped, first, end, names, say)
    _first_break(axes, screen, first, end, say, grouped)


def points(axes: Axes, screen: Screen, steps: tuple[int, int], cells: np.ndarray) -> Points:
    """The moving points of the strip: crosses on broken cells, where steps are few, and every kind of mark."""
    found: Points = {}
    if _fine(axes, *steps):
        rows, columns = np.nonzero((cells == _CODES["broken"]) | (cells == _CODES["broken later"]))
        found["broken"] = (columns + steps[0], rows)
    for kind in style.MARKS:
        between = 0.5 if kind == "changed" else 0.0  # settings change before a step
        marked = thinned(screen.marked(kind)) - between
        found[f"mark {kind}"] = (marked, np.full(len(marked), len(ROWS) - 1))
    return found


def grid(screen: Screen, first: int, end: int, grouped: bool = False) -> tuple[np.ndarray, int]:
    """(links, columns) codes, each the worst in its column, and of its group, and the number of steps in a column.

    A link that a step did not note though it went on past it, such as clipped gradients without clipping, is not used.
    """
    width = math.ceil((end - first) / _COLUMNS)
    count = math.ceil((end - first) / width)
    rows = {id(row): row for row in screen.statuses.values()}  # most steps share one object: each is encoded once
    number = {key: index for index, key in enumerate(rows, start=1)}
    codes = [_codes(row) for row in rows.values()]
    steps = np.fromiter(screen.statuses, dtype=int)
    numbers = np.fromiter(map(number.__getitem__, map(id, screen.statuses.values())), dtype=int)
    inside = (steps >= first) & (steps < end)
    by_step = np.zeros(count * width, dtype=int)
    by_step[steps[inside] - first] = numbers[inside]
    table = np.array([[-1] * (len(ROWS) - 1), *codes])
    by_step_and_link = table[by_step]
    _fade(by_step_and_link, screen.first_break, first)
    cells = by_step_and_link.reshape(count, width, -1).max(1).T
    for _, top, bottom in BANDS[grouped]:
        cells[top : bottom + 1] = cells[top : bottom + 1].max(0)
    cells = np.where(cells == _NOT_USED, _CODES["not used"], cells)
    return np.where(cells < 0, _CODES["not reached"], cells), width


def _fade(codes: np.ndarray, found: ChainBreak | None, first: int) -> None:
    """Fade the links of the table (steps from `first`, links) that broke after the first break; never the crash."""
    if found and found.link in LINKS:
        later = codes[max(0, found.step - first) :] == _CODES["broken"]
        later[:, _ORDER.index(MULTINOMIAL)] = False
        if found.step >= first:
            later[:1, _ORDER.index(found.link)] = False
        codes[max(0, found.step - first) :][later] = _CODES["broken later"]


def _codes(row: Mapping[str, str]) -> list[int]:
    """The code of each link in a step; -1 where the step did not get so far, -2 where it went on without the link.

    Logits say nothing about how far it got: sampling has them before there are rewards. A step that reached the weights
    without sampling, as in SFT, went on without torch.multinomial.
    """
    codes = [_CODES.get(row.get(link, ""), -1) for link in _ORDER[:-1]]
    reached = max((place for place, link in enumerate(LINKS) if link in row and link != "logits"), default=-1)
    reached = len(_ORDER) if "weights" in row else reached
    return [_NOT_USED if code < 0 and place < reached else code for place, code in enumerate(codes)]


def legend(
    axes: Axes,
    screens: Iterable[Screen],
    raised: float = 0.0,
    say: Callable[[str], str] = str,
    columns: int | None = None,
) -> None:
    """Write the legend of the colours, and of the marks that occur, in a line above the strip (`raised` inches higher).

    With `columns`, the legend has this number of columns, the strip's right edge, and no title.
    """
    kinds = frozenset[str]().union(*(screen.kinds() for screen in screens))
    outlined = {"not used": style.GREY}
    handles: list[Any] = [
        Patch(facecolor=colour, edgecolor=outlined.get(status, colour), label=say(status))
        for status, colour in style.STATUSES.items()
    ]
    labels = {"acted": "guard acted", "by design": "acted by design", "changed": "settings changed"}
    for kind in filter(kinds.__contains__, style.MARKS):
        handles.append(Line2D([], [], **style.mark(kind), ms=8, label=say(labels.get(kind, kind))))
    figure, _ = style.figure_of(axes)
    box, height = axes.get_position(), figure.get_size_inches()[1]
    ncols, side, x = (columns, "right", box.x1) if columns else (len(handles), "left", box.x0)
    place: dict[str, Any] = {"loc": f"lower {side}", "bbox_to_anchor": (x, box.y1 + (0.1 + raised) / height)}
    tight = len(handles) > 4 * ncols  # five lines stand in the height of four
    sizes = {"fontsize": style.SMALL - (1.4 if tight else 0.7), "labelspacing": 0.0 if tight else 0.2}
    small = {**sizes, "columnspacing": 0.9} if columns else {}
    figure.legend(
        handles=handles, ncols=ncols, handlelength=1.1, handletextpad=0.5, **{**place, **style.PLAIN, **small}
    )
    if columns is None:
        figure.text(0.015, box.y1 + (0.18 + raised) / height, say("The chain"), fontsize=style.LARGE, va="center")


def _fine(axes: Axes, first: int, end: int) -> bool:
    return end - first <= style.FINE * style.figure_of(axes)[1] / 10


def _frame(axes: Axes, grouped: bool, first: int, end: int, names: bool, say: Callable[[str], str]) -> None:
    axes.set_xlim(first - 0.5, end - 0.5)
    axes.set_ylim(len(ROWS) - 0.5, -0.5)
    bands = [*BANDS[grouped], (ROWS[""], len(ROWS) - 1, len(ROWS) - 1)]
    labels = [say(label) if names else "" for label, *_ in bands]
    axes.set_yticks([(top + bottom) / 2 for _, top, bottom in bands], labels, fontsize=style.NORMAL - 1)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=style.SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12 if names else 6))
    axes.set_xlabel(say("step"), fontsize=style.NORMAL)
    axes.spines[:].set_visible(False)


def _first_break(axes: Axes, screen: Screen, first: int, end: int, say: Callable[[str], str], grouped: bool) -> None:
    found, narrow = screen.first_break, (end - first) * 0.008
    if found and found.link in ROWS:
        width = max(1.0, narrow)
        top, bottom = next((a, b) for _, a, b in BANDS[grouped] if b >= _ORDER.index(found.link))
        corner = (found.step - width / 2, top - 0.5)
        look: dict[str, Any] = {"fill": False, "ec": "black", "lw": 2.5, "zorder": 6, "clip_on": False}
        axes.add_patch(Rectangle(corner, width, bottom + 1 - top, gid="first break", **look))
        words = say("first break: step {}").format(found.step)
        _beside(axes, words, found.step, (top + bottom) / 2, width / 2, first, end)
    if screen.crash_step is not None:
        end_of_chain = screen.statuses.get(screen.crash_step, {}).get(MULTINOMIAL) == "broken"
        row = _ORDER.index(MULTINOMIAL if end_of_chain else "")
        _beside(axes, say("crash"), screen.crash_step, row, max(0.5, narrow), first, end, color=style.VERMILLION)


def _beside(
    axes: Axes, text: str, step: int, row: float, gap: float, first: int, end: int, color: str = "black"
) -> None:
    right = step < (first + end) / 2
    x = step + gap if right else step - gap
    box = {"facecolor": "white", "edgecolor": color, "boxstyle": "square,pad=0.12", "alpha": 0.95}
    style.annotate(axes, text, (x, row), right, 6, va="center_baseline", color=color, zorder=7, bbox=box)
