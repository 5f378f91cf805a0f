"""The steps of a run on the screen: its events, and a slider that goes back to any step, moved by hand or played."""

import threading
import time
from collections.abc import Callable, Iterable

import ipywidgets

from grpo_lab.analysis.run_state import Fold, Screen
from grpo_lab.events import Event, Stepped
from grpo_lab.messages import text
from grpo_lab.ui.widgets import parts

SPEEDS = (0.5, 1, 2, 5, 10, 20, 50)
"""Steps a second."""


class History:
    """The events of a run, and its screen after any step; a view of a run that goes on. `came` is called after each."""

    def __init__(self, events: Iterable[Event] = (), came: Callable[[], None] = lambda: None) -> None:
        self._came, self._lock = came, threading.RLock()
        self._events: list[Event] = []
        self._steps: list[int] = []
        """The place of each Stepped among the events."""
        self._fold, self._folded = Fold(), 0
        for event in events:
            self._add(event)

    def __len__(self) -> int:
        """The number of steps."""
        return len(self._steps)

    def show(self, event: Event) -> None:
        """Take the next event of a run that goes on."""
        with self._lock:
            self._add(event)
        self._came()

    def screen(self, steps: int | None = None) -> Screen:
        """The state after so many steps; None: after all events, with those that follow the last step."""
        with self._lock:
            if steps is None or steps >= len(self._steps):
                end = len(self._events)
            else:
                end = self._steps[steps - 1] + 1 if steps else self._steps[0]
            if end < self._folded:
                self._fold, self._folded = Fold(), 0
            for event in self._events[self._folded : end]:
                self._fold.add(event)
            self._folded = end
            return self._fold.screen()

    def _add(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self._steps.append(len(self._events))
        self._events.append(event)


class Timeline:
    """A slider over the steps of a run that is over, a button that plays them and a speed; `moved` is called then."""

    def __init__(self, muted: parts.Muted, moved: Callable[[], None]) -> None:
        self._moved, self._muted, self._lock = moved, muted, threading.RLock()
        self._exact, self._ticked, self.playing = 0.0, 0.0, False
        self.history, self.live = History(), False
        self.length = 0
        """The number of steps of a run that is over."""
        self.whole = self.history.screen()
        style = {"description_width": "initial"}
        layout = {"flex": "1 1 200px", "min_width": "160px"}
        words = {"description": text("panel.time"), "tooltip": text("panel.time_help")}
        self.slider = ipywidgets.IntSlider(0, 0, 0, layout=layout, style=style, **words).add_class("grpo-lab-time")
        parts.by_user(self.slider, muted, self._by_hand)
        play = {"tooltip": text("panel.play_help")}
        self._button = parts.button("play", "", lambda: self.pause() if self.playing else self.play(), **play)
        speeds = [(text("panel.steps_a_second", speed=f"{speed:g}"), speed) for speed in SPEEDS]
        words = {"description": text("panel.speed"), "style": style, "layout": {"width": "190px"}}
        self.speed = ipywidgets.Dropdown(options=speeds, value=2, **words).add_class("grpo-lab-speed")
        self.widget = parts.box("row", [self._button, self.slider, self.speed])
        self.load(self.history)

    def load(self, history: History, live: bool = False) -> None:
        """Show all of a run; one that is `live` is followed, and cannot be moved in."""
        with self._lock:
            self.history, self.live = history, live
            self.length = 0 if live else len(history)
            self.whole = history.screen()
            self._exact = float(self.length)
            self._set_playing(False)
            self._place()
            for each in (self.slider, self._button, self.speed):
                each.disabled = not self.length

    @property
    def position(self) -> int:
        """Number of steps shown."""
        return int(self._exact)

    def screen(self) -> Screen:
        """The state of the run after the steps shown."""
        return self.history.screen(None if self.live else self.position)

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

    def _set_playing(self, playing: bool) -> None:
        self.playing = playing
        self._button.icon = "pause" if playing else "play"
        self._button.description = text("panel.pause_replay" if playing else "panel.play")

    def _place(self) -> None:
        with self._muted:
            self.slider.max = self.length
            self.slider.value = self.position

    def _by_hand(self, position: int) -> None:
        self.pause()
        self.move(position)
