"""What a screen shows of a run: one pure function from its events. It draws nothing and knows no plotting library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from grpo_lab.chain import ChainBreak, first_break, statuses
from grpo_lab.config import Config
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import LINKS, METRICS, Action, Changed, Ended, Evaluated, Event, Started, Stepped
from grpo_lab.interventions import Verdict

MULTINOMIAL = "torch.multinomial"
CURVES = ("grad_norm", "kl", "reward", "ratio/max")
"""The metrics a screen draws, in order."""
_WATCHED = ("grad_norm", "kl", "loss", "ratio/max")
_DOING = {"SKIP_STEP": "skipping", "ROLL_BACK": "rolling back", "STOP": "stopping"}
_KINDS = {Verdict.SKIP_STEP: "skipped", Verdict.ROLL_BACK: "rolled back", Verdict.STOP: "stopped"}


class Series(NamedTuple):
    """One curve: a value for each step that has one."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


class Mark(NamedTuple):
    """Something that happened at a step: `acted`, `skipped`, `rolled back`, `stopped`, `changed` or `crashed`."""

    step: int
    kind: str
    text: str


class Tally(NamedTuple):
    """What one guard or fault did so far."""

    actions: int
    steps: int
    last_step: int
    verdict: str
    reason: str


@dataclass(frozen=True)
class Screen:
    """All that a live panel, a figure or a terminal shows of a run."""

    name: str
    status: str
    """In words: `waiting`, `starting`, `healthy`, `spiking`, `skipping`, `rolling back`, `stopping`, `poisoned`,
    `stopped`, `done`, `failed`, `crashed in torch.multinomial`; a run that is over with broken weights
    says `done, poisoned`."""
    message: str
    """Why: the number out of range, the guard's last reason, or the text of the end."""
    step: int
    """Last step begun, -1 before the first."""
    completed: int
    """Steps that ended without an error, refused ones included."""
    num_steps: int
    """Steps the run was to take; 0 where that is not known."""
    settings: tuple[tuple[int, dict[str, Any]], ...]
    """(step, configuration from it on), one entry more for each change of the running model."""
    series: dict[str, Series]
    evaluations: Series
    marks: tuple[Mark, ...]
    statuses: dict[int, dict[str, str]]
    """Step -> link -> `healthy`, `warning` or `broken`; a link that is absent was not reached."""
    first_break: ChainBreak | None
    crash_step: int | None
    guards: dict[str, Tally]
    faults: dict[str, Tally]
    samples: tuple[tuple[str, str, float], ...]
    """Prompt, completion and reward of the last step that has any."""

    def marked(self, kind: str) -> list[int]:
        """Steps with a mark of this kind."""
        return [mark.step for mark in self.marks if mark.kind == kind]


def fold(events: Iterable[Event]) -> Screen:
    """The screen after these events. The same events give the same screen, live or read back.

    >>> fold([]).status
    'waiting'
    """
    events = list(events)
    steps = [event for event in events if isinstance(event, Stepped)]
    ended = next((event for event in reversed(events) if isinstance(event, Ended)), None)
    evaluated = [event for event in events if isinstance(event, Evaluated)]
    settings = _settings(events)
    config = settings[-1][1] if settings else {}
    crash_step = _crash_step(steps, ended)
    status, message = _status(events, steps, ended)
    return Screen(
        name=str(config.get("run", {}).get("name", "")),
        status=status,
        message=message,
        step=steps[-1].step if steps else -1,
        completed=sum(not event.failed for event in steps),
        num_steps=int(config.get("run", {}).get("num_steps", 0)),
        settings=settings,
        series=_series(steps),
        evaluations=Series(tuple(e.step for e in evaluated), tuple(e.reward for e in evaluated)),
        marks=_marks(events, crash_step, message),
        statuses=_strip(steps, ended, crash_step),
        first_break=first_break(events),
        crash_step=crash_step,
        guards=_tallies(steps, "guard"),
        faults=_tallies(steps, "fault"),
        samples=next((event.samples for event in reversed(steps) if event.samples), ()),
    )


def describe(screen: Screen) -> str:
    """The screen in two sentences with its numbers: the alternative text of its figure, safe inside Markdown."""
    done = screen.completed
    of = f" of {screen.num_steps}" if screen.num_steps > done else ""
    steps = f"{done}{of} step{'s' if done != 1 or of else ''}"
    curves = [text for name in CURVES if (text := _curve_in_words(name, screen.series.get(name, Series())))]
    first = f"{screen.name or 'Run'}: {screen.status} after {steps}" + ("; " if curves else "") + ", ".join(curves)
    found = screen.first_break
    refused = [f"{kind}: {n}" for kind in ("skipped", "rolled back") if (n := len(screen.marked(kind)))]
    if found is None:
        second = "No link of the chain broke"
    elif found.link in LINKS:
        caught = f"caught by {found.caught_by}" if found.caught_by else "caught by no guard"
        second = f"First break: {LINKS[found.link].label} at step {found.step}, by {found.operator}, {caught}"
    else:
        second = f"No broken link was recorded before the crash in {found.operator}"
    text = f"{first}. {second}" + (f"; steps {', '.join(refused)}." if refused else ".")
    return " ".join(text.translate(str.maketrans("[]", "()")).split())


def decimate(series: Series, limit: int = 600) -> Series:
    """At most `limit` points of the curve: of each bucket its smallest, its largest and its first non-finite value.

    A spike of one step survives, and so do the first and the last point.
    """
    count = len(series.steps)
    if count <= limit:
        return series
    values, keep = np.asarray(series.values, dtype=float), {0, count - 1}
    for bucket in np.array_split(np.arange(count), max(1, (limit - 2) // 3)):
        part = values[bucket]
        finite = bucket[np.isfinite(part)]
        if len(finite):
            keep |= {int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])}
        keep |= {int(index) for index in bucket[~np.isfinite(part)][:1]}
    chosen = sorted(keep)
    return Series(tuple(series.steps[i] for i in chosen), tuple(series.values[i] for i in chosen))


def shown(value: float) -> str:
    """A number as a reader wants it: three digits, and NaN by its name.

    >>> shown(812.43), shown(3435618.5), shown(float("nan"))
    ('812', '3.44e+06', 'NaN')
    """
    return "NaN" if math.isnan(value) else f"{value:.3g}"


def _curve_in_words(name: str, series: Series) -> str:
    if not series.values:
        return ""
    label, values = METRICS[name].label, series.values
    start, end = shown(values[0]), shown(values[-1])
    words = f"{label} {start} to {end}" if len(values) > 1 else f"{label} {start}"
    finite = [(value, step) for step, value in zip(*series, strict=True) if math.isfinite(value)]
    broken = next((step for step, value in zip(*series, strict=True) if not math.isfinite(value)), None)
    peak, at = max(finite, default=(math.nan, 0), key=lambda pair: pair[0])
    extremes = [f"at most {shown(peak)} at step {at}"] if finite and shown(peak) not in (start, end) else []
    extremes += [f"first not finite at step {broken}"] if broken is not None else []
    return f"{words} ({', '.join(extremes)})" if extremes else words


def _settings(events: Sequence[Event]) -> tuple[tuple[int, dict[str, Any]], ...]:
    history: list[tuple[int, dict[str, Any]]] = []
    for event in events:
        if isinstance(event, Started):
            history.append((0, event.config))
        elif isinstance(event, Changed) and history:
            try:
                changed = Config.from_dict(history[-1][1]).with_(*event.overrides).to_dict()
            except GrpoLabError:
                continue  # of another version of the lab: the mark is shown, its effect on the limits is not
            history.append((event.step, changed))
    return tuple(history)


def _series(steps: Sequence[Stepped]) -> dict[str, Series]:
    pairs: dict[str, list[tuple[int, float]]] = {}
    for event in steps:
        for name, value in event.metrics.items():
            pairs.setdefault(name, []).append((event.step, value))
    return {name: Series(*(tuple(column) for column in zip(*rows, strict=True))) for name, rows in pairs.items()}


def _crash_step(steps: Sequence[Stepped], ended: Ended | None) -> int | None:
    """The step that failed; where the process died before it could tell, the one after the last."""
    failed = next((event.step for event in steps if event.failed), None)
    if failed is None and ended and ended.status == "crashed":
        return steps[-1].step + 1 if steps else 0
    return failed


def _strip(steps: Sequence[Stepped], ended: Ended | None, crash_step: int | None) -> dict[int, dict[str, str]]:
    """The chain's statuses with its end, torch.multinomial, which leaves no number but a crash."""
    table = {step: dict(row) for step, row in statuses(steps).items()}
    for row in table.values():
        if "probabilities" in row:
            row[MULTINOMIAL] = "healthy"
    if crash_step is not None and ended and ended.crash and ended.crash.operator == MULTINOMIAL:
        table.setdefault(crash_step, {})[MULTINOMIAL] = "broken"
    return table


def _marks(events: Sequence[Event], crash_step: int | None, message: str) -> tuple[Mark, ...]:
    marks = []
    for event in events:
        if isinstance(event, Changed):
            marks.append(Mark(event.step, "changed", ", ".join(event.overrides)))
        elif isinstance(event, Stepped):
            worst = _worst(event)
            text = f"{worst.name}: {worst.reason}" if worst else ""
            if kind := _KINDS.get(Verdict[event.verdict]):
                marks.append(Mark(event.step, kind, text))
            elif any(action.kind == "guard" for action in event.actions):
                marks.append(Mark(event.step, "acted", text))
    if crash_step is not None:
        marks.append(Mark(crash_step, "crashed", message))
    return tuple(marks)


def _worst(event: Stepped) -> Action | None:
    """The last of the most severe actions of a step that were not a fault's."""
    actions = [action for action in event.actions if action.kind != "fault"]
    return max(reversed(actions), key=lambda action: Verdict[action.verdict], default=None)


def _tallies(steps: Sequence[Stepped], kind: str) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    for event in steps:
        for action in event.actions:
            if action.kind == kind:
                old = tallies.get(action.name, Tally(0, 0, -1, "", ""))
                in_steps = old.steps + (old.last_step != event.step)
                tallies[action.name] = Tally(old.actions + 1, in_steps, event.step, action.verdict, action.reason)
    return tallies


def _status(events: Sequence[Event], steps: Sequence[Stepped], ended: Ended | None) -> tuple[str, str]:
    """How the run is, in words, and why."""
    poisoned = _poisoned(steps)
    if ended and ended.crash:
        operator = ended.crash.operator
        return (f"crashed in {operator}" if operator != "unknown" else "crashed"), ended.crash.text
    if ended:
        return ended.status + (", poisoned" if poisoned else ""), ended.message
    if not steps:
        return ("starting" if events else "waiting"), ""
    if poisoned:
        return "poisoned", "weights are NaN or inf"
    last = steps[-1]
    worst = _worst(last)
    if last.verdict in _DOING:
        return _DOING[last.verdict], f"{worst.name}: {worst.reason}" if worst else ""
    for name in _WATCHED:
        low, high = METRICS[name].low, METRICS[name].high
        value = last.metrics.get(name, low)
        if not low <= value <= high:
            return "spiking", f"{METRICS[name].label} {shown(value)}, usual up to {high:g}"
    return "healthy", ""


def _poisoned(steps: Sequence[Stepped]) -> bool:
    """Whether the weights that the last step left behind hold NaN or inf."""
    for event in reversed(steps):
        if Verdict[event.verdict] >= Verdict.ROLL_BACK:
            return False
        if notes := [note for note in event.links if note.link == "weights"]:
            return notes[-1].broken
        if "weights/nonfinite" in event.metrics:
            return event.metrics["weights/nonfinite"] > 0
    return False
