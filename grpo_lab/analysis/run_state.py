"""The state of a run for a screen: a pure function of its events, without any drawing."""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from grpo_lab.config.schema import Config, planned_steps
from grpo_lab.core.hooks import Action, Verdict
from grpo_lab.errors import GrpoLabError, Sentence
from grpo_lab.events import Changed, Ended, Evaluated, Event, Forked, Resumed, Started, Stepped
from grpo_lab.messages import spoken, text
from grpo_lab.metrics import LINKS, METRICS, metric, of_objective, of_run
from grpo_lab.runs.first_break import ChainBreak, by_update, first_break, statuses
from grpo_lab.runs.outcome import Learned, Outcome, outcome, poisoned
from grpo_lab.training.guards import GUARDS


class Series(NamedTuple):
    """One curve: a value for each step that has one."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


class Band(NamedTuple):
    """The KL band of an objective from a step on; NaN where it has none."""

    step: int
    low: float
    high: float


def bands(settings: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, tuple[Band, ...]]:
    """Each objective that configs list, with its bands, from (step, config from it on)."""
    found: dict[str, tuple[Band, ...]] = {}
    for step, config in settings:
        for table in config.get("objectives", ()):
            band = Band(step, float(table.get("kl_low", math.nan)), float(table.get("kl_high", math.nan)))
            found[table["name"]] = (*found.get(table["name"], ()), band)
    return found


def decimate(series: Series, limit: int = 600) -> Series:
    """At most `limit` points of the curve: of each bucket its smallest, its largest and its first non-finite value.

    A spike of one step survives, and so do the first and the last point.
    """
    count = len(series.steps)
    if count <= limit:
        return series
    width = math.ceil(count / max(1, (limit - 2) // 3))
    table = np.full((math.ceil(count / width), width), math.nan)
    table.flat[:count] = series.values
    finite, starts = np.isfinite(table), width * np.arange(len(table))
    odd = ~finite
    odd.flat[count:] = False  # the last bucket is filled up with NaN
    extremes = [np.where(finite, table, math.inf).argmin(1), np.where(finite, table, -math.inf).argmax(1)]
    picked = [(starts + place)[finite.any(1)] for place in extremes] + [(starts + odd.argmax(1))[odd.any(1)]]
    chosen = np.unique(np.concatenate([*picked, [0, count - 1]])).tolist()
    return Series(tuple(series.steps[i] for i in chosen), tuple(series.values[i] for i in chosen))


def shown(value: float) -> str:
    """A number as text: three digits, or NaN.

    >>> shown(812.43), shown(3435618.5), shown(float("nan"))
    ('812', '3.44e+06', 'NaN')
    """
    return "NaN" if math.isnan(value) else f"{value + 0.0:.3g}"  # -0.0 is 0


MULTINOMIAL = "torch.multinomial"
LONG = 40
"""Letters of a prompt that is text to read, and not a sum."""
CURVES = ("grad_norm", "kl", "reward", "ratio/max")
"""The metrics that a screen draws, in order; of each objective those of BY_OBJECTIVE."""
BY_OBJECTIVE = ("kl", "reward")
_RESULTS = {Learned.LEARNED: "done, learned", Learned.NOTHING: "done, learned nothing"}
_RESULTS |= {Learned.LOST: "done, reward lost", Learned.UNKNOWN: "done, too short to say"}
_KINDS = {Verdict.SKIP_STEP: "skipped", Verdict.ROLL_BACK: "rolled back", Verdict.STOP: "stopped"}
_DOING = {Verdict.SKIP_STEP: "skipping", Verdict.ROLL_BACK: "rolling back", Verdict.STOP: "stopping"}
_ONCE = ("probabilities", "rewards", "advantages", "old_logprobs", "ref_logprobs", MULTINOMIAL)
"""Links that are noted once a step, before its updates."""
_WATCHED = ("grad_norm", "kl", "loss", "ratio/max")


class Mark(NamedTuple):
    """Something that happened at a step, by kind:

    `acted`, `by design` (only guards that act in healthy runs too), `skipped`, `rolled back`, `stopped`, `changed`,
    `forked`, `crashed`.
    """

    step: int
    kind: str
    text: str


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


@dataclass(frozen=True)
class Screen:
    """The state of a run that a live panel, a figure or a terminal shows."""

    name: str
    status: str
    """In words: `waiting`, `starting`, `healthy`, `spiking`, `skipping`, `rolling back`, `stopping`, `poisoned`,
    `stopped`, `done`, `failed`, `crashed in torch.multinomial`; `done, poisoned` with broken weights, otherwise
    `done, learned`, `done, learned nothing`, `done, reward lost` or `done, too short to say` where it has rewards."""
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
    objectives: dict[str, tuple[Band, ...]]
    """Each objective that the run lists, with the bands for its KL."""
    series: dict[str, Series]
    evaluations: Series
    marks: tuple[Mark, ...]
    statuses: dict[int, dict[str, str]]
    """Step -> link -> `healthy`, `warning` or `broken`; a link that was not reached is absent."""
    updates: dict[int, tuple[dict[str, str], ...]]
    """Step -> the same of each of its updates, and of one that was not made; what is noted once a step is in all."""
    first_break: ChainBreak | None
    crash_step: int | None
    explanation: str
    """The explanation of a known crash, or an empty text."""
    over: bool
    """Whether the run has ended."""
    guards: dict[str, Tally]
    faults: dict[str, Tally]
    samples: tuple[tuple[str, str, float], ...]
    """Prompt, completion and reward of the last step with samples."""
    answers: dict[str, tuple[tuple[int, str, float], ...]]
    """The step, completion and reward of the first and the last sample of each long prompt, such as a sentence."""
    evaluations_of: dict[str, Series]
    """The held-out rewards of each objective."""

    def curves(self, name: str) -> dict[str, str]:
        """The metrics that a panel draws for one of CURVES, each with its objective; for a run without any its own."""
        own = {of_objective(name, each): each for each in self.objectives if name in BY_OBJECTIVE}
        return {each: own[each] for each in own if each in self.series} or {name: ""}

    def marked(self, kind: str) -> list[int]:
        """The steps with a mark of this kind."""
        return self._by_kind.get(kind, [])

    def rescues(self) -> list[tuple[str, Tally]]:
        """The guards that changed or refused something that healthy runs do not have, the first to act first."""
        acted = [(name, tally) for name, tally in self.guards.items() if tally.since >= 0 and not by_design(name)]
        return sorted(acted, key=lambda pair: pair[1].since)

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
    """The state of a running session: takes events one by one, and gives the screen at any time.

    Each event is evaluated once, so that the ten-thousandth frame costs little more than the first. A view in one line
    needs no screen: it reads the attributes.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.name, self.num_steps, self.completed = "", 0, 0
        """As of a screen."""
        self.news = ""
        """The last event in one line: a step in numbers, a held-out reward, why the run goes on, or how it ended."""
        self._settings: list[tuple[int, dict[str, Any]]] = []
        self._columns: dict[str, tuple[list[int], list[float]]] = {}
        self._evaluations: tuple[list[int], list[float]] = ([], [])
        self._evaluations_of: dict[str, tuple[list[int], list[float]]] = {}
        self._marks: list[Mark] = []
        self._strip: dict[int, dict[str, str]] = {}
        self._updates: dict[int, tuple[dict[str, str], ...]] = {}
        self._rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._tallies: dict[str, dict[str, Tally]] = {"guard": {}, "fault": {}}
        self._first_break: ChainBreak | None = None
        self._begun = self._poisoned = False
        self._last: Stepped | None = None
        self._failed_step: int | None = None
        self._samples: tuple[tuple[str, str, float], ...] = ()
        self._answers: dict[str, tuple[tuple[int, str, float], ...]] = {}
        self._ended: Ended | None = None
        self._result = ("", "")

    def add(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Resumed):
            return self._resume(event)
        self.events.append(event)
        self._begun = True
        self._first_break = self._first_break or first_break([event])
        if isinstance(event, Started):
            self._settings.append((0, event.config))
            self.name = str(event.config.get("run", {}).get("name", ""))
            self.num_steps = sum(planned_steps(event.config).values())
        elif isinstance(event, Changed):
            self._change(event)
        elif isinstance(event, Stepped):
            self._step(event)
        elif isinstance(event, Evaluated):
            self.news = f"held-out reward {event.reward:.3f}"
            _append(self._evaluations, event.step, event.reward)
            for name, reward in event.objectives.items():
                _append(self._evaluations_of.setdefault(name, ([], [])), event.step, reward)
        elif isinstance(event, Ended):
            self._ended, self._result, self.news = event, _result(outcome(self.events)), event.status

    def screen(self) -> Screen:
        """The screen after the events so far."""
        crash_step = self._failed_step
        if crash_step is None and self._ended and self._ended.status == "crashed":  # the process died without an event
            crash_step = self._last.step + 1 if self._last else 0
        status, message = self._status()
        crash = self._ended.crash if self._ended else None
        steps, updates = dict(self._strip), dict(self._updates)
        if crash_step is not None and crash and crash.operator == MULTINOMIAL:  # which has no number, but may crash
            steps[crash_step] = {**steps.get(crash_step, {}), MULTINOMIAL: "broken"}
            if crash_step in updates:
                updates[crash_step] = tuple({**row, MULTINOMIAL: "broken"} for row in updates[crash_step])
        crashed = () if crash_step is None else (Mark(crash_step, "crashed", message),)
        return Screen(
            name=self.name,
            status=status,
            message=message,
            step=self._last.step if self._last else -1,
            completed=self.completed,
            num_steps=self.num_steps,
            settings=tuple(self._settings),
            objectives=bands(self._settings),
            series={name: _series(columns) for name, columns in self._columns.items()},
            evaluations=_series(self._evaluations),
            marks=(*self._marks, *crashed),
            statuses=steps,
            updates=updates,
            first_break=self._first_break,
            crash_step=crash_step,
            explanation=crash.explanation if crash else "",
            over=self._ended is not None,
            guards=dict(self._tallies["guard"]),
            faults=dict(self._tallies["fault"]),
            samples=self._samples,
            answers=dict(self._answers),
            evaluations_of={name: _series(columns) for name, columns in self._evaluations_of.items()},
        )

    def _step(self, event: Stepped) -> None:
        names = {"reward": "reward", "sft/accuracy": "accuracy", "grad_norm": "norm", "kl": "kl"}
        news = [f"{label} {event.metrics[name]:.3g}" for name, label in names.items() if name in event.metrics]
        self._last, self.news = event, " ".join([*news, event.verdict.name] if event.refused else news)
        self.completed += not event.failed
        self._samples = event.samples or self._samples
        for prompt, completion, reward in event.samples:
            if len(prompt) >= LONG:
                self._answers[prompt] = (*self._answers.get(prompt, ())[:1], (event.step, completion, reward))
        if event.failed and self._failed_step is None:
            self._failed_step = event.step
        for name, value in event.metrics.items():
            _append(self._columns.setdefault(name, ([], [])), event.step, value)
        for action in event.actions:
            if action.kind in self._tallies:
                _count(self._tallies[action.kind], action, event.step)
        worst = _worst_action(event)
        guards = [action.name for action in event.actions if action.kind == "guard"]
        acted = ("by design" if all(map(by_design, guards)) else "acted") if guards else ""
        if kind := _KINDS.get(event.verdict, acted):
            self._marks.append(Mark(event.step, kind, f"{worst.name}: {worst.reason}" if worst else ""))
        row = self._strip.get(event.step, {}) | statuses([event])[event.step]
        if "probabilities" in row:
            row[MULTINOMIAL] = "healthy"
        self._strip[event.step] = self._kept(row)
        rows, of_step = by_update(event), {*_ONCE} if "logprobs" in row else {*_ONCE, "logits"}
        once = {link: status for link, status in row.items() if link in of_step}
        made = [once | rows.get(update, {}) for update in range(max(rows, default=0) + 1)]
        self._updates[event.step] = tuple(map(self._kept, [*made, once]))
        self._poisoned = poisoned([event], self._poisoned)

    def _kept(self, row: dict[str, str]) -> dict[str, str]:
        """The same row; most rows are equal, and are one object."""
        return self._rows.setdefault(tuple(row.items()), row)

    def _resume(self, event: Resumed) -> None:
        """Forget what was lost, and mark the step at which the run goes on."""
        if event.kept < len(self.events):
            kept = self.events[: event.kept]
            self.__init__()
            for each in kept:
                self.add(each)
        self.events.append(event)
        self.news = f"resumed: {event.reason}".removesuffix(": ")
        if isinstance(event, Forked):
            self._marks.append(Mark(event.at, "forked", f"fork of {event.parent}"))
        else:
            self._marks.append(Mark(event.step, "changed", self.news))
        if event.overrides:
            self._change(Changed(event.step, event.overrides))

    def _change(self, event: Changed) -> None:
        self._marks.append(Mark(event.step, "changed", ", ".join(event.overrides)))
        if not self._settings:
            return
        try:
            changed = Config.from_dict(self._settings[-1][1]).with_(*event.overrides).to_dict()
        except GrpoLabError:
            return  # a setting of another version: the mark is shown without its effect on the limits
        self._settings.append((event.step, changed))

    def _status(self) -> tuple[str, str]:
        """The status of the run in words, and the reason."""
        ended = self._ended
        if ended and ended.crash:
            operator = ended.crash.operator
            return ("crashed", ended.message) if operator == "unknown" else (f"crashed in {operator}", ended.crash.text)
        if ended and ended.status == "done":
            return ("done, poisoned", ended.message) if self._poisoned else self._result
        if ended:
            return ended.status + (", poisoned" if self._poisoned else ""), ended.message
        if not self._last:
            return ("starting" if self._begun else "waiting"), ""
        return ("poisoned", "weights are NaN or inf") if self._poisoned else _status_of(self._last)


def _count(tallies: dict[str, Tally], action: Action, step: int) -> None:
    """Add an action to the tallies."""
    old = tallies.get(action.name, Tally(0, 0, -1, -1, Verdict.KEEP, ""))
    since = step if old.since < 0 and action.verdict > Verdict.KEEP else old.since
    steps = old.steps + (old.last_step != step)
    tallies[action.name] = Tally(old.actions + 1, steps, since, step, action.verdict, action.reason)


def _worst_action(event: Stepped) -> Action | None:
    """The last of the most severe actions of a step, without those of faults."""
    actions = [action for action in event.actions if action.kind != "fault"]
    return max(reversed(actions), key=lambda action: action.verdict, default=None)


def _status_of(last: Stepped) -> tuple[str, str]:
    """The status of a run with finite weights, by its last step, and the reason."""
    worst = _worst_action(last)
    if last.verdict in _DOING:
        return _DOING[last.verdict], Sentence("{}: {}", worst.name, worst.reason) if worst else ""
    watched = [(name, value) for name, value in last.metrics.items() if of_run(name) in _WATCHED]
    for name, value in sorted(watched, key=lambda pair: _WATCHED.index(of_run(pair[0]))):
        usual = metric(name)
        if not usual.low <= value <= usual.high:
            if value < usual.low:
                return "spiking", Sentence("{} {}, usual at least {:g}", usual.label, shown(value), usual.low)
            return "spiking", Sentence("{} {}, usual up to {:g}", usual.label, shown(value), usual.high)
    return "healthy", ""


def _result(found: Outcome) -> tuple[str, str]:
    """The status of a finished run by what it learned, and the rewards that say it."""
    if found.learned is Learned.NOTHING and not found.updates:
        return _RESULTS[found.learned], Sentence("no step changed the weights")
    if not (found.by_training or math.isnan(found.gained)):
        said = Sentence("held-out reward {} before, {} after", shown(found.before), shown(found.after))
    elif math.isnan(found.first):
        return "done", ""
    elif found.window == 1:
        said = Sentence("reward {} in the first step, {} in the last", shown(found.first), shown(found.end))
    else:
        words = "reward {} in the first step; mean of the first {} steps {}, of the last {} {}"
        start, end = shown(found.start), shown(found.end)
        said = Sentence(words, shown(found.first), found.window, start, found.window, end)
    return _RESULTS[found.learned], said


def fold(events: Iterable[Event]) -> Screen:
    """The screen after these events, the same for a live run and for one read back.

    >>> fold([]).status
    'waiting'
    """
    folded = Fold()
    for event in events:
        folded.add(event)
    return folded.screen()


def _append(columns: tuple[list[int], list[float]], step: int, value: float) -> None:
    columns[0].append(step)
    columns[1].append(value)


def _series(columns: tuple[list[int], list[float]]) -> Series:
    return Series(tuple(columns[0]), tuple(columns[1]))


def tone(status: str) -> str:
    """How a status is shown: `good`, `calm`, `odd` or `bad`.

    >>> tone("done, learned"), tone("done, reward lost"), tone("spiking")
    ('good', 'bad', 'odd')
    """
    if any(word in status for word in ("crashed", "poisoned", "failed", "lost")):
        return "bad"
    if status in ("healthy", "done", "done, learned"):
        return "good"
    calm = ("waiting", "starting", "first step", "paused", "stopped", "nothing", "say")
    return "calm" if status.endswith(calm) else "odd"


def status_words(status: str) -> str:
    """A status of a run in the user's language.

    >>> status_words("done, poisoned"), status_words("crashed in torch.multinomial")
    ('done, poisoned', 'crashed in torch.multinomial')
    """
    kind, _, operator = status.partition(" in ")
    if operator:
        return text("status.crashed_in", operator=spoken(operator))
    return text("status.comma").join(text(f"status.{part.replace(' ', '_')}") for part in kind.split(", "))


def describe(screen: Screen) -> str:
    """The screen in two sentences with its numbers, as alternative text of its figure; safe inside Markdown."""
    curves = [
        _curve_in_words(name, objective, screen.series[own])
        for name in CURVES
        for own, objective in screen.curves(name).items()
        if own in screen.series
    ]
    bands = {name: spans[-1][1:] for name, spans in screen.objectives.items()}
    kept_in = [
        text("alt.from_to", name=name, start=f"{low:g}", end=f"{high:g}")
        for name, (low, high) in bands.items()
        if not math.isnan(low)
    ]
    if kept_in:
        curves.append(text("alt.bands", said=text("alt.comma").join(kept_in)))
    state = [_progress(screen), text("alt.comma").join(curves)]
    facts = [_first_break(screen)]
    facts += [text("alt.acted", guard=name, step=tally.since) for name, tally in screen.rescues()]
    counts = {kind: len(screen.marked(kind)) for kind in ("skipped", "rolled back")}
    refused = [text(f"alt.{kind.replace(' ', '_')}", count=count) for kind, count in counts.items() if count]
    if refused:
        facts.append(text("alt.refused", said=text("alt.comma").join(refused)))
    words = text(
        "alt.said", state=text("alt.semicolon").join(filter(None, state)), facts=text("alt.semicolon").join(facts)
    )
    return " ".join(words.translate(str.maketrans("[]", "()")).split())


def _progress(screen: Screen) -> str:
    name, done = screen.name or text("alt.run"), screen.completed
    if screen.num_steps > done:
        steps = text("alt.steps_of", count=done, total=screen.num_steps)
    else:
        steps = text("alt.step" if done == 1 else "alt.steps", count=done)
    return text("alt.progress", name=name, status=status_words(screen.status), steps=steps)


def _first_break(screen: Screen) -> str:
    found = screen.first_break
    if found is None:
        return text("alt.unbroken")
    if found.link not in LINKS:
        return text("alt.unrecorded", operator=found.in_words()[0])
    return break_words("alt", found)


def break_words(kind: str, found: ChainBreak) -> str:
    """The first break of a link in a sentence, for a `panel` or an alternative text (`alt`)."""
    caught = text("panel.caught", guard=found.caught_by) if found.caught_by else text("panel.not_caught")
    link, operator = spoken(LINKS[found.link].label), found.in_words()[0]
    return text(f"{kind}.first_break", link=link, step=found.step, operator=operator, caught=caught)


def _curve_in_words(metric: str, objective: str, series: Series) -> str:
    label, values = spoken(METRICS[metric].label), series.values
    name = text("alt.of_objective", label=label, objective=objective) if objective else label
    start, end = shown(values[0]), shown(values[-1])
    words = text("alt.from_to", name=name, start=start, end=end) if len(values) > 1 else f"{name} {start}"
    finite = [(value, step) for step, value in zip(*series, strict=True) if math.isfinite(value)]
    broken = next((step for step, value in zip(*series, strict=True) if not math.isfinite(value)), None)
    peak, at = max(finite, default=(math.nan, 0), key=lambda pair: pair[0])
    extremes = [text("alt.most", value=shown(peak), step=at)] if finite and shown(peak) not in (start, end) else []
    extremes += [text("alt.broken", step=broken)] if broken is not None else []
    return text("alt.extremes", said=words, extremes=text("alt.comma").join(extremes)) if extremes else words
