"""Commands to a running trainer, carried out at the top of the next step.

`pause`, `resume`, `step`, `stop`; `set` with overrides; `pace` with the most steps a second, 0 for any number;
`pause_at` with the step before which to pause.
"""

import math
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


ONE_REQUEST = 1.0
"""Seconds in which the same signal is the same request: `timeout` sends SIGTERM to the process and to its group."""
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end the process after the run; Windows has no SIGHUP, by which a terminal says that it is gone."""


@contextmanager
def ctrl_c(stop: Callable[[], None], stopping: threading.Event) -> Iterator[None]:
    """Handle Ctrl-C: the first one calls `stop`, the next one interrupts. Outside the main thread nothing changes."""
    with _handled([signal.SIGINT], stop, stopping, []):
        yield


@contextmanager
def signals(stop: Callable[[], None], stopping: threading.Event) -> Iterator[None]:
    """Handle Ctrl-C as `ctrl_c` does, and SIGTERM and SIGHUP alike; each of them interrupts when it comes again.

    At the end SystemExit is raised where one of these two came, with 128 + its number, as shells tell it: 143 and 129.
    A signal that the process ignores, as under nohup, or handles itself is left to it.
    """
    heeded = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    caught: list[int] = []
    try:
        with _handled([signal.SIGINT, *heeded], stop, stopping, caught):
            yield
    finally:
        if ending := [number for number in caught if number in ENDING]:
            raise SystemExit(128 + ending[0])


@contextmanager
def _handled(
    numbers: Sequence[int], stop: Callable[[], None], stopping: threading.Event, caught: list[int]
) -> Iterator[None]:
    """Let the first of these signals call `stop`; `caught` receives those that do not interrupt.

    Schedulers send SIGTERM to a run's child process too, which has had the command to stop by then, and some send
    SIGHUP right after it: neither may cost the weights.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    came: dict[int, float] = {}

    def handle(number: int, frame: Any) -> None:
        stopped, now = stopping.is_set(), time.monotonic()
        if number in ENDING and now - came.get(number, -math.inf) < ONE_REQUEST:
            return
        came[number] = now
        if stopped and (number == signal.SIGINT or number in caught):
            raise KeyboardInterrupt
        caught.append(number)
        if not stopped:
            stop()

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
