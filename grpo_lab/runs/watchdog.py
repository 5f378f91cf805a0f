"""The watchdog of a child process: a run that tells no event for too long ends its process.

The timer is that of `faulthandler`, a thread in C: it also ends a process that hangs in C code and holds the lock of the
interpreter, and it first writes to standard error where each thread is.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_lab.runs.session import Session


@contextmanager
def watched(session: Session, minutes: float) -> Iterator[None]:
    """End this process if the session, run in this block, tells no event for so many minutes; a pause does not count."""
    commands = session.controls

    def wait() -> None:
        faulthandler.dump_traceback_later(60 * minutes, exit=True)

    def controls(step: int) -> Sequence[str]:
        faulthandler.cancel_dump_traceback_later()
        changes = commands(step)
        wait()
        return changes

    session.controls = controls
    session.views.append(SimpleNamespace(show=lambda event: wait()))
    wait()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
