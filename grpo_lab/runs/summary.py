"""The summary of a run in words: what it learned, the steps that were refused, its first break and its end."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from grpo_lab.core.hooks import Verdict
from grpo_lab.events import Ended, Evaluated, Event, Resumed, Started, Stepped
from grpo_lab.messages import label, spoken, text
from grpo_lab.metrics import LINKS
from grpo_lab.runs.first_break import first_break, statuses

FEWEST_STEPS = 4
"""Steps from which on their rewards have a start, an end and a spread."""


class Learned(StrEnum):
    """The result of a run for its reward."""

    LEARNED = "learned"
    NOTHING = "learned nothing"
    LOST = "lost what it knew"
    UNKNOWN = "too few steps to say"


@dataclass(frozen=True)
class Progress:
    """The rewards of a run at its start and end, NaN where none was measured."""

    start: float
    """Mean training reward of the first quarter of the steps, at most ten."""
    end: float
    """The same of the last quarter."""
    before: float
    """Mean reward of the held-out problems before the first step."""
    after: float
    """The same after the last step; NaN if there was no second evaluation."""
    learned: Learned


def progress(rewards: Sequence[float], held_out: Sequence[tuple[float, int]], num_prompts: int) -> Progress:
    """What a run learned, from the reward of each step and from each evaluation's mean reward and number of problems.

    A change counts beyond two standard errors. The noise of a step's reward is estimated from the differences between
    neighbouring steps, that of an evaluation as a step's with as many prompts, or from p (1 - p) for rewards in 0..1,
    whichever is larger. Held-out rewards decide if both were measured.

    >>> progress([0.3, 0.28, 0.31, 0.3, 0.0, 0.01, 0.0, 0.0], [], 16).learned
    <Learned.LOST: 'lost what it knew'>
    """
    finite = [value for value in rewards if math.isfinite(value)]
    held = [(value, count) for value, count in held_out if math.isfinite(value)]
    width = max(1, min(10, len(finite) // 4))
    start, end = (statistics.fmean(part) if part else math.nan for part in (finite[:width], finite[-width:]))
    before, after = held[0][0] if held else math.nan, held[-1][0] if len(held) > 1 else math.nan
    jumps = [right - left for left, right in itertools.pairwise(finite)]
    # The median, because a collapse is no noise; of a squared normal difference it is 0.91 times the variance.
    noise = statistics.median(jump * jump for jump in jumps) / 0.91 if jumps else 0.0
    if len(held) > 1:
        variance = sum(max(noise * num_prompts, value * (1 - value)) / count for value, count in (held[0], held[-1]))
        learned = _verdict(after - before, variance)
    elif len(finite) >= FEWEST_STEPS:
        learned = _verdict(end - start, 2 * noise / width)
    else:
        learned = Learned.UNKNOWN
    return Progress(start, end, before, after, learned)


def _verdict(gain: float, variance: float) -> Learned:
    if abs(gain) <= 2 * math.sqrt(variance):
        return Learned.NOTHING
    return Learned.LEARNED if gain > 0 else Learned.LOST


def progress_in(
    config: Mapping[str, Any], rewards: Sequence[float], held_out: Sequence[tuple[float, int]], updates: int
) -> Progress:
    """What a run with this config learned in so many updates, as `progress` says it; without any, nothing.

    With `alternate`, neighbouring steps have the rewards of different objectives, so those of a turn are one number.
    """
    tables, usual = config.get("objectives", ()), config.get("data", {}).get("num_prompts", 1)
    turn = max(1, len(tables)) if config.get("loss", {}).get("combination") == "alternate" else 1
    turns = [rewards[first : first + turn] for first in range(0, len(rewards), turn)]
    whole = [each for each in turns if len(each) == turn] or turns
    num_prompts = sum(table.get("num_prompts", usual) for table in tables) if tables else usual
    found = progress([sum(each) / len(each) for each in whole], held_out, num_prompts)
    moved = updates or found.learned is Learned.UNKNOWN
    return found if moved else replace(found, learned=Learned.NOTHING)


def progress_of(events: Iterable[Event]) -> Progress:
    """What a run learned, from its events."""
    rewards, held_out, config, updates = [], [], {}, 0
    for event in events:
        if isinstance(event, Started):
            config = event.config
        elif isinstance(event, Stepped):
            updates += event.updates
            rewards += [event.metrics["reward"]] if "reward" in event.metrics else []
        elif isinstance(event, Evaluated):
            held_out.append((event.reward, event.num_problems))
    return progress_in(config, rewards, held_out, updates)


def summary(events: Sequence[Event]) -> str:
    """The rewards, refused steps, first warning, first break and end of a run, in the user's language."""
    ended = next((event for event in reversed(events) if isinstance(event, Ended)), None)
    lines = [
        *_progress_in_words(progress_of(events), crashed=bool(ended and ended.crash)),
        *_objectives_in_words(events),
        _refused_in_words(events),
        *(_joined("resumed", event.reason, step=event.step) for event in events if isinstance(event, Resumed)),
    ]
    for step, row in statuses(events).items():
        warned = [label(LINKS[link].label) for link, status in row.items() if status == "warning"]
        if warned:
            lines.append(text("summary.warning", step=step, links=text("summary.comma").join(warned)))
            break
    lines.append(text("summary.first_break", said=_break_in_words(events)))
    if ended is None:
        lines.append(text("summary.no_end"))
    else:
        lines.append(_joined("end", spoken(ended.message), status=ended.status))
        if ended.crash:
            lines.append(text("summary.crash", operator=ended.crash.operator, said=ended.crash))
    return "\n".join(lines)


def _joined(key: str, more: str, **values: Any) -> str:
    """A text, and what follows it behind a comma."""
    return text("summary.comma").join([text(f"summary.{key}", **values), *([more] if more else [])])


def _progress_in_words(found: Progress, crashed: bool) -> list[str]:
    """The result, and the rewards at start and end; nothing for a run without rewards."""
    if math.isnan(found.start):
        return []
    learned = text(f"summary.learned.{found.learned.name.lower()}")
    lines = [text("summary.result_of_crash" if crashed else "summary.result", learned=learned)]
    lines.append(text("summary.reward", start=f"{found.start:.3f}", end=f"{found.end:.3f}"))
    if not math.isnan(found.before):
        after = text("summary.not_measured") if math.isnan(found.after) else f"{found.after:.3f}"
        lines.append(text("summary.held_out", before=f"{found.before:.3f}", after=after))
    return lines


def _objectives_in_words(events: Iterable[Event]) -> list[str]:
    """The held-out reward of each objective at every evaluation."""
    evaluated = [event.objectives for event in events if isinstance(event, Evaluated) and event.objectives]
    names = evaluated[0] if evaluated else ()
    values = {name: text("summary.comma").join(f"{each[name]:.3f}" for each in evaluated) for name in names}
    return [text("summary.of_objective", name=name, values=values[name]) for name in names]


def _refused_in_words(events: Iterable[Event]) -> str:
    verdicts = [event.verdict for event in events if isinstance(event, Stepped) and not event.failed]
    back = verdicts.count(Verdict.ROLL_BACK)
    refused = sum(verdict >= Verdict.SKIP_STEP for verdict in verdicts)
    return text("summary.steps", count=len(verdicts), refused=refused, back=back)


def _break_in_words(events: Sequence[Event]) -> str:
    found = first_break(events)
    if found:
        return str(found) if found.step >= 0 else text("summary.unrecorded")
    overflowed = any(note.broken for event in events if isinstance(event, Stepped) for note in event.links)
    return text("summary.overflowed" if overflowed else "summary.all_finite")
