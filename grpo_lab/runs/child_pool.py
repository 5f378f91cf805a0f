"""Runs that a notebook asks for: in a child that is warm and stays so, and short where tests want them short.

`GRPO_LAB_HEADLESS=1` says that nobody is looking, `GRPO_LAB_FAST=1` that a run's first steps will do.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_lab.runs.child import Child

_idle: list[Child] = []
_lock = threading.Lock()


def warm_up() -> None:
    """Have a child load what a run needs, seconds before one is asked for."""
    with _lock:
        _idle[:] = [child for child in _idle if child.alive]
        if not _idle:
            _idle.append(Child())


def take() -> Child:
    """A child for one run: a warm one, or a new one where all are busy. Hand it to `give_back` afterwards."""
    with _lock:
        while _idle:
            child = _idle.pop()
            if child.alive:
                return child
    return Child()


def give_back(child: Child) -> None:
    """Keep a child whose run is over for the next run; one that died is replaced, a second idle one ended."""
    if not child.alive:
        warm_up()
        return
    with _lock:
        keep = not _idle
        if keep:
            _idle.append(child)
    if not keep:
        child.close()


@contextmanager
def warm_child() -> Iterator[Child]:
    """A child while a run lasts: `with warm_child() as child: Session(config, child=child).run()`."""
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
