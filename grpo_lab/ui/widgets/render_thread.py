"""The one thread that draws a panel: at most five frames a second, none without something new, and always the last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FRAMES_PER_SECOND = 5.0
IDLE_SECONDS = 2.0
"""Without anything to draw for so long the thread ends; the next `poke` starts another."""


class Painter:
    """Calls `paint` soon after each `poke`, from a thread of its own; several pokes within a frame are drawn once.

    `paint` answers whether it wants the next frame without being asked, as a playing recording does.
    """

    def __init__(self, paint: Callable[[], bool]) -> None:
        self._paint = paint
        self._news = threading.Condition()
        self._asked = self._drawn = 0
        self._thread: threading.Thread | None = None

    def poke(self) -> None:
        """There is something new."""
        with self._news:
            self._asked += 1
            self._news.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="panel", daemon=True)
                self._thread.start()

    def settle(self, seconds: float = 10.0) -> bool:
        """Wait until all that was poked is drawn; whether it was, within this time."""
        with self._news:
            target = self._asked
            return self._news.wait_for(lambda: self._drawn >= target, seconds)

    def _work(self) -> None:
        deadline = time.monotonic()
        while (asked := self._next()) is not None:
            begin = time.monotonic()
            if begin - deadline > 1 / FRAMES_PER_SECOND:
                deadline = begin  # after a rest, or when it cannot keep up: no frames to make up for
            deadline += 1 / FRAMES_PER_SECOND
            more = self._frame()
            with self._news:
                self._drawn = asked
                self._asked += more
                self._news.notify_all()
            time.sleep(max(0.0, deadline - time.monotonic()))

    def _frame(self) -> bool:
        try:
            return self._paint()
        except BaseException:
            with self._news:  # nobody waits for a thread that failed, and the next `poke` may fare better
                self._drawn, self._thread = self._asked, None
                self._news.notify_all()
            raise

    def _next(self) -> int | None:
        """Wait for something to draw; None when it is time to end."""
        with self._news:
            if not self._news.wait_for(lambda: self._drawn < self._asked, IDLE_SECONDS):
                self._thread = None
                return None
            return self._asked
