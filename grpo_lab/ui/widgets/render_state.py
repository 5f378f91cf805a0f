"""The state that a panel draws: a live run or part of a finished one, and overlays."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from grpo_lab.analysis.run_state import Fold, Screen
from grpo_lab.errors import RunError
from grpo_lab.events import Event, Stepped
from grpo_lab.messages import text
from grpo_lab.ui.widgets.controls_view import ControlsView
from grpo_lab.ui.widgets.live import LiveFigure
from grpo_lab.ui.widgets.render_thread import RenderThread

WORDS_EVERY = 1.0
"""Seconds between two updates of the words beside the figure during a run."""


class RenderState:
    """Receives events from the thread of a run; the render thread turns them into frames and words.

    Nothing is drawn unless `watched`.
    """

    def __init__(self, controls: ControlsView, figure: LiveFigure, watched: bool) -> None:
        self._controls, self.figure, self._watched = controls, figure, watched
        self._lock = threading.RLock()
        self._feed = _Feed(self)
        self._thread = RenderThread(self._render)
        self.live = False
        """Whether the run on screen is going on."""
        self.paused = False
        self.pause_at = -1
        """The step before which every run pauses; -1 for none."""
        self.note = ""
        """A message of the panel, shown in the status line."""
        self.kept: dict[str, Screen] = {}
        self._news = self._drawn = 0
        controls.browser.observe(lambda change: self._set_dark(change["new"]), "dark")
        self._words_at = float("-inf")

    def feed(self) -> _Feed:
        """A view for the next run."""
        return _Feed(self)

    def begin(self, feed: _Feed) -> None:
        """Show the run of this view from now on."""
        with self._lock:
            self._feed = feed
            self.live, self.paused, self.note = True, False, ""
            self._controls.timeline.load(())

    def end(self, feed: _Feed, events: Sequence[Event], note: str = "") -> None:
        """Make a finished run available to the timeline if it is the one on screen."""
        with self._lock:
            if feed is self._feed and self.live:
                self.load(events, note)

    def load(self, events: Sequence[Event], note: str = "") -> None:
        """Show a finished run, or nothing."""
        with self._lock:
            self.live = self.paused = False
            self.note = note
            self._controls.timeline.load(events)
        self.refresh()

    def keep(self, name: str) -> None:
        """Keep the run on screen as an overlay. Raises RunError when there is none."""
        with self._lock:
            screen = self._feed.fold.screen() if self.live else self._controls.timeline.whole
            if screen.step < 0:
                raise RunError(text("panel.nothing_to_keep"))
            self._set_kept({**self.kept, name: screen})

    def clear(self) -> None:
        """Drop the overlays."""
        self._set_kept({})

    def screens(self) -> tuple[Screen, dict[str, Screen], tuple[Screen, ...]]:
        """The arguments of `LiveFigure.png`: the screen, the overlays, and the whole run where a part is shown."""
        with self._lock:
            if self.live:
                return self._feed.fold.screen(), self.kept, ()
            timeline = self._controls.timeline
            return timeline.screen(), self.kept, (timeline.whole,)

    def refresh(self) -> None:
        """Request a frame."""
        with self._lock:
            self._news += 1
        if self._watched:
            self._thread.request()

    def settle(self, seconds: float = 10.0) -> bool:
        """Wait until every requested frame is drawn; return whether that took no longer than `seconds`."""
        return not self._watched or self._thread.settle(seconds)

    def _set_dark(self, dark: bool) -> None:
        """Draw for a dark or a light page."""
        self.figure.dark = dark
        self.refresh()

    def _set_kept(self, kept: dict[str, Screen]) -> None:
        self.kept = kept
        self._controls.inputs.show_kept(list(kept))
        self.refresh()

    def _render(self) -> bool:
        """Draw one frame; return whether to draw the next without a request: to play on, or to update the words."""
        timeline = self._controls.timeline
        moved = timeline.tick()
        with self._lock:
            news, live, paused, note = self._news + moved, self.live, self.paused, self.note
            self._news = news
            screen, kept, whole = self.screens()
        if news != self._drawn:
            self._controls.show_pictures(*self.figure.halves(screen, kept, whole))
            self._drawn = news
        due = time.monotonic() - self._words_at >= WORDS_EVERY or not live or paused
        if due:
            own = "paused" if paused else "starting" if live and screen.status == "waiting" else ""
            self._controls.show_words(screen, own, note)
            self._controls.inputs.show_paused(paused)
            self._words_at = time.monotonic()
        return timeline.playing or not due


class _Feed:
    """The view of one run; events of a run that is no longer shown are dropped."""

    def __init__(self, state: RenderState) -> None:
        self._state, self._lock = state, state._lock
        self.fold = Fold()

    def show(self, event: Event) -> None:
        with self._lock:
            self.fold.add(event)
            if isinstance(event, Stepped) and event.step + 1 == self._state.pause_at:
                self._state.paused = True
        self._state.refresh()
