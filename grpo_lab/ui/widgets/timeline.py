"""Time in a run that is over: its first steps instead of all of it, moved by hand or played at a speed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from grpo_lab.analysis.run_state import Fold, Screen
from grpo_lab.events import Event, Stepped
from grpo_lab.ui.widgets.messages import text

SPEEDS = (0.5, 1, 2, 5, 10, 20, 50)
"""Steps a second."""
_WIDE = {"flex": "1 1 200px", "min_width": "160px"}


class Timeline:
    """A slider over the steps of a run, a button that plays them and a speed. `moved` is told when another part is to
    be shown."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved = moved
        self._lock = threading.RLock()
        style = {"description_width": "initial"}
        words = {"description": text("panel.time"), "tooltip": text("panel.time_help"), "style": style}
        self._slider = ipywidgets.IntSlider(0, 0, 0, layout=_WIDE, **words)
        self._slider.add_class("grpo-lab-time")
        self._slider.observe(self._by_hand, "value")
        self._button = ipywidgets.Button(layout={"width": "auto"})
        self._button.add_class("grpo-lab-play")
        self._button.on_click(lambda _: self.pause() if self.playing else self.play())
        speeds = [(text("panel.steps_a_second", speed=f"{speed:g}"), speed) for speed in SPEEDS]
        words = {"description": text("panel.speed"), "style": style, "layout": {"width": "190px"}}
        self.speed = ipywidgets.Dropdown(options=speeds, value=2, **words)
        self.speed.add_class("grpo-lab-speed")
        self.widget = ipywidgets.HBox([self._button, self._slider, self.speed])
        self.widget.add_class("grpo-lab-row")
        self.load(())

    def load(self, events: Sequence[Event]) -> None:
        """Take the events of a run, and show all of it."""
        with self._lock:
            self._events = list(events)
            ends = [index + 1 for index, event in enumerate(self._events) if isinstance(event, Stepped)]
            before = ends[0] - 1 if ends else len(self._events)
            self._ends = [before, *ends[:-1], len(self._events)] if ends else [before]
            self._position, self._exact = len(ends), float(len(ends))
            self._fold, self._folded = Fold(), 0
            self.whole = self.screen()
            self._set_playing(False)
            self._place(len(ends), disabled=not ends)

    @property
    def length(self) -> int:
        """Steps of the run."""
        return len(self._ends) - 1

    @property
    def position(self) -> int:
        """Steps shown."""
        return self._position

    def move(self, position: int) -> None:
        """Show so many of its steps; all of them with whatever came after."""
        with self._lock:
            self._position = min(max(0, position), self.length)
            self._exact = float(self._position)
            self._place(self._position)
        self._moved()

    def play(self, speed: float | None = None) -> None:
        """Show one step after another, from the first one when all were shown; `speed` in steps a second."""
        if speed is not None and speed not in SPEEDS:
            nearest = min(SPEEDS, key=lambda each: abs(each - speed))
            self.speed.value = nearest
        elif speed is not None:
            self.speed.value = speed
        with self._lock:
            if self._position >= self.length:
                self._position, self._exact = 0, 0.0
            self._set_playing(self.length > 0)
            self._ticked = time.monotonic()
        self._moved()

    def pause(self) -> None:
        """Play no further."""
        self._set_playing(False)

    def tick(self) -> bool:
        """While playing, move on by the time that went by; whether another part is to be shown."""
        with self._lock:
            if not self.playing:
                return False
            now = time.monotonic()
            self._exact = min(self._exact + (now - self._ticked) * float(self.speed.value or 1), float(self.length))
            self._ticked = now
            moved = int(self._exact) != self._position
            self._position = int(self._exact)
            self._place(self._position)
            if self._position >= self.length:
                self._set_playing(False)
            return moved

    def screen(self) -> Screen:
        """The screen of the part that is shown."""
        with self._lock:
            end = self._ends[self._position]
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
        self._button.tooltip = text("panel.play_help")

    def _place(self, position: int, disabled: bool | None = None) -> None:
        """Put the slider there without being told of it."""
        self._placing = True
        try:
            self._slider.max = self.length
            self._slider.value = position
            if disabled is not None:
                for each in (self._slider, self._button, self.speed):
                    each.disabled = disabled
        finally:
            self._placing = False

    def _by_hand(self, change: Any) -> None:
        with self._lock:
            if self._placing:
                return
        self.pause()
        self.move(change["new"])
