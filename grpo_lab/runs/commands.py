"""Commands to a running trainer: `pause`, `resume`, `step`, `set`, `stop`, carried out at the top of the next step."""

import queue
import signal
import threading
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

    def command(self, name: str, overrides: Sequence[str] = ()) -> None:
        """Take one of `pause`, `resume`, `step`, `set`, `stop`. Raises ConfigError for another name."""
        actions = {
            "pause": self._running.clear,
            "resume": self._running.set,
            "step": self._single.release,
            "stop": self.stopping.set,
            "set": lambda: self._overrides.put(overrides),
        }
        if name not in actions:
            raise unknown("command", name, actions)
        actions[name]()

    def __call__(self, step: int) -> list[str]:
        """The overrides for the next step; waits while the run is paused. Raises Stopped after `stop`."""
        while not (self._running.is_set() or self.stopping.is_set() or self._single.acquire(timeout=0.05)):
            pass
        if self.stopping.is_set():
            raise Stopped
        changes: list[str] = []
        while not self._overrides.empty():
            changes.extend(self._overrides.get())
        return changes


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
