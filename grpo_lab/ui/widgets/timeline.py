"""Replay of a run that is over: a slider over its steps, moved by hand or played at a speed."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from grpo_lab.analysis.run_state import Fold, Screen
from grpo_lab.events import Event, Stepped
from grpo_lab.messages import text
from grpo_lab.ui.widgets import parts

SPEEDS = (0.5, 1, 2, 5, 10, 20, 50)
"""Steps a second."""


class Timeline:
    """A slider over the steps of a run, a button that plays them and a speed. It calls `moved` after a change."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved, self._muted, self._lock = moved, parts.Muted(), threading.RLock()
        self._events: list[Event] = []
        self._ends, self._exact, self._ticked, self.playing = [0], 0.0, 0.0, False
        self._fold, self._folded = Fold(), 0
        self.whole = self._fold.screen()
        style = {"description_width": "initial"}
        layout = {"flex": "1 1 200px", "min_width": "160px"}
        words = {"description": text("panel.time"), "tooltip": text("panel.time_help")}
        self._slider = ipywidgets.IntSlider(0, 0, 0, layout=layout, style=style, **words)
        self._slider.add_class("grpo-lab-time")
        self._slider.observe(self._by_hand, "value")
        play = {"tooltip": text("panel.play_help")}
        self._button = parts.button("play", "", lambda: self.pause() if self.playing else self.play(), **play)
        speeds = [(text("panel.steps_a_second", speed=f"{speed:g}"), speed) for speed in SPEEDS]
        words = {"description": text("panel.speed"), "style": style, "layout": {"width": "190px"}}
        self.speed = ipywidgets.Dropdown(options=speeds, value=2, **words).add_class("grpo-lab-speed")
        self.widget = parts.box("row", [self._button, self._slider, self.speed])
        self.load(())

    def load(self, events: Sequence[Event]) -> None:
        """Take the events of a run, and show all of it."""
        with self._lock:
            self._events = list(events)
            ends = [index + 1 for index, event in enumerate(self._events) if isinstance(event, Stepped)]
            self._ends = [ends[0] - 1, *ends[:-1], len(self._events)] if ends else [len(self._events)]
            self._exact = float(len(ends))
            self._fold, self._folded = Fold(), 0
            self.whole = self.screen()
            self._set_playing(False)
            self._place()
            for each in (self._slider, self._button, self.speed):
                each.disabled = not ends

    @property
    def length(self) -> int:
        """Number of steps of the run."""
        return len(self._ends) - 1

    @property
    def position(self) -> int:
        """Number of steps shown."""
        return int(self._exact)

    def move(self, position: int) -> None:
        """Show the first `position` steps; with the last step also the events after it."""
        with self._lock:
            self._exact = float(min(max(0, position), self.length))
            self._place()
        self._moved()

    def play(self, speed: float | None = None) -> None:
        """Show one step after another, from the first one if all are shown; `speed` in steps a second."""
        if speed is not None:
            self.speed.value = min(SPEEDS, key=lambda each: abs(each - speed))
        with self._lock:
            if self.position >= self.length:
                self._exact = 0.0
            self._set_playing(self.length > 0)
            self._ticked = time.monotonic()
        self._moved()

    def pause(self) -> None:
        """Stop playing."""
        self._set_playing(False)

    def tick(self) -> bool:
        """While playing, advance by the time since the last tick; return whether the position changed."""
        with self._lock:
            if not self.playing:
                return False
            now, before = time.monotonic(), self.position
            self._exact = min(self._exact + (now - self._ticked) * float(self.speed.value or 1), float(self.length))
            self._ticked = now
            self._place()
            if self.position >= self.length:
                self._set_playing(False)
            return self.position != before

    def screen(self) -> Screen:
        """The state of the run after the steps shown."""
        with self._lock:
            end = self._ends[self.position]
            if end < self._folded:
                self._fold, self._folded = Fold(), 0
            for event in self._events[self._folded : end]:
                self._fold.add(event)
            self._folded = end
            return self._fold.screen()

    def _set_playing(self, playing: bool) -> None:
        self.playing = playing
        self._button.icon = "pause" if playing else "play"
        self._button.description = text("panel.pause_replay" if playing else "panel.play")

    def _place(self) -> None:
        """Put the slider at the position without a callback."""
        with self._muted:
            self._slider.max = self.length
            self._slider.value = self.position

    def _by_hand(self, change: Any) -> None:
        if not self._muted:
            self.pause()
            self.move(change["new"])
