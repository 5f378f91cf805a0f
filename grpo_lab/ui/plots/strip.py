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
Cell = tuple[str, int, int | None]
"""A link, step and update; no update where a step has one column."""
_CODES = {status: code for code, status in enumerate(style.STATUSES)}
_COLUMNS = 600
_NOT_USED = -2


BEFORE_A_RUN = 50
"""Most steps of an empty axis."""


def span(screens: Collection[Screen], room: int = 10) -> tuple[int, int]:
    """The first step to show and the one after the last.

    A run leaves room for its planned steps, at most `room`, doubled until the steps fit; before the first event, `room`
    steps are shown, at most BEFORE_A_RUN. Runs that are over, and made no more than a quarter of them, fill the axis.
    """
    steps = [step for screen in screens for step in (*screen.statuses, screen.step) if step >= 0]
    steps += [screen.crash_step for screen in screens if screen.crash_step is not None]
    first, end = min(steps, default=0), max(steps, default=0) + 1
    while room < end - first:
        room *= 2
    planned = max((screen.num_steps for screen in screens), default=0) or (0 if steps else min(room, BEFORE_A_RUN))
    whole = max(end, min(planned, first + room))
    short = steps and all(screen.over for screen in screens) and 4 * (end - first) <= whole - first
    return first, end if short else whole


def columns(screen: Screen, steps: tuple[int, int], inches: float) -> int:
    """The columns of a step: one for each of its updates if that many fit into the width of the strip, else 1."""
    planned = [config.get("loss", {}).get("num_iterations", 1) for _, config in screen.settings]
    count = max([1, *planned, *(len(rows) - 1 for rows in screen.updates.values())])
    return count if _fits(count * (steps[1] - steps[0]), inches) else 1


def cell(screen: Screen, steps: tuple[int, int], inches: float, x: float, y: float) -> Cell:
    """The link, step and update of a cell at this place in data coordinates; no update where a step has one column.

    Of several steps in a column it is the first with the column's worst status.
    """
    link, each, (first, end) = _ORDER[min(max(0, round(y)), len(_ORDER) - 1)], columns(screen, steps, inches), steps
    inside = min(max(0.0, x + 0.5 - first), end - first - 0.001)
    if each > 1:
        return link, first + int(inside), int(inside % 1 * each)
    width = math.ceil((end - first) / _COLUMNS)
    begin = first + int(inside) // width * width
    found = [_CODES.get(screen.statuses.get(step, {}).get(link, ""), -1) for step in range(begin, begin + width)]
    return link, begin + found.index(max(found)), None


def draw(
    axes: Axes, screen: Screen, steps: tuple[int, int], names: bool = True, say: Say = str, grouped: bool = False
) -> None:
    """Draw the statuses as cells, outline and name the first break, and mark the actions of guards below."""
    (first, end), inches = steps, style.figure_of(axes)[1]
    each = columns(screen, steps, inches)
    cells, width = grid(screen, first, end, each, grouped)
    colours = ListedColormap(list(style.STATUSES.values()))
    extent = (first - 0.5, first - 0.5 + cells.shape[1] * width / each, len(ROWS) - 1.5, -0.5)
    options: dict[str, Any] = {"cmap": colours, "vmin": 0, "vmax": len(style.STATUSES) - 1, "interpolation": "nearest"}
    axes.imshow(cells, aspect="auto", extent=extent, gid="cells", **options)
    axes.hlines([last + 0.5 for *_, last in BANDS[grouped]], first - 0.5, end - 0.5, color="white", lw=1.5)
    if _fits(end - first, inches):
        edges = np.arange(each, each * (end - first + 1)) / each + first - 0.5
        axes.vlines(edges, -0.5, len(ROWS) - 1.5, color="white", lw=np.where(np.arange(len(edges)) % each, 0.6, 1.5))
    for gid, (x, y) in points(axes, screen, steps, cells).items():
        kind = gid.removeprefix("mark ")
        cross = {"ls": "none", "marker": "x", "ms": 6, "mew": 1.8, "mec": "white"}
        look = {**style.mark(kind), "ms": {"acted": 5, "by design": 6}.get(kind, 8)} if kind in style.MARKS else cross
        axes.plot(x, y, gid=gid, **look)
    axes.set_xlim(first - 0.5, end - 0.5)
    axes.set_ylim(len(ROWS) - 0.5, -0.5)
    bands = [*BANDS[grouped], (ROWS[""], len(ROWS) - 1, len(ROWS) - 1)]
    labels = [say(label) if names else "" for label, *_ in bands]
    axes.set_yticks([(top + bottom) / 2 for _, top, bottom in bands], labels, fontsize=style.NORMAL - 1)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=style.SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12 if names else 6))
    axes.set_xlabel(say("step, a column an update" if each > 1 else "step"), fontsize=style.NORMAL)
    axes.spines[:].set_visible(False)
    _first_break(axes, screen, first, end, each, say, grouped)


def points(axes: Axes, screen: Screen, steps: tuple[int, int], cells: np.ndarray) -> Points:
    """The moving points of the strip: crosses on broken cells, where steps are few, and every kind of mark."""
    found: Points = {}
    if _fits(steps[1] - steps[0], style.figure_of(axes)[1]):
        rows, places = np.nonzero((cells == _CODES["broken"]) | (cells == _CODES["broken later"]))
        each = max(1, round(cells.shape[1] / (steps[1] - steps[0])))
        found["broken"] = ((places + 0.5) / each - 0.5 + steps[0], rows)
    for kind in style.MARKS:
        between = 0.5 if kind in ("changed", "forked") else 0.0  # settings change before a step
        marked = thinned(screen.marked(kind)) - between
        found[f"mark {kind}"] = (marked, np.full(len(marked), len(ROWS) - 1))
    return found


def grid(screen: Screen, first: int, end: int, each: int = 1, grouped: bool = False) -> tuple[np.ndarray, int]:
    """(links, columns) codes, each the worst in its column, and of its group, and the number of steps in a column.

    A step has `each` columns, one an update. A link that a step did not note though it went on past it, such as clipped
    gradients without clipping, is not used.
    """
    width = math.ceil((end - first) / _COLUMNS)
    count = math.ceil((end - first) / width)
    shown = {step: row for step, row in screen.statuses.items() if first <= step < end}
    by_column = {
        (step - first) * each + part: screen.updates[step][min(part, len(screen.updates[step]) - 1)]
        if each > 1 and step in screen.updates
        else row
        for step, row in shown.items()
        for part in range(each)
    }
    rows = {id(row): row for row in by_column.values()}  # most steps share one object: each is encoded once
    number = {key: index for index, key in enumerate(rows, start=1)}
    codes = [_codes(row) for row in rows.values()]
    places = np.fromiter(by_column, dtype=int)
    numbers = np.fromiter(map(number.__getitem__, map(id, by_column.values())), dtype=int)
    by_place = np.zeros(count * width * each, dtype=int)
    by_place[places] = numbers
    table = np.array([[-1] * (len(ROWS) - 1), *codes])
    by_place_and_link = table[by_place]
    _fade(by_place_and_link, screen, first, each)
    cells = by_place_and_link.reshape(count * each, width, -1).max(1).T
    for _, top, bottom in BANDS[grouped]:
        cells[top : bottom + 1] = cells[top : bottom + 1].max(0)
    cells = np.where(cells == _NOT_USED, _CODES["not used"], cells)
    return np.where(cells < 0, _CODES["not reached"], cells), width


def _fade(codes: np.ndarray, screen: Screen, first: int, each: int) -> None:
    """Fade the links of the table (columns from `first`, links) that broke after the first break; never the crash."""
    found = screen.first_break
    if found and found.link in LINKS:
        link, begin = _ORDER.index(found.link), (found.step - first) * each
        later = codes[max(0, begin) :] == _CODES["broken"]
        later[:, _ORDER.index(MULTINOMIAL)] = False
        if begin >= 0:
            at, size = _part(screen, found, each)
            later[at : at + size, link] = False
        codes[max(0, begin) :][later] = _CODES["broken later"]


def _part(screen: Screen, found: ChainBreak, each: int) -> tuple[int, int]:
    """The column of the first break in its step, and its width: that of the step for a link that is noted once."""
    rows = screen.updates.get(found.step, ())
    once = each == 1 or not rows or (all(found.link in row for row in rows) and len({id(row) for row in rows}) == 1)
    return (0, each) if once else (found.update, 1)


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
    say: Say = str,
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


def _fits(count: int, inches: float) -> bool:
    return count <= style.FINE * inches / 10


def _first_break(axes: Axes, screen: Screen, first: int, end: int, each: int, say: Say, grouped: bool) -> None:
    found, narrow = screen.first_break, (end - first) * 0.008
    if found and found.link in ROWS:
        at, size = _part(screen, found, each)
        width, middle = max(size / each, narrow), found.step - 0.5 + (at + size / 2) / each
        row = _outline(axes, found.link, middle - width / 2, width, grouped, ec="black", lw=2.5, gid="first break")
        words = say("first break" if each > 1 else "first break: step {}").format(found.step)
        _beside(axes, words, middle, row, width / 2, first, end)
    if screen.crash_step is not None:
        end_of_chain = screen.statuses.get(screen.crash_step, {}).get(MULTINOMIAL) == "broken"
        row = _ORDER.index(MULTINOMIAL if end_of_chain else "")
        _beside(axes, say("crash"), screen.crash_step, row, max(0.5, narrow), first, end, color=style.VERMILLION)


def mark_opened(axes: Axes, screen: Screen, steps: tuple[int, int], cell: Cell, grouped: bool) -> None:
    """Outline the cell whose anatomy is open."""
    (link, step, update), (first, end) = cell, steps
    each = columns(screen, steps, style.figure_of(axes)[1])
    part, width = (0, 1.0) if update is None else (update / each, 1 / each)
    more = max(0.0, 0.02 * (end - first) - width)  # a cell of many is too narrow to be seen
    left = step - 0.5 + part - more / 2
    _outline(axes, link, left, width + more, grouped, ec="black", lw=2.5, gid="opened")


def _outline(axes: Axes, link: str, left: float, width: float, grouped: bool, **look: Any) -> float:
    """Outline a link, or its group, from `left` on; return the middle of its rows."""
    top, bottom = next((a, b) for _, a, b in BANDS[grouped] if b >= _ORDER.index(link))
    corner = (left, top - 0.5)
    axes.add_patch(Rectangle(corner, width, bottom + 1 - top, fill=False, zorder=6, clip_on=False, **look))
    return (top + bottom) / 2


def _beside(
    axes: Axes, text: str, step: float, row: float, gap: float, first: int, end: int, color: str = "black"
) -> None:
    right = step < (first + end) / 2
    x = step + gap if right else step - gap
    box = {"facecolor": "white", "edgecolor": color, "boxstyle": "square,pad=0.12", "alpha": 0.95}
    style.annotate(axes, text, (x, row), right, 6, va="center_baseline", color=color, zorder=7, bbox=box)
