"""How a run goes on after it was cut off."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_lab.events import Checkpointed, Event, Resumed


class Resume(NamedTuple):
    """The reason, changes of the running model, and the checkpoint to begin with; the newest by default."""

    reason: str = ""
    overrides: tuple[str, ...] = ()
    restarts: int | None = None
    """Restarts so far, each of which changes `run.recover`; None: as many as the checkpoint knows of."""
    below: int | None = None
    """Only a checkpoint of an earlier step than this one."""


def after_a_crash(message: str, restarts: int, events: Sequence[Event]) -> Resume:
    """From the newest checkpoint; from an older one where that checkpoint has led to the crash and to no newer one.

    >>> after_a_crash("OOM", 2, [Resumed(40, kept=3)]).below
    40
    """
    below = None
    for event in events:
        if isinstance(event, Resumed):
            below = event.step
        elif isinstance(event, Checkpointed) and not event.problem:
            below = None
    return Resume(f"restart {restarts} after a crash: {message}", (), restarts, below)
