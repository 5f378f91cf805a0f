"""The thread that draws a panel: at most five frames a second, only on request, and always the last request."""

import threading
import time
import traceback
from collections.abc import Callable

FRAMES_PER_SECOND = 5.0


class RenderThread:
    """Calls `render` soon after each `request`, in its own thread; requests within one frame are drawn once.

    `render` is told whether a frame was requested, and returns whether it wants to be called again without a request,
    as a playing recording does.
    """

    def __init__(self, render: Callable[[bool], bool]) -> None:
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
        deadline, more = time.monotonic(), False
        while True:
            with self._changed:
                if not more:
                    self._changed.wait_for(lambda: self._drawn < self._requested)
                requested, asked = self._requested, self._drawn < self._requested
            begin = time.monotonic()
            if begin - deadline > 1 / FRAMES_PER_SECOND:
                deadline = begin  # after a pause or a slow frame, missed frames are dropped
            deadline += 1 / FRAMES_PER_SECOND
            try:
                more = self._render(asked)
            except Exception:
                traceback.print_exc()  # the next request is drawn again
                more = False
            with self._changed:
                self._drawn = requested
                self._changed.notify_all()
            time.sleep(max(0.0, deadline - time.monotonic()))
