"""The state of a run for a screen: a pure function of its events, without any drawing."""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from grpo_lab.analysis.series import Series as Series
from grpo_lab.analysis.series import decimate as decimate
from grpo_lab.analysis.series import shown as shown
from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import Action, Changed, Ended, Evaluated, Event, Started, Stepped, Verdict
from grpo_lab.metrics import LINKS, METRICS
from grpo_lab.runs.first_break import ChainBreak, first_break, statuses

MULTINOMIAL = "torch.multinomial"
CURVES = ("grad_norm", "kl", "reward", "ratio/max")
"""The metrics that a screen draws, in order."""
_WATCHED = ("grad_norm", "kl", "loss", "ratio/max")
_DOING = {Verdict.SKIP_STEP: "skipping", Verdict.ROLL_BACK: "rolling back", Verdict.STOP: "stopping"}
_KINDS = {Verdict.SKIP_STEP: "skipped", Verdict.ROLL_BACK: "rolled back", Verdict.STOP: "stopped"}


class Mark(NamedTuple):
    """Something that happened at a step: `acted`, `skipped`, `rolled back`, `stopped`, `changed` or `crashed`."""

    step: int
    kind: str
    text: str


class Tally(NamedTuple):
    """The actions of one guard or fault so far."""

    actions: int
    steps: int
    last_step: int
    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class Screen:
    """The state of a run that a live panel, a figure or a terminal shows."""

    name: str
    status: str
    """In words: `waiting`, `starting`, `healthy`, `spiking`, `skipping`, `rolling back`, `stopping`, `poisoned`,
    `stopped`, `done`, `failed`, `crashed in torch.multinomial`; `done, poisoned` with broken weights."""
    message: str
    """The reason: the number out of range, the guard's last reason, or the message of the end."""
    step: int
    """The last step that began, -1 before the first."""
    completed: int
    """Steps that ended without an error, including refused ones."""
    num_steps: int
    """Steps that were asked for; 0 if that is not known."""
    settings: tuple[tuple[int, dict[str, Any]], ...]
    """(step, configuration from it on), with one more entry for each change of the running model."""
    series: dict[str, Series]
    evaluations: Series
    marks: tuple[Mark, ...]
    statuses: dict[int, dict[str, str]]
    """Step -> link -> `healthy`, `warning` or `broken`; a link that was not reached is absent."""
    first_break: ChainBreak | None
    crash_step: int | None
    crash_kind: str
    """The key of the crash in data/crashes.toml, `unknown`, or an empty text."""
    explanation: str
    """The explanation of a known crash, or an empty text."""
    guards: dict[str, Tally]
    faults: dict[str, Tally]
    samples: tuple[tuple[str, str, float], ...]
    """Prompt, completion and reward of the last step with samples."""

    def marked(self, kind: str) -> list[int]:
        """The steps with a mark of this kind."""
        return self._by_kind.get(kind, [])

    def kinds(self) -> frozenset[str]:
        """The kinds of all marks."""
        return frozenset(self._by_kind)

    @functools.cached_property
    def _by_kind(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for mark in self.marks:
            found.setdefault(mark.kind, []).append(mark.step)
        return found


class Fold:
    """The screen of a running session: takes events one by one, and gives the screen at any time.

    Each event is evaluated once, so that the ten-thousandth frame costs little more than the first.
    """

    def __init__(self) -> None:
        self._settings: list[tuple[int, dict[str, Any]]] = []
        self._columns: dict[str, tuple[list[int], list[float]]] = {}
        self._evaluations: tuple[list[int], list[float]] = ([], [])
        self._marks: list[Mark] = []
        self._strip: dict[int, dict[str, str]] = {}
        self._rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._tallies: dict[str, dict[str, Tally]] = {"guard": {}, "fault": {}}
        self._first_break: ChainBreak | None = None
        self._begun = self._poisoned = False
        self._last: Stepped | None = None
        self._completed, self._failed_step = 0, None
        self._samples: tuple[tuple[str, str, float], ...] = ()
        self._ended: Ended | None = None

    def add(self, event: Event) -> None:
        """Take the next event."""
        self._begun = True
        self._first_break = self._first_break or first_break([event])
        if isinstance(event, Started):
            self._settings.append((0, event.config))
        elif isinstance(event, Changed):
            self._change(event)
        elif isinstance(event, Stepped):
            self._step(event)
        elif isinstance(event, Evaluated):
            _append(self._evaluations, event.step, event.reward)
        else:
            self._ended = event

    def screen(self) -> Screen:
        """The screen after the events so far."""
        config = self._settings[-1][1] if self._settings else {}
        run, crash_step = config.get("run", {}), self._crash_step()
        status, message = self._status()
        crashed = () if crash_step is None else (Mark(crash_step, "crashed", message),)
        return Screen(
            name=str(run.get("name", "")),
            status=status,
            message=message,
            step=self._last.step if self._last else -1,
            completed=self._completed,
            num_steps=int(run.get("num_steps", 0)),
            settings=tuple(self._settings),
            series={name: _series(columns) for name, columns in self._columns.items()},
            evaluations=_series(self._evaluations),
            marks=(*self._marks, *crashed),
            statuses=self._statuses(crash_step),
            first_break=self._first_break,
            crash_step=crash_step,
            crash_kind=self._ended.crash.kind if self._ended and self._ended.crash else "",
            explanation=self._ended.crash.explanation if self._ended and self._ended.crash else "",
            guards=dict(self._tallies["guard"]),
            faults=dict(self._tallies["fault"]),
            samples=self._samples,
        )

    def _step(self, event: Stepped) -> None:
        self._last = event
        self._completed += not event.failed
        self._samples = event.samples or self._samples
        if event.failed and self._failed_step is None:
            self._failed_step = event.step
        for name, value in event.metrics.items():
            _append(self._columns.setdefault(name, ([], [])), event.step, value)
        for action in event.actions:
            if action.kind in self._tallies:
                _count(self._tallies[action.kind], action, event.step)
        worst = _worst(event)
        kind = _KINDS.get(event.verdict)
        if kind or any(action.kind == "guard" for action in event.actions):
            self._marks.append(Mark(event.step, kind or "acted", f"{worst.name}: {worst.reason}" if worst else ""))
        row = self._strip.get(event.step, {}) | statuses([event])[event.step]
        if "probabilities" in row:
            row[MULTINOMIAL] = "healthy"
        self._strip[event.step] = self._rows.setdefault(tuple(row.items()), row)  # most rows are equal: keep one object
        self._poisoned = _leaves_poisoned(event, self._poisoned)

    def _change(self, event: Changed) -> None:
        self._marks.append(Mark(event.step, "changed", ", ".join(event.overrides)))
        if not self._settings:
            return
        try:
            changed = Config.from_dict(self._settings[-1][1]).with_(*event.overrides).to_dict()
        except GrpoLabError:
            return  # a setting of another version: the mark is shown without its effect on the limits
        self._settings.append((event.step, changed))

    def _crash_step(self) -> int | None:
        """The step that failed; if the process died without an event, the step after the last."""
        if self._failed_step is None and self._ended and self._ended.status == "crashed":
            return self._last.step + 1 if self._last else 0
        return self._failed_step

    def _statuses(self, crash_step: int | None) -> dict[int, dict[str, str]]:
        """The statuses of the links and of torch.multinomial, which has no number but may crash."""
        table, crash = dict(self._strip), self._ended.crash if self._ended else None
        if crash_step is not None and crash and crash.operator == MULTINOMIAL:
            table[crash_step] = {**table.get(crash_step, {}), MULTINOMIAL: "broken"}
        return table

    def _status(self) -> tuple[str, str]:
        """The status of the run in words, and the reason."""
        ended = self._ended
        if ended and ended.crash:
            operator = ended.crash.operator
            return ("crashed", ended.message) if operator == "unknown" else (f"crashed in {operator}", ended.crash.text)
        if ended:
            return ended.status + (", poisoned" if self._poisoned else ""), ended.message
        if not self._last:
            return ("starting" if self._begun else "waiting"), ""
        return ("poisoned", "weights are NaN or inf") if self._poisoned else _status_of(self._last)


def fold(events: Iterable[Event]) -> Screen:
    """The screen after these events, the same for a live run and for one read back.

    >>> fold([]).status
    'waiting'
    """
    folded = Fold()
    for event in events:
        folded.add(event)
    return folded.screen()


def describe(screen: Screen) -> str:
    """The screen in two sentences with its numbers, as alternative text of its figure; safe inside Markdown."""
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


def _append(columns: tuple[list[int], list[float]], step: int, value: float) -> None:
    columns[0].append(step)
    columns[1].append(value)


def _series(columns: tuple[list[int], list[float]]) -> Series:
    return Series(tuple(columns[0]), tuple(columns[1]))


def _count(tallies: dict[str, Tally], action: Action, step: int) -> None:
    old = tallies.get(action.name, Tally(0, 0, -1, Verdict.KEEP, ""))
    in_steps = old.steps + (old.last_step != step)
    tallies[action.name] = Tally(old.actions + 1, in_steps, step, action.verdict, action.reason)


def _worst(event: Stepped) -> Action | None:
    """The last of the most severe actions of a step, without those of faults."""
    actions = [action for action in event.actions if action.kind != "fault"]
    return max(reversed(actions), key=lambda action: action.verdict, default=None)


def _status_of(last: Stepped) -> tuple[str, str]:
    """The status of a run with finite weights, by its last step, and the reason."""
    worst = _worst(last)
    if last.verdict in _DOING:
        return _DOING[last.verdict], f"{worst.name}: {worst.reason}" if worst else ""
    for name in _WATCHED:
        low, high = METRICS[name].low, METRICS[name].high
        value = last.metrics.get(name, low)
        if not low <= value <= high:
            return "spiking", f"{METRICS[name].label} {shown(value)}, usual up to {high:g}"
    return "healthy", ""


def _leaves_poisoned(event: Stepped, before: bool) -> bool:
    """Whether the weights after a step hold NaN or inf; if the step has no note of them, the answer `before` it."""
    if event.verdict >= Verdict.ROLL_BACK:
        return False
    if notes := [note for note in event.links if note.link == "weights"]:
        return notes[-1].broken
    return event.metrics["weights/nonfinite"] > 0 if "weights/nonfinite" in event.metrics else before
