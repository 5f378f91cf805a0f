"""The watchdog of a child process: a run that tells no event for too long ends its process.

The timer is that of `faulthandler`, a thread in C: it also ends a process that hangs in C code and holds the lock of
the interpreter, and it first writes to standard error where each thread is.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grpo_lab.events import Event

if TYPE_CHECKING:
    from grpo_lab.runs.session import Session


class _Timer:
    """A view that begins to wait again with every event, and controls whose pauses do not count."""

    def __init__(self, seconds: float, controls: Callable[[int], Sequence[str]]) -> None:
        self._seconds, self._controls = seconds, controls

    def show(self, event: Event | None = None) -> None:
        faulthandler.dump_traceback_later(self._seconds, exit=True)

    def __call__(self, step: int) -> Sequence[str]:
        faulthandler.cancel_dump_traceback_later()
        changes = self._controls(step)
        self.show()
        return changes


@contextmanager
def watched(session: Session, minutes: float) -> Iterator[None]:
    """End this process if the session tells no event for so many minutes in this block; a pause does not count."""
    session.controls = timer = _Timer(60 * minutes, session.controls)
    session.views.append(timer)
    timer.show()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
