"""Shared by all figures: the colours of Okabe and Ito, a shape for each, and text that matplotlib can draw."""

import functools
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, findSystemFonts, fontManager, get_font
from matplotlib.lines import Line2D

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE, GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#6E6E6E"
SMALL, NORMAL, LARGE, TITLE = 9.5, 11, 12, 16
_CHINESE = (
    *("NotoSansCJK-Regular", "NotoSansSC-Regular", "SourceHanSansSC-Regular", "wqy-microhei", "wqy-zenhei"),
    *("msyh", "Deng", "simhei", "PingFang", "Hiragino Sans GB", "STHeiti Medium", "NotoSerifCJK-Regular"),
)
"""Files of fonts with Chinese letters on Linux, Windows and macOS, the best first."""
FINE = 60
"""Up to this many steps, each step has a symbol."""
PLAIN: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "borderaxespad": 0, "columnspacing": 1.2}

DRAWING = threading.RLock()
"""Held while fonts are in use: all threads share one FreeType, which breaks when two of them open fonts at once."""


class Canvas(FigureCanvasAgg):
    """A canvas that is drawn, saved or shown by one thread at a time, whichever figures the other threads draw."""

    def draw(self) -> None:
        """Draw the figure."""
        with DRAWING:
            super().draw()

    def print_figure(self, *args: Any, **kwargs: Any) -> Any:
        """Write the figure, as `savefig` and a notebook ask for it."""
        with DRAWING:
            return super().print_figure(*args, **kwargs)


class Look(NamedTuple):
    """The look of one run, or of one kind of mark."""

    colour: str
    line: Any
    marker: str


RUNS = (
    Look(BLUE, "-", "o"),
    Look(VERMILLION, "--", "s"),
    Look(GREEN, "-.", "^"),
    Look(PURPLE, ":", "D"),
    Look(ORANGE, (0, (5, 1, 1, 1, 1, 1)), "P"),
    Look(SKY, (0, (8, 2)), "v"),
    Look(BLACK, (0, (1, 1)), "*"),
)
FAINT = Look("#B7B7B7", "-", "none")
STATUSES = {"healthy": GREEN, "warning": YELLOW, "broken later": "#FFCCA0", "broken": VERMILLION}
STATUSES |= {"not reached": "#DCDCDC", "not used": "#FFFFFF"}
"""Cells of the chain. Links that break after the first break are faded, so that the first one stands out."""
MARKS = {
    "by design": Look(GREY, "none", "|"),
    "acted": Look(BLUE, "none", "o"),
    "skipped": Look(ORANGE, "none", "v"),
    "rolled back": Look(PURPLE, "none", "<"),
    "stopped": Look(BLACK, "none", "s"),
    "changed": Look(BLACK, "none", "d"),
    "forked": Look(BLACK, "none", "P"),
    "crashed": Look(VERMILLION, "none", "X"),
}


GHOST = "last run"
"""The name of a run that is drawn faintly."""


def looks(runs: Collection[Any]) -> list[Look]:
    """A look for each run, in order."""
    return [FAINT if run == GHOST else RUNS[index % len(RUNS)] for index, run in enumerate(runs)]


def new_figure(height: float) -> Figure:
    """An empty figure, 12 inches wide, which at 100 dpi is 1200 pixels."""
    figure = Figure(figsize=(12, height), dpi=100, facecolor="white")
    Canvas(figure)
    return figure


def write(figure: Figure, below_top: float, text: str, length: int = 110, **style: Any) -> None:
    """Write a line of text `below_top` inches below the top edge."""
    height = figure.get_size_inches()[1]
    figure.text(style.pop("x", 0.015), 1 - below_top / height, legible(text, length), va="center", **style)


def name_runs(figure: Figure, names: Sequence[str], left: float, below_top: float, ncols: int, **style: Any) -> None:
    """Write the legend of several runs `below_top` inches below the top edge; `keys` have a look in place of names."""
    keys = style.pop("keys", names)
    handles = [Line2D([], [], color=look.colour, ls=look.line, marker=look.marker, lw=2) for look in looks(keys)]
    place = {"loc": "upper left", "bbox_to_anchor": (left, 1 - below_top / figure.get_size_inches()[1])}
    figure.legend(handles, names, ncols=ncols, **{**PLAIN, "fontsize": NORMAL, **place, **style})


def mark(kind: str) -> dict[str, Any]:
    """The arguments with which a line draws marks of this kind."""
    look = MARKS[kind]
    edge = look.colour if look.marker == "|" else "black"
    return {"ls": "none", "marker": look.marker, "mfc": look.colour, "mec": edge}


def figure_of(axes: Axes) -> tuple[Figure, float]:
    """The figure of these axes, and the width of the axes in inches."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure, axes.get_position().width * figure.get_size_inches()[0]


def annotate(axes: Axes, text: str, at: tuple[float, float], right: bool, gap: float, **style: Any) -> None:
    """Write a small bold text `gap` points to the right, or to the left, of a point."""
    look: dict[str, Any] = {"fontsize": SMALL, "fontweight": "bold", "ha": "left" if right else "right"}
    axes.annotate(text, at, xytext=(gap if right else -gap, 0), textcoords="offset points", **{**look, **style})


@functools.cache
def chinese_font() -> str:
    """The family of an installed font with Chinese letters; empty if there is none."""
    files = {Path(path).stem: path for path in findSystemFonts()}
    found = next((files[stem] for stem in _CHINESE if stem in files), None)
    if not found:
        return ""
    before = len(fontManager.ttflist)
    with DRAWING:
        fontManager.addfont(found)  # matplotlib's list may be older than the font; a collection adds several
    names = [entry.name for entry in fontManager.ttflist[before:]]
    return next((name for name in names if name.endswith(" SC") and "Mono" not in name), names[0])


def legible(text: str, length: int = 110, fonts: Sequence[str] = ("DejaVu Sans",)) -> str:
    """The text as matplotlib can draw it: on one line, without mathematics and letters that its fonts lack.

    >>> legible("costs $5 运行", 40)
    'costs \\\\$5 ??'
    """
    text = " ".join(text.split())
    text = text if len(text) <= length else text[: length - 1].rstrip() + "…"
    with DRAWING:
        known = {letter for font in fonts for letter in get_font(findfont(font)).get_charmap()}
    return "".join(letter if ord(letter) in known else "?" for letter in text).replace("$", r"\$")
