"""The summary of a run in words: what it learned, the steps that were refused, its first break and its end."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from grpo_lab.events import Evaluated, Event, Resumed, Stepped
from grpo_lab.messages import spoken, text
from grpo_lab.metrics import LINKS
from grpo_lab.runs.first_break import statuses
from grpo_lab.runs.outcome import Outcome, outcome


def summary(events: Sequence[Event]) -> str:
    """The rewards, refused steps, first warning, first break and end of a run, in the user's language."""
    found = outcome(events)
    lines = [
        *_rewards_in_words(found),
        *_objectives_in_words(events),
        text("summary.steps", count=found.finished, refused=found.refused, back=found.rolled_back),
        *(_joined("resumed", event.reason, step=event.step) for event in events if isinstance(event, Resumed)),
    ]
    for step, row in statuses(events).items():
        warned = [spoken(LINKS[link].label) for link, status in row.items() if status == "warning"]
        if warned:
            lines.append(text("summary.warning", step=step, links=text("summary.comma").join(warned)))
            break
    if broken := found.first_break:
        said = str(broken) if broken.step >= 0 else text("summary.unrecorded")
    else:
        overflowed = any(note.broken for event in events if isinstance(event, Stepped) for note in event.links)
        said = text("summary.overflowed" if overflowed else "summary.all_finite")
    lines.append(text("summary.first_break", said=said))
    if not found.status:
        lines.append(text("summary.no_end"))
    elif found.crash:
        lines.append(_joined("end", found.message, status=found.status))
        lines.append(text("summary.crash", operator=found.crash.operator, said=found.crash))
    else:
        lines.append(_joined("end", spoken(found.message), status=found.status))
    return "\n".join(lines)


def _joined(key: str, more: str, **values: Any) -> str:
    """A text, and what follows it behind a comma."""
    return text("summary.comma").join([text(f"summary.{key}", **values), *([more] if more else [])])


def _rewards_in_words(found: Outcome) -> list[str]:
    """The result, and the rewards at start and end; nothing for a run without rewards."""
    if math.isnan(found.start):
        return []
    learned = text(f"summary.learned.{found.learned.name.lower()}")
    lines = [text("summary.result_of_crash" if found.crash else "summary.result", learned=learned)]
    numbers = {name: f"{getattr(found, name):.3f}" for name in ("first", "start", "end")}
    lines.append(text("summary.reward" if found.window > 1 else "summary.reward_short", window=found.window, **numbers))
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
