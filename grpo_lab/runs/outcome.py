"""What a run did, measured once from its events: every summary, panel, table, page and check reads it from here."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from grpo_lab.core.hooks import Verdict
from grpo_lab.events import Crash, Ended, Evaluated, Event, Started, Stepped, lineage
from grpo_lab.runs.first_break import ChainBreak, first_break

FEWEST_STEPS = 4
"""Steps from which on their rewards have a start, an end and a spread."""
MATTERS = 0.1
"""A run learned nothing if it did not gain this much, of rewards up to 1; of larger rewards, this share of them."""


class Learned(StrEnum):
    """The result of a run for its reward."""

    LEARNED = "learned"
    NOTHING = "learned nothing"
    LOST = "lost what it knew"
    UNKNOWN = "too short to say"


@dataclass(frozen=True)
class Outcome:
    """The measurements of a run; a number is NaN where nothing was measured."""

    status: str
    """`done`, `stopped` (by a guard or the user), `crashed` or `failed`; empty where the run has no end yet."""
    message: str
    """Why the run ended."""
    crash: Crash | None
    first_break: ChainBreak | None
    learned: Learned
    by_training: bool
    """Whether training rewards decided what it learned, not held-out ones."""
    first: float
    """Training reward of the first step."""
    start: float
    """Mean training reward of the first `window` steps."""
    end: float
    """The same of the last `window` steps."""
    window: int
    """A quarter of the steps, at most ten; with objectives in turn, ten turns."""
    before: float
    """Mean reward of the held-out problems before the first step."""
    after: float
    """The same after the last step of a run that went through all its stages."""
    problems: int
    """Held-out problems that `after` is a mean of."""
    noise: float
    """Variance of the reward of one problem, as the differences between neighbouring steps tell it."""
    finished: int
    """Steps that ended without an error."""
    refused: int
    """Of these, steps that a guard refused or rolled back."""
    rolled_back: int
    changed: int
    """Steps in which a guard changed a value and did not refuse."""
    updates: int
    """Updates that were kept."""
    grad_norm: float
    """Largest gradient norm before clipping; infinite if one was NaN."""
    finite_grad_norm: float
    """Largest finite one."""
    max_move: float
    """Largest change of a single weight in one step, over the steps that left finite weights."""
    poisoned: bool
    """Whether weights were NaN or inf at the end."""

    @property
    def gained(self) -> float:
        """Held-out reward gained."""
        return self.after - self.before


def outcome(events: Sequence[Event]) -> Outcome:
    """What a run did, from its events; steps that were lost before it was resumed do not count.

    Held-out rewards decide what it learned if both were measured. Otherwise, and where too few problems cannot say and
    the run lost its training reward, those of the first and the last steps do, against the noise of the run: 2 % of
    runs that do not change are said to have learned or lost.

    >>> from grpo_lab.config.catalog import preset
    >>> from grpo_lab.training.trainer import train
    >>> found = outcome([*train(preset("smoke").with_("run.num_steps=1"))])
    >>> found.status, found.finished, found.learned
    ('done', 1, <Learned.UNKNOWN: 'too short to say'>)
    """
    events = lineage(events)
    steps = [event for event in events if isinstance(event, Stepped)]
    whole = [event for event in steps if not event.failed]
    verdicts = [event.verdict for event in whole]
    ended = next((event for event in reversed(events) if isinstance(event, Ended)), None)
    config = next((event.config for event in events if isinstance(event, Started)), {})
    updates = sum(event.updates for event in steps)
    norms = [event.metrics["grad_norm"] for event in steps if "grad_norm" in event.metrics]
    notes = [note.magnitude for event in whole for note in event.links if note.link == "gradients"]
    training = _training_reward(config, steps)
    before, after = _held_out(events)
    learned = change(before, after, training.noise)
    unknown = math.isnan(after.reward - before.reward) or training.learned is Learned.LOST
    by_training = learned is Learned.UNKNOWN and unknown
    learned = training.learned if by_training else learned
    if not updates and not math.isnan(training.first):
        learned = Learned.NOTHING
    return Outcome(
        status=ended.status if ended else "",
        message=ended.message if ended else "",
        crash=ended.crash if ended else None,
        first_break=first_break(events),
        **training._replace(learned=learned)._asdict(),
        by_training=by_training,
        before=before.reward,
        after=after.reward,
        problems=after.count,
        finished=len(whole),
        refused=sum(verdict >= Verdict.SKIP_STEP for verdict in verdicts),
        rolled_back=verdicts.count(Verdict.ROLL_BACK),
        changed=verdicts.count(Verdict.CHANGED),
        updates=updates,
        grad_norm=max((math.inf if math.isnan(norm) else norm for norm in norms), default=math.nan),
        finite_grad_norm=largest(notes),
        max_move=largest(event.metrics.get("weights/max_move", math.nan) for event in whole),
        poisoned=poisoned(whole),
    )


def poisoned(steps: Iterable[Stepped], before: bool = False) -> bool:
    """Whether the weights after these steps hold NaN or inf; `before` where no step has a note of them."""
    for event in steps:
        notes = [note for note in event.links if note.link == "weights"]
        if event.verdict >= Verdict.ROLL_BACK:
            before = False
        elif notes:
            before = notes[-1].broken
        elif "weights/nonfinite" in event.metrics:
            before = event.metrics["weights/nonfinite"] > 0
    return before


@dataclass(frozen=True)
class MeanReward:
    """A mean reward, NaN where none was measured, and the number of problems or steps that it is a mean of."""

    reward: float = math.nan
    count: int = 0


def change(
    before: MeanReward, after: MeanReward, noise: float = 0.0, errors: float = 2.0, sure: float = 1.64
) -> Learned:
    """Whether a mean reward changed by more than so many standard errors (`errors`) of the difference.

    If it did not, it is NOTHING where `sure` standard errors exclude a change of MATTERS (1.64: with 5 % of error), and
    otherwise UNKNOWN, as where a reward is missing. `noise` is the variance of one reward; for rewards in 0..1 it is
    p (1 - p) at least.

    >>> [change(MeanReward(0.28, 250), MeanReward(after, 250)).name for after in (0.6, 0.31, 0.0)]
    ['LEARNED', 'NOTHING', 'LOST']
    >>> change(MeanReward(0.28, 50), MeanReward(0.31, 50)).name
    'UNKNOWN'
    """
    gain = after.reward - before.reward
    if math.isnan(gain) or not (before.count and after.count):
        return Learned.UNKNOWN
    both = (before.reward * before.count + after.reward * after.count) / (before.count + after.count)
    # A test of "no change" assumes that both have one mean, and therefore its variance. How large the change may still
    # be is judged below by the variance of each.
    if abs(gain) > errors * math.sqrt(max(noise, both * (1 - both)) * (1 / before.count + 1 / after.count)):
        return Learned.LEARNED if gain > 0 else Learned.LOST
    error = math.sqrt(sum(max(noise, mean.reward * (1 - mean.reward)) / mean.count for mean in (before, after)))
    matters = MATTERS * max(1.0, abs(before.reward), abs(after.reward))
    return Learned.NOTHING if abs(gain) + sure * error < matters else Learned.UNKNOWN


def _held_out(events: Sequence[Event]) -> tuple[MeanReward, MeanReward]:
    """The held-out rewards before the first step and after the last one."""
    places = [index for index, event in enumerate(events) if isinstance(event, Stepped)]
    first, last = (places[0], places[-1]) if places else (len(events), len(events))
    found = {
        side: MeanReward(event.reward, event.num_problems)
        for index, event in enumerate(events)
        if isinstance(event, Evaluated) and (side := (index > last) - (index < first))
    }
    return found.get(-1, MeanReward()), found.get(1, MeanReward())


class _Training(NamedTuple):
    """As of an outcome."""

    learned: Learned
    first: float
    start: float
    end: float
    window: int
    noise: float


def _training_reward(config: Mapping[str, Any], steps: Iterable[Stepped]) -> _Training:
    """What the rewards of the first and last steps say, and the variance of the reward of one problem.

    With `alternate`, neighbouring steps have the rewards of different objectives, so those of a turn are one number.
    The noise is estimated from the differences between neighbouring steps.
    """
    rewards = [event.metrics["reward"] for event in steps if "reward" in event.metrics]
    turn = max(1, len(config.get("objectives", ()))) if config.get("loss", {}).get("combination") == "alternate" else 1
    turns = [rewards[first : first + turn] for first in range(0, len(rewards), turn)]
    whole = [each for each in turns if len(each) == turn] or turns
    finite = [value for value in (statistics.fmean(each) for each in whole) if math.isfinite(value)]
    width = max(1, min(10, len(finite) // 4))
    start, end = (statistics.fmean(part) if part else math.nan for part in (finite[:width], finite[-width:]))
    jumps = sorted((right - left) * (right - left) for left, right in itertools.pairwise(finite))
    # Without the largest quarter, because a collapse is no noise; of a normal noise the others are 0.74 variances.
    usual = jumps[: math.ceil(0.75 * len(jumps))]
    noise = statistics.fmean(usual) / 0.74 if usual else 0.0
    of_each = config.get("data", {}).get("num_prompts", 1)
    prompts = sum(table.get("num_prompts", of_each) for table in config.get("objectives", ())) or of_each
    completions = prompts * config.get("data", {}).get("num_generations", 1)
    count = width * completions if len(finite) >= FEWEST_STEPS else 0
    learned = change(MeanReward(start, count), MeanReward(end, count), noise * completions, errors=2.4, sure=2.4)
    first = finite[0] if finite else math.nan
    # A collapse in the first steps is inside the first window, so the first step counts alone too.
    fell = change(MeanReward(first, count and completions), MeanReward(end, count), noise * completions, errors=3.0)
    learned = fell if fell is Learned.LOST and learned is not Learned.LEARNED else learned
    return _Training(learned, first, start, end, width * turn, noise * prompts)


def largest(values: Iterable[float]) -> float:
    """The largest finite value; NaN where there is none."""
    return max((value for value in values if math.isfinite(value)), default=math.nan)
