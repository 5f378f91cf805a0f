"""A child process that waits, with all imports done, for the next run of a notebook."""

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_lab.runs.child import Child

_idle: list[Child] = []
"""At most one."""
_lock = threading.Lock()


def warm_up() -> None:
    """Start a child, unless one waits already, so that the next run begins within milliseconds."""
    with _lock:
        _idle[:] = [child for child in _idle if child.alive]
        if not _idle:
            _idle.append(Child())


def take() -> Child:
    """A child for one run: one that waits, or a new one. Hand it to `give_back` afterwards."""
    with _lock:
        while _idle:
            child = _idle.pop()
            if child.alive:
                return child
            child.close()  # its pipes
    return Child()


def give_back(child: Child) -> None:
    """Keep a child for the next run after its own is over. A dead child is replaced, a superfluous one is ended."""
    with _lock:
        if child.alive and not _idle:
            _idle.append(child)
            return
    child.close()
    warm_up()


@contextmanager
def warm_child() -> Iterator[Child]:
    """A child for one run: `with warm_child() as child: Session(config, child=child).run()`."""
    child = take()
    try:
        yield child
    finally:
        give_back(child)


@atexit.register
def _close_all() -> None:
    with _lock:
        for child in _idle:
            child.close()
        _idle.clear()
