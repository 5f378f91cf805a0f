"""The live view of a run in a terminal: the panel's curves as sparklines, the status, and the guards that acted."""

import math
import statistics
import threading
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from grpo_lab.analysis.run_state import CURVES, Fold, Screen, Series, shown
from grpo_lab.events import Event, Resumed
from grpo_lab.metrics import metric, of_run

BLOCKS = "▁▂▃▄▅▆▇█"
NAN, INF = "×", "∞"
LINEAR = ("reward",)
"""Curves without a logarithmic scale."""
FRAMES = 5
"""Frames a second."""


class LiveView(Live):
    """A session's view: redraws the screen of the run in place while it is entered."""

    def __init__(self, console: Console) -> None:
        self._fold, self._folding, self._begun = Fold(), threading.Lock(), time.monotonic()
        self._before = 0
        super().__init__(console=console, get_renderable=self._frame, refresh_per_second=FRAMES)

    def show(self, event: Event) -> None:
        """Take the next event; the next frame shows it."""
        with self._folding:
            self._fold.add(event)
            if isinstance(event, Resumed):
                self._begun, self._before = time.monotonic(), event.step

    def _frame(self) -> Group:
        with self._folding:  # the frames are drawn in a thread of their own
            screen = self._fold.screen()
        lines = drawn(screen, self.console.width, time.monotonic() - self._begun, self._before)
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


def drawn(screen: Screen, width: int, seconds: float, before: int = 0) -> list[str]:
    """The lines of a screen: name and progress, a curve a line, the status, and the guards that acted.

    All steps but those `before` were made in these seconds.
    """
    made = screen.completed - before
    left = seconds / made * (screen.num_steps - screen.completed) if made > 0 else math.nan
    eta = "" if screen.over or math.isnan(left) else f"  ETA {left:,.0f} s"
    head = f"{screen.name}  step {screen.completed} of {screen.num_steps}  {seconds:,.0f} s{eta}"
    labels = {
        name: f"{metric(name).label} {owner}".rstrip() for key in CURVES for name, owner in screen.curves(key).items()
    }
    wide, lines = max(map(len, labels.values())), [head]
    room = max(8, width - wide - 12)
    for name, label in labels.items():
        values = screen.series.get(name, Series()).values
        last = shown(values[-1]) if values else "-"
        lines.append(f"{label:<{wide}}  {last:>8}  {sparkline(values, room, of_run(name) not in LINEAR)}")
    acted = ", ".join(f"{name} (step {tally.since})" for name, tally in screen.rescues())
    why = f": {' '.join(screen.message.split())}" if screen.message else ""
    return [
        *lines,
        f"{screen.status}{why}",
        f"guards: {acted or 'none acted'}",
        *(["Ctrl-C: stop and save"] * (not screen.over)),
    ]


def sparkline(values: Sequence[float], width: int, log: bool = False) -> str:
    """A curve in blocks, at most `width` of them; several values of one block give their mean, with `log` the largest.

    `log` scales by magnitude, where 0 and less are the lowest block. NaN and infinity have signs of their own.

    >>> sparkline([0.0, 1.0, float("nan"), float("inf"), 0.5], 8)
    '▁█×∞▅'
    """
    size = math.ceil(len(values) / width) or 1
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    if log:
        found = [max(part, key=lambda value: math.inf if math.isnan(value) else abs(value)) for part in parts]
        floor = min((value for value in found if 0 < value < math.inf), default=1.0)
        found = [math.log10(max(value, floor)) if math.isfinite(value) else value for value in found]
    else:
        found = [statistics.fmean(part) for part in parts]
    finite = [value for value in found if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_block(value, low, high) for value in found)


def _block(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return NAN
    if math.isinf(value):
        return INF
    share = (value - low) / (high - low) if high > low else 0.0
    return BLOCKS[round(share * (len(BLOCKS) - 1))]
