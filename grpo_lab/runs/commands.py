"""Commands to a running trainer, carried out at the top of the next step.

`pause`, `resume`, `step`, `stop`; `set` with overrides; `pace` with the most steps a second, 0 for any number.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from grpo_lab.errors import unknown

COMMANDS = ("pause", "resume", "step", "stop", "set", "pace")


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

    def command(self, name: str, overrides: Sequence[str] = ()) -> None:
        """Take one of COMMANDS; ConfigError for another name."""
        match name:
            case "pause":
                self._running.clear()
            case "resume":
                self._running.set()
            case "step":
                self._single.release()
            case "stop":
                self.stopping.set()
            case "set":
                self._overrides.put(overrides)
            case "pace":
                rate = float(*overrides)
                self._seconds = 1 / rate if rate > 0 else 0.0
            case _:
                raise unknown("command", name, COMMANDS)

    def __call__(self, step: int) -> list[str]:
        """The overrides for the next step; waits while it is paused or not due. Raises Stopped after `stop`."""
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


ONE_REQUEST = 1.0
"""Seconds in which the same signal is the same request: `timeout` sends SIGTERM to the process and to its group."""
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end the process after the run; Windows has no SIGHUP, by which a terminal says that it is gone."""


@contextmanager
def signals(stop: Callable[[], None], stopping: threading.Event) -> Iterator[None]:
    """Let the first Ctrl-C, SIGTERM or SIGHUP call `stop`, and one that comes again interrupt; in the main thread only.

    At the end SystemExit is raised where SIGTERM or SIGHUP came, with 128 + its number, as shells tell it: 143 and 129.
    A signal that the process ignores, as under nohup, or handles itself is left to it. Schedulers send SIGTERM to a
    run's child process too, which has had the command to stop by then, and some send SIGHUP right after it: neither may
    cost the weights.
    """
    came: dict[int, float] = {}

    def handle(number: int, frame: Any) -> None:
        now, again, stopped = time.monotonic(), number in came, stopping.is_set()
        if number in ENDING and again and now - came[number] < ONE_REQUEST:
            return
        came[number] = now
        if stopped and (again or number == signal.SIGINT):
            raise KeyboardInterrupt
        if not stopped:
            stop()

    heeded = [signal.SIGINT, *(number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL)]
    try:
        with handled(dict.fromkeys(heeded, handle)):
            yield
    finally:
        if ending := [number for number in came if number in ENDING]:
            raise SystemExit(128 + ending[0])


@contextmanager
def handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Let these handlers take their signals in the block; only in the main thread, which alone can set handlers."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items() if in_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
