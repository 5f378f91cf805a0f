"""What all figures share: colours after Okabe and Ito, shapes beside them, and text that matplotlib can draw."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, findSystemFonts, fontManager, get_font

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE, GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#6E6E6E"
SMALL, NORMAL, LARGE, TITLE = 9.5, 11, 12, 16
_CHINESE = ("NotoSansCJK-Regular", "NotoSansSC-Regular", "SourceHanSansSC-Regular", "wqy-microhei", "msyh", "PingFang")
FINE = 60
"""Up to this many steps each one is drawn with its own symbol."""
PLAIN: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "borderaxespad": 0, "columnspacing": 1.2}


class Look(NamedTuple):
    """How one run, or one kind of mark, differs from another."""

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
STATUSES = {"healthy": GREEN, "warning": YELLOW, "broken": VERMILLION, "not reached": "#E4E4E4"}
MARKS = {
    "acted": Look(BLUE, "none", "|"),
    "skipped": Look(ORANGE, "none", "v"),
    "rolled back": Look(PURPLE, "none", "<"),
    "stopped": Look(BLACK, "none", "s"),
    "changed": Look(BLACK, "none", "d"),
    "crashed": Look(VERMILLION, "none", "X"),
}


def looks(runs: Collection[Any]) -> list[Look]:
    """A look for each run, in order."""
    return [RUNS[index % len(RUNS)] for index in range(len(runs))]


def new_figure(height: float) -> Figure:
    """An empty figure, 12 inches wide, which at 100 dpi is 1200 pixels."""
    figure = Figure(figsize=(12, height), dpi=100, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def write(figure: Figure, below_top: float, text: str, length: int = 110, **style: Any) -> None:
    """Put a line of text so many inches below the top edge."""
    height = figure.get_size_inches()[1]
    figure.text(style.pop("x", 0.015), 1 - below_top / height, legible(text, length), va="center", **style)


@functools.cache
def chinese_font() -> str:
    """The family of an installed font with Chinese letters, or nothing."""
    files = {Path(path).stem: path for path in findSystemFonts()}
    found = next((files[stem] for stem in _CHINESE if stem in files), None)
    if not found:
        return ""
    before = len(fontManager.ttflist)
    fontManager.addfont(found)  # matplotlib's own list may be older than the font; a collection adds several
    names = [entry.name for entry in fontManager.ttflist[before:]]
    return next((name for name in names if name.endswith(" SC") and "Mono" not in name), names[0])


def legible(text: str, length: int = 110) -> str:
    """The text as matplotlib can draw it: no line breaks, no mathematics, no letter its own font lacks.

    >>> legible("costs $5 运行", 40)
    'costs \\\\$5 ??'
    """
    text = " ".join(text.split())
    text = text if len(text) <= length else text[: length - 1].rstrip() + "…"
    known = get_font(findfont("DejaVu Sans")).get_charmap()
    return "".join(letter if ord(letter) in known else "?" for letter in text).replace("$", r"\$")
