"""What a panel has on screen: a run that is going on, or as much as is wanted of one that is over, and overlays."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from grpo_lab.analysis.run_state import Fold, Screen
from grpo_lab.errors import RunError
from grpo_lab.events import Event
from grpo_lab.ui.widgets.controls_view import Desk
from grpo_lab.ui.widgets.live import LiveFigure
from grpo_lab.ui.widgets.messages import text
from grpo_lab.ui.widgets.render_thread import Painter

WORDS_EVERY = 1.0
"""Seconds between two changes of the words beside the figure, while a run goes on."""


class Scene:
    """Events come in from the thread of a run, pictures and words go out from the one that paints.

    `watched` says whether anybody can see it; if not, nothing is drawn.
    """

    def __init__(self, desk: Desk, figure: LiveFigure, watched: bool) -> None:
        self._desk, self._figure, self._watched = desk, figure, watched
        self._lock = threading.RLock()
        self._feed = _Feed(self)
        self._painter = Painter(self._paint)
        self.live = False
        """Whether the run on screen is going on."""
        self.paused = False
        self.note = ""
        """What the panel itself has to say."""
        self.kept: dict[str, Screen] = {}
        self._news = self._drawn = 0
        self._said = float("-inf")

    def feed(self) -> _Feed:
        """A view for the next run."""
        return _Feed(self)

    def begin(self, feed: _Feed) -> None:
        """The run that is told to this view is on screen from now on."""
        with self._lock:
            self._feed = feed
            self.live, self.paused, self.note = True, False, ""
            self._desk.timeline.load(())

    def end(self, feed: _Feed, events: Sequence[Event], note: str = "") -> None:
        """A run is over; where it is the one on screen, its time can be gone through."""
        with self._lock:
            if feed is self._feed and self.live:
                self.load(events, note)

    def load(self, events: Sequence[Event], note: str = "") -> None:
        """Show a run that is over, or nothing."""
        with self._lock:
            self.live = self.paused = False
            self.note = note
            self._desk.timeline.load(events)
        self.refresh()

    def keep(self, name: str) -> None:
        """Keep the run on screen as an overlay. Raises RunError when there is none."""
        with self._lock:
            screen = self._feed.fold.screen() if self.live else self._desk.timeline.whole
            if screen.step < 0:
                raise RunError(text("panel.nothing_to_keep"))
            self.kept = {**self.kept, name: screen}
        self._desk.show_kept(list(self.kept))
        self.refresh()

    def clear(self) -> None:
        """Drop the overlays."""
        self.kept = {}
        self._desk.show_kept([])
        self.refresh()

    def screens(self) -> tuple[Screen, dict[str, Screen], tuple[Screen, ...]]:
        """What is on screen, the overlays, and the whole run where a part is shown: as `LiveFigure.png` takes them."""
        with self._lock:
            if self.live:
                return self._feed.fold.screen(), self.kept, ()
            timeline = self._desk.timeline
            return timeline.screen(), self.kept, (timeline.whole,)

    def refresh(self) -> None:
        """There is something new to draw."""
        with self._lock:
            self._news += 1
        if self._watched:
            self._painter.poke()

    def settle(self, seconds: float = 10.0) -> bool:
        """Wait until all there is was drawn; whether it was, within this time."""
        return not self._watched or self._painter.settle(seconds)

    def _paint(self) -> bool:
        """One frame; whether the next is wanted although nothing new came: to play on, or to say what is due."""
        timeline = self._desk.timeline
        moved = timeline.tick()
        with self._lock:
            news, live, paused, note = self._news + moved, self.live, self.paused, self.note
            self._news = news
            screen, kept, whole = self.screens()
        if news != self._drawn:
            self._desk.image.value = self._figure.png(screen, kept, whole)
            self._drawn = news
        due = time.monotonic() - self._said >= WORDS_EVERY
        if due or not live or paused:
            own = "paused" if paused else "starting" if live and screen.status == "waiting" else ""
            self._desk.show_words(screen, own, note)
            self._said = time.monotonic()
        return timeline.playing or not (due or not live or paused)


class _Feed:
    """The view of one run: a run that was left behind tells its last events to nobody."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._lock = scene, scene._lock
        self.fold = Fold()

    def show(self, event: Event) -> None:
        with self._lock:
            self.fold.add(event)
        self._scene.refresh()
