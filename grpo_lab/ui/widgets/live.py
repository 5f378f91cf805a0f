"""The live figure of a panel and the thread that draws it.

Moving points are drawn over a background, which is redrawn when an axis or a mark changes.

Limits of axes change by decades, by factors of 1, 2, 5, or double; so a run of any length needs a few dozen
backgrounds, each of which costs about ten frames.
"""

import functools
import io
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from PIL import Image

from grpo_lab import messages
from grpo_lab.analysis.run_state import CURVES, Screen
from grpo_lab.metrics import METRICS
from grpo_lab.ui.plots import curves, strip, style
from grpo_lab.ui.plots.curves import scale_of
from grpo_lab.ui.plots.style import DRAWING, FINE, GHOST, Canvas, chinese_font, legible, name_runs, new_figure

_INKS = (
    *(style.BLACK, style.ORANGE, style.SKY, style.GREEN, style.YELLOW),
    *(style.BLUE, style.VERMILLION, style.PURPLE, style.GREY),
)
_DARK_INKS = {style.BLACK: "#E4E4E4", style.BLUE: "#4DA6E0", style.GREY: "#A5A5A5", style.VERMILLION: "#F07A2A"}
"""Inks that a dark page needs lighter."""
_DARK = {"#FFFFFF": "#212121", "#DDDDDD": "#3C3C3C", "#DCDCDC": "#474747", "#333333": "#D0D0D0", "#FFCCA0": "#9C5A30"}
"""White becomes the background of JupyterLab's dark theme; other plain colours with it."""
_SHADES = 16
"""Steps from an ink to white, for the edges of lines and letters.

With 20 or more, Pillow's colour cache maps white to the nearest tint, and the background turns pink.
"""


def png(rgba: np.ndarray, dark: bool = False) -> bytes:
    """The pixels, (height, width, 4) of uint8, as an indexed PNG; every colour becomes a near one of the palette."""
    height, width = rgba.shape[:2]
    palette, darkened = _palettes()
    image = Image.frombytes("RGB", (width, height), rgba, "raw", "RGBX")
    image = image.quantize(palette=palette, dither=Image.Dither.NONE)
    if dark:
        image.putpalette(darkened)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@functools.cache
def _palettes() -> tuple[Image.Image, bytes]:
    """Inks in all shades, and every colour of lines and cells as it is; white first, so that it wins a tie.

    The second palette has the colour for a dark page at each place.
    """
    looks = (*style.RUNS, *style.MARKS.values())
    plain = [*style.STATUSES.values(), *(look.colour for look in looks), "#DDDDDD", "#333333", "#FFFFFF"]
    shades = np.linspace(0, 1, _SHADES)[:, None]

    def table(inks: Mapping[str, str], others: Mapping[str, str]) -> np.ndarray:
        paper = np.array(to_rgb(others.get("#FFFFFF", "#FFFFFF")))
        shaded = [shades * paper + (1 - shades) * np.array(to_rgb(inks.get(ink, ink))) for ink in _INKS]
        whole = [[to_rgb(others.get(name) or inks.get(name, name))] for name in plain]
        return np.round(255 * np.concatenate([*shaded, *whole])).astype(np.uint8)

    light, places = np.unique(table({}, {}), axis=0, return_index=True)
    image = Image.new("P", (1, 1))
    image.putpalette(light[::-1].tobytes())
    return image, table(_DARK_INKS, _DARK)[places[::-1]].tobytes()


DPI = 90
ROOM = 100
"""Most steps on the x axis at the start; a longer run doubles the number."""


WIDE, HIGH = 13.0, 4.62
"""Inches of the whole figure."""
CURVES_AT, CURVES_HIGH = (0.04, 0.652), 3.98
"""Left and right of the curves as fractions of the width, and their height in inches."""
CHAIN_AT, CHAIN_HIGH = (0.788, 0.995), 3.25
"""The same of the chain's cells."""
CHAIN_WIDE = WIDE * (CHAIN_AT[1] - CHAIN_AT[0])
SPLIT = 0.66
"""The fraction of the width at which the figure is cut in two, so that a narrow page shows one half below the other."""

_AROUND = 8
"""Pixels outside of axes in which a click still belongs to them: symbols at an edge are not cut off."""


class LiveFigure:
    """One Agg figure without pyplot, to be drawn by one thread at a time.

    `scale` enlarges everything, letters too. A `grouped` one is for beginners: a chain of four rows, and no units.
    """

    def __init__(self, scale: float = 1.0, grouped: bool = False) -> None:
        self._grouped = grouped
        self._figure = new_figure(HIGH)
        self._figure.set_size_inches(WIDE, HIGH)
        self._figure.set_dpi(DPI * scale)
        self._canvas = Canvas(self._figure)
        self._axes: dict[str, Axes] = {}
        self._moving: list[Artist] = []
        self._lines: dict[str, dict[Any, Line2D]] = {}
        self._background: Any = None
        self._key: object = None
        self.dark = False
        """Whether `halves` are for a dark page."""
        self.opened: int | None = None
        """The step whose tokens are open: a band marks it on the curves."""
        self.opened_cell: strip.Cell | None = None
        """The cell of the chain whose anatomy is open: it is outlined."""
        self.backgrounds = 0
        """The number of backgrounds drawn so far."""

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Width and height in pixels of the two halves: the curves, and the chain."""
        width, height = self._canvas.get_width_height()
        cut = round(SPLIT * width)
        return (cut, height), (width - cut, height)

    def place(self, half: str, x: float, y: float) -> tuple[str, float, float] | None:
        """Where a point of a half, in fractions from its upper left corner, lies: the metric of its curves or `strip`,
        the step and the value. None outside of the axes."""
        (cut, height), (rest, _) = self.sizes
        pixel = (x * cut if half == "curves" else cut + x * rest), (1 - y) * height
        with DRAWING:
            for name, axes in self._axes.items():
                if axes.get_window_extent().padded(_AROUND).contains(*pixel):
                    return name, *axes.transData.inverted().transform(pixel).tolist()
        return None

    def cell(self, screen: Screen, whole: Sequence[Screen], x: float, y: float) -> strip.Cell | None:
        """The link, step and update of the chain's cell at a point of its half, as fractions; None outside of cells."""
        place = self.place("chain", x, y)
        return place and strip.cell(screen, strip.span(whole or [screen], ROOM), CHAIN_WIDE, *place[1:])

    def png(self, screen: Screen, kept: Mapping[str, Screen] = {}, whole: Sequence[Screen] = ()) -> bytes:
        """The screen as a PNG, over the curves of kept runs.

        The axes also hold the values of `whole`: a recording of which a part is shown.
        """
        return png(np.asarray(self.draw(screen, kept, whole)))

    def halves(
        self, screen: Screen, kept: Mapping[str, Screen] = {}, whole: Sequence[Screen] = ()
    ) -> tuple[bytes, bytes]:
        """The same as two PNGs: the curves, and the chain."""
        pixels, ((cut, _), _) = np.asarray(self.draw(screen, kept, whole)), self.sizes
        left, right = (png(np.ascontiguousarray(half), self.dark) for half in (pixels[:, :cut], pixels[:, cut:]))
        return left, right

    def draw(self, screen: Screen, kept: Mapping[str, Screen] = {}, whole: Sequence[Screen] = ()) -> memoryview:
        """The pixels, (height, width, 4)."""
        with DRAWING:
            of_chain = strip.span(whole or [screen], ROOM)
            steps = strip.span([*(whole or [screen]), *kept.values()], ROOM)
            scales, moves, all_screens = {}, {}, [screen, *kept.values(), *whole]
            for name in CURVES:
                rows = [each for other in all_screens for each in curves.rows_of(name, other)]
                scales[name] = scale_of(name, curves.numbers(name, rows, screen, all_screens), steady=True)
                moves[name] = curves.points(name, curves.rows_of(name, screen), scales[name], screen)
            cells, _ = strip.grid(screen, *of_chain, strip.columns(screen, of_chain, CHAIN_WIDE), self._grouped)
            key = self.opened, self.opened_cell, _key(screen, kept, (steps, of_chain, cells.shape), scales, moves)
            if key != self._key:
                self._draw_background(screen, kept, steps, of_chain, scales, moves)
                self._key = key
            moves["strip"] = strip.points(self._axes["strip"], screen, of_chain, cells)
            for name, found in moves.items():
                for gid, (x, y) in found.items():
                    self._lines[name][gid].set_data(x, y)
            for name in CURVES:
                curves.keep_clear(self._axes[name])
            self._axes["strip"].images[0].set_data(cells)
            self._canvas.restore_region(self._background)
            renderer = self._canvas.get_renderer()
            for artist in self._moving:
                artist.draw(renderer)
            return self._canvas.buffer_rgba()

    def _draw_background(
        self, screen: Screen, kept: Mapping[str, Screen], steps: Any, of_chain: Any, scales: Any, moves: Any
    ) -> None:
        figure = self._figure
        figure.clear()
        forks = screen.marked("forked")
        extra = 0.35 if kept or forks else 0.0  # inches of a line above the curves that names the runs
        if extra:
            own = say("fork at step {}").format(forks[-1]) if forks else say("this run")
            names = [own, *(say(name) if name == GHOST else legible(name, 30, _fonts()) for name in kept)]
            name_runs(figure, names, 0.055, 0.06, len(names), keys=["", *kept], handlelength=2.8)
        (left, right), tall = CURVES_AT, CURVES_HIGH - extra
        self._axes = curves.panels(figure, top=0.36 + extra, tall=tall, left=left, right=right)
        for name, axes in self._axes.items():
            curves.draw(axes, name, {"": screen, **kept}, steps, screen, scales[name], say, units=not self._grouped)
            if self.opened is not None:
                axes.axvspan(self.opened - 0.4, self.opened + 0.4, color="#DDDDDD", zorder=0.5, gid="opened")
        left, right = CHAIN_AT
        axes = self._axes["strip"] = figure.add_axes((left, 0.5 / HIGH, right - left, CHAIN_HIGH / HIGH))
        strip.draw(axes, screen, of_chain, say=say, grouped=self._grouped)
        if self.opened_cell:
            strip.mark_opened(axes, screen, of_chain, self.opened_cell, self._grouped)
        strip.legend(axes, [screen], say=say, columns=3)
        if len(fonts := _fonts()) > 1:
            for each in figure.findobj(Text):
                each.set(fontfamily=fonts, fontweight="normal")  # the Chinese font has one weight
        self._moving = []
        for name, each in self._axes.items():
            # The run in focus is drawn last: of several lines with one gid the last belongs to it.
            self._lines[name] = {line.get_gid(): line for line in each.lines}
            above = [*each.images, *each.collections, *each.lines, *each.patches, *each.texts]
            own = above if name == "strip" else [self._lines[name][gid] for gid in moves[name]]
            own += [] if name == "strip" else [words for words in each.texts if words.get_gid() in curves.ABOVE]
            self._moving += sorted(own, key=lambda artist: artist.get_zorder())
        for artist in self._moving:
            artist.set_animated(True)
        self._canvas.draw()
        self._background = self._canvas.copy_from_bbox(figure.bbox)
        self.backgrounds += 1


def thumbnail(screen: Screen) -> tuple[bytes, bytes]:
    """The four curves of a run in a small picture, as PNGs for a light and for a dark page."""
    figure = Figure((3.4, 2.4), dpi=DPI, facecolor="white")
    canvas = Canvas(figure)
    with DRAWING:
        for name, axes in curves.panels(figure, top=0.22, tall=2.0, left=0.12, right=0.98).items():
            rows = curves.rows_of(name, screen)
            scale = scale_of(name, curves.numbers(name, rows, None, [screen]))
            curves.set_scale(axes, scale)
            for gid, (x, y) in curves.points(name, rows, scale, screen, more=False).items():
                shape, size = ("x", 8) if gid.startswith("cross") else (".-", 4)
                axes.plot(x, y, shape, color=style.BLUE, ms=size, mew=size / 4, lw=1.2, clip_on=False, zorder=4)
            if screen.crash_step is not None:
                axes.axvline(screen.crash_step, color=style.VERMILLION, lw=1.5, ls=":")
            axes.set_title(say(METRICS[name].label), fontsize=8, loc="left", pad=3, fontfamily=_fonts())
            axes.tick_params(labelsize=6.5, length=2, pad=1)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set_xlim(-0.5, strip.span([screen])[1] - 0.5)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())
    return png(pixels), png(pixels, dark=True)


def say(label: str) -> str:
    """A label of the figure in the user's language; in English if no installed font has its letters."""
    if messages.language() == "zh" and len(_fonts()) == 1:
        return label
    return messages.spoken(label)


def _fonts() -> list[str]:
    """The families in which a letter is looked up, in turn."""
    found = chinese_font() if messages.language() == "zh" else ""
    return ["DejaVu Sans", *([found] if found else [])]


def _key(screen: Screen, kept: Mapping[str, Screen], steps: Any, scales: Any, moves: Any) -> object:
    """All that a background depends on: while the key stays the same, only points move."""
    artists = {name: (tuple(found), len(next(iter(found.values()))[0]) > FINE) for name, found in moves.items()}
    marks = screen.kinds(), screen.marked("changed"), screen.marked("forked"), screen.crash_step, curves.rescues(screen)
    limits = tuple(step for step, _ in screen.settings)
    runs = tuple((name, id(other)) for name, other in kept.items())
    return (steps, scales, artists, marks, limits, screen.first_break, runs)


FRAMES_PER_SECOND = 5.0


class RenderThread:
    """Calls `render` soon after each `request`, in its own thread; requests within one frame are drawn once.

    `render` is told whether a frame was requested, and returns whether it wants to be called again without a request,
    as a playing recording does.
    """

    def __init__(self, render: Callable[[bool], bool]) -> None:
        self._render = render
        self._changed = threading.Condition()
        self._requested = self._drawn = 0
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Ask for a frame."""
        with self._changed:
            self._requested += 1
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="panel", daemon=True)
                self._thread.start()

    def settle(self, seconds: float = 10.0) -> bool:
        """Wait until every request so far is drawn; return whether that took no longer than `seconds`."""
        with self._changed:
            target = self._requested
            return self._changed.wait_for(lambda: self._drawn >= target, seconds)

    def _work(self) -> None:
        deadline, more = time.monotonic(), False
        while True:
            with self._changed:
                if not more:
                    self._changed.wait_for(lambda: self._drawn < self._requested)
                requested, asked = self._requested, self._drawn < self._requested
            begin = time.monotonic()
            if begin - deadline > 1 / FRAMES_PER_SECOND:
                deadline = begin  # after a pause or a slow frame, missed frames are dropped
            deadline += 1 / FRAMES_PER_SECOND
            try:
                more = self._render(asked)
            except Exception:
                traceback.print_exc()  # the next request is drawn again
                more = False
            with self._changed:
                self._drawn = requested
                self._changed.notify_all()
            time.sleep(max(0.0, deadline - time.monotonic()))
