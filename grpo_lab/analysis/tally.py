"""The actions of guards and faults, counted, and the guards that act in every healthy run."""

from typing import NamedTuple

from grpo_lab.core.hooks import Action, Verdict
from grpo_lab.training.guards import GUARDS


class Tally(NamedTuple):
    """The actions of one guard or fault so far."""

    actions: int
    steps: int
    since: int
    """The first step in which it changed or refused something, -1 before."""
    last_step: int
    verdict: Verdict
    reason: str


def by_design(guard: str) -> bool:
    """Whether a guard acts in healthy runs too, as `clip_gradients` does; a guard of the user's own does not count.

    >>> by_design("clip_gradients"), by_design("clamp_log_ratio")
    (True, False)
    """
    return guard in GUARDS and bool(GUARDS[guard].changes_healthy_runs)


def count(tallies: dict[str, Tally], action: Action, step: int) -> None:
    """Add an action to the tallies."""
    old = tallies.get(action.name, Tally(0, 0, -1, -1, Verdict.KEEP, ""))
    in_steps = old.steps + (old.last_step != step)
    since = step if old.since < 0 and action.verdict > Verdict.KEEP else old.since
    tallies[action.name] = Tally(old.actions + 1, in_steps, since, step, action.verdict, action.reason)
