"""Runs that a notebook asks for: in a child that is warm and stays so, and short where tests want them short.

`GRPO_LAB_HEADLESS=1` says that nobody is looking, `GRPO_LAB_FAST=1` that a run's first steps will do.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_lab.config import Config
from grpo_lab.controls import Child

SHORT = 12
"""Steps of a run when `GRPO_LAB_FAST` is set."""
_idle: list[Child] = []
_lock = threading.Lock()


def fast() -> bool:
    """Whether runs are cut short."""
    return os.environ.get("GRPO_LAB_FAST", "0") not in ("", "0")


def headless() -> bool:
    """Whether nobody can press a button: asked for, graded, or no Jupyter kernel."""
    asked = any(os.environ.get(name, "0") not in ("", "0") for name in ("GRPO_LAB_HEADLESS", "NBGRADER_EXECUTION"))
    ipython = sys.modules.get("IPython")
    return asked or ipython is None or getattr(ipython.get_ipython(), "kernel", None) is None


def shortened(config: Config) -> Config:
    """The config, with at most 12 steps where runs are cut short."""
    if not fast():
        return config
    return dataclasses.replace(config, run=dataclasses.replace(config.run, num_steps=min(SHORT, config.run.num_steps)))


def settled(config: Config) -> Config:
    """The config as a notebook runs it: with a number of threads, and short where runs are cut short.

    One core stays free for the live plot. The tiny model is fastest on one thread whatever there is.

    >>> settled(Config()).run.threads
    1
    """
    if not config.run.threads:
        threads = 1 if config.model.name == "tiny" else max(1, (os.cpu_count() or 1) - 1)
        config = config.with_(f"run.threads={threads}")
    return shortened(config)


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
