"""Commands to a running trainer, carried out at the top of the next step.

`pause`, `resume`, `step`, `stop`; `set` with overrides; `pace` with the most steps a second, 0 for any number;
`pause_at` with the step before which to pause.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from grpo_lab.errors import unknown


class Stopped(Exception):
    """Raised by a `CommandQueue` at the top of the step after `stop`."""


class CommandQueue:
    """The trainer's `controls`: queues commands of another thread for the next step."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._single = threading.Semaphore(0)
        self._overrides: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
        self._seconds = self._begun = 0.0  # at least so long between two steps; when the last one began
        self._pause_at = -1

    def command(self, name: str, overrides: Sequence[str] = ()) -> None:
        """Take one of `pause`, `resume`, `step`, `set`, `stop`, `pace`, `pause_at`; ConfigError for another name."""
        actions = {
            "pause": self._running.clear,
            "resume": self._running.set,
            "step": self._single.release,
            "stop": self.stopping.set,
            "set": lambda: self._overrides.put(overrides),
            "pace": lambda: self._set_pace(float(*overrides)),
            "pause_at": lambda: self._set_pause(int(*overrides)),
        }
        if name not in actions:
            raise unknown("command", name, actions)
        actions[name]()

    def __call__(self, step: int) -> list[str]:
        """The overrides for the next step; waits while it is paused or not due. Raises Stopped after `stop`."""
        if step == self._pause_at:
            self._running.clear()
        while not (self._due() or self.stopping.is_set() or self._single.acquire(timeout=0.02)):
            pass
        self._begun = time.monotonic()
        if self.stopping.is_set():
            raise Stopped
        changes: list[str] = []
        while not self._overrides.empty():
            changes.extend(self._overrides.get())
        return changes

    def _due(self) -> bool:
        return self._running.is_set() and time.monotonic() >= self._begun + self._seconds

    def _set_pace(self, steps_a_second: float) -> None:
        self._seconds = 1 / steps_a_second if steps_a_second > 0 else 0.0

    def _set_pause(self, step: int) -> None:
        self._pause_at = step


@contextmanager
def ctrl_c(stop: Callable[[], None], stopping: threading.Event) -> Iterator[None]:
    """Handle Ctrl-C: the first one calls `stop`, the next one interrupts. Outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stop()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
