"""The thread that draws a panel: at most five frames a second, only on request, and always the last request."""

import threading
import time
from collections.abc import Callable

FRAMES_PER_SECOND = 5.0
IDLE_SECONDS = 2.0
"""The thread ends after this time without a request; the next `request` starts another."""


class RenderThread:
    """Calls `render` soon after each `request`, in its own thread; requests within one frame are drawn once.

    `render` returns whether it wants the next frame without a request, as a playing recording does.
    """

    def __init__(self, render: Callable[[], bool]) -> None:
        self._render = render
        self._changed = threading.Condition()
        self._requested = self._drawn = 0
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Ask for a frame."""
        with self._changed:
            self._requested += 1
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="panel", daemon=True)
                self._thread.start()

    def settle(self, seconds: float = 10.0) -> bool:
        """Wait until every request so far is drawn; return whether that took no longer than `seconds`."""
        with self._changed:
            target = self._requested
            return self._changed.wait_for(lambda: self._drawn >= target, seconds)

    def _work(self) -> None:
        deadline = time.monotonic()
        while (requested := self._next()) is not None:
            begin = time.monotonic()
            if begin - deadline > 1 / FRAMES_PER_SECOND:
                deadline = begin  # after a pause or a slow frame, missed frames are dropped
            deadline += 1 / FRAMES_PER_SECOND
            more = self._frame()
            with self._changed:
                self._drawn = requested
                self._requested += more
                self._changed.notify_all()
            time.sleep(max(0.0, deadline - time.monotonic()))

    def _frame(self) -> bool:
        try:
            return self._render()
        except BaseException:
            with self._changed:  # release the callers of `settle`; the next `request` starts a new thread
                self._drawn, self._thread = self._requested, None
                self._changed.notify_all()
            raise

    def _next(self) -> int | None:
        """Wait for a request and return its number; None when it is time to end."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._drawn < self._requested, IDLE_SECONDS):
                self._thread = None
                return None
            return self._requested
