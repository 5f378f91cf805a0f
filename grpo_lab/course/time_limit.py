"""A time limit on an answer that runs in this process, in a notebook above all; a grader's sandbox has its own.

A thread interrupts the main thread as Ctrl-C does. That works on Linux, macOS and Windows, for code that Python runs;
a call into C ends first.
"""

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_lab.config import user_code
from grpo_lab.errors import NotYet
from grpo_lab.runs.commands import handled

AGAIN = 1.0
"""Seconds between two interrupts, for code that catches the first one."""


@contextmanager
def time_limit(seconds: float, file: str) -> Iterator[None]:
    """Raise NotYet, with the line of `file` that ran, once the code inside has taken so long.

    Outside the main thread, which alone can be interrupted, there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over, fired, ending = threading.Event(), threading.Event(), threading.Lock()

    def interrupt() -> None:
        wait = seconds
        while not over.wait(wait):
            with ending:  # the code may have come to its end meanwhile
                if not over.is_set():
                    fired.set()
                    _interrupt_main()
            wait = AGAIN

    threading.Thread(target=interrupt, name="time limit of an answer", daemon=True).start()
    before = signal.getsignal(signal.SIGINT)  # None where it is not Python's; a shell's background process ignores it
    heeded = before is None or callable(before)
    try:
        with handled({} if heeded else {signal.SIGINT: signal.default_int_handler}):
            try:
                yield
            finally:
                with ending:
                    over.set()
    except KeyboardInterrupt as error:
        if not fired.is_set():
            raise  # by the user
        where = user_code.said(error, file).partition(" ")[2]
        text = "it was stopped after {}: does a loop never end? A right answer takes less than a second"
        raise NotYet(text, f"{seconds:g} s {where}".rstrip()) from None


def _interrupt_main() -> None:
    """Interrupt the main thread, and wake it where the system can: `interrupt_main` lets it sleep on."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()
