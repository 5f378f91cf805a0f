"""The events of a run, each one line of JSON.

NaN and inf are ordinary data here. JSON has neither, so they are written as the strings "nan", "inf" and "-inf", and
every number that may be NaN or inf is read back with float().

>>> from_json(to_json(Evaluated(step=0, reward=float("nan"), num_problems=500)))
Evaluated(step=0, reward=nan, num_problems=500, objectives={})
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from sys import intern
from typing import Any, TypeVar, get_args

from grpo_lab.core.hooks import Action, Verdict
from grpo_lab.errors import RunError, Sentence
from grpo_lab.messages import spoken


@dataclass(frozen=True, slots=True)
class LinkNote:
    """One link of the chain: its magnitude, how many elements are not finite, and where the worst element is."""

    link: str
    update: int
    magnitude: float
    nonfinite: float
    numel: int
    where: str = ""
    facts: dict[str, float] = field(default_factory=dict)
    """Of a tensor its `lowest` and `highest` element; of the worst one its `prompt`, `completion`, `token`, from 1."""
    shape: tuple[int, ...] = ()
    """Of the tensor that the worst element is in: one micro-batch of several."""
    histogram: tuple[int, ...] = ()
    """Of a sample, how many elements have |x| below 1e-7 (zeros, too), in each decade from there, and from 1e7 on.

    NaN and inf are in none of the 16 buckets. Empty in files of older versions."""
    prompt: str = ""
    """The prompt of the completion that the worst element belongs to; of a long one its end."""

    @property
    def broken(self) -> bool:
        """Whether any element is NaN or inf."""
        return self.nonfinite > 0


@dataclass(frozen=True, slots=True)
class CompletionNote:
    """A completion at one update, token by token; numbers have five digits. A link that did not run has none."""

    why: tuple[str, ...]
    """Why it is kept: it has the largest `log_ratio`, `gradient` or `kl` of the step by magnitude, the first value that
    is `nonfinite`, or a `usual` gradient."""
    number: int
    """Its place in the batch of the step."""
    update: int
    prompt: str
    tokens: tuple[str, ...]
    """A special token by its name, and a byte that is no whole letter as `\\xef`."""
    advantage: float
    """That of its first token, where tokens have their own."""
    weight: float
    """The weight of a token in the loss."""
    logprobs: tuple[float, ...] = ()
    old_logprobs: tuple[float, ...] = ()
    ref_logprobs: tuple[float, ...] = ()
    log_ratio: tuple[float, ...] = ()
    """Before any guard."""
    ratio: tuple[float, ...] = ()
    """As the loss uses it."""
    kl: tuple[float, ...] = ()
    """The estimate of the loss."""
    clipped: tuple[bool, ...] = ()
    """Whether the clip takes the token out of the gradient."""
    gradient: tuple[float, ...] = ()
    """At the log-ratio."""


@dataclass(frozen=True, slots=True)
class Started:
    """A run begins."""

    config: dict[str, Any]
    num_parameters: int
    device: str
    threads: int = 0
    """CPU threads of torch, which `run.threads = 0` leaves to the run; 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Settings of a running model were changed at the top of `step`."""

    step: int
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step, whole or cut short: by a guard (`verdict`) or by an error (`failed`)."""

    step: int
    updates: int
    verdict: Verdict
    metrics: dict[str, float]
    links: tuple[LinkNote, ...]
    actions: tuple[Action, ...]
    samples: tuple[tuple[str, str, float], ...] = ()
    failed: bool = False
    extras: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that reward functions logged with `log_extra`, by column: one for each sample of an objective."""
    completions: tuple[CompletionNote, ...] = ()
    """At most seven that explain the step's numbers."""

    @property
    def refused(self) -> bool:
        """Whether a guard or the trainer refused the rest of the step: skipped, rolled back or stopped."""
        return self.verdict >= Verdict.SKIP_STEP


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Mean reward of held-out problems, sampled once each at temperature 1, before `step`."""

    step: int
    reward: float
    num_problems: int
    objectives: dict[str, float] = field(default_factory=dict)
    """The reward of each objective, where the run lists them."""


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The state before `step` is on disk, or could not be written: then `problem` says why, and training goes on."""

    step: int
    seconds: float
    bytes: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run goes on before `step`, with a checkpoint's state or from its start; see `lineage` for `kept`."""

    step: int
    kept: int
    """Number of events before it that hold; those after them were lost with the process that made them."""
    reason: str = ""
    overrides: tuple[str, ...] = ()
    """Changes of the running model at this step."""


@dataclass(frozen=True, slots=True)
class Forked(Resumed):
    """A run begins as a copy of another one, `parent`, which it leaves before step `at`.

    It goes on from a checkpoint of the parent before `step`; the steps up to `at` are made again, with the same bits.
    """

    parent: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True)
class Crash:
    """An error that ended a run, classified."""

    kind: str
    operator: str
    text: str
    explanation: str

    def __str__(self) -> str:
        """The error's text, and the explanation in the user's language."""
        return f"{self.text}\n{spoken(self.explanation)}"


@dataclass(frozen=True, slots=True)
class Ended:
    """A run is over: `done`, `stopped` (by a guard, the user, or as nothing was trained) or `crashed`."""

    status: str
    message: str = ""
    crash: Crash | None = None


Event = Started | Changed | Stepped | Evaluated | Checkpointed | Resumed | Forked | Ended
EVENTS: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}


def lineage(events: Iterable[Event]) -> list[Event]:
    """The events of a log that led to its last one: without those that a later `Resumed` replaced.

    >>> found = lineage([Ended("crashed"), Resumed(0, kept=0), Ended("done")])
    >>> [type(event).__name__ for event in found]
    ['Resumed', 'Ended']
    """
    found: list[Event] = []
    for event in events:
        if isinstance(event, Resumed):
            del found[event.kept :]
        found.append(event)
    return found


def to_json(event: Event) -> str:
    """The event as one line of valid JSON, in ASCII, so that no sampled character (such as U+2028) ends the line.

    Beside a sentence with values stands its template, as `"said": {"reason": ["norm {:.4g} > {:g}", ["12", "10"]]}`.
    """
    notes = event.completions if isinstance(event, Stepped) else ()
    plain = dataclasses.replace(event, completions=()) if notes else event  # asdict would copy each number
    tree = {"event": type(event).__name__, **dataclasses.asdict(plain)}
    if isinstance(event, Stepped):
        del tree["completions"]
        found = [{name: getattr(note, name) for name in CompletionNote.__slots__} for note in notes]
        tree |= {"completions": found} if notes else {}
    for part in (tree, *tree.get("actions", ())):
        said = {key: each.parts() for key, each in part.items() if isinstance(each, Sentence) and each.values}
        part |= {"said": said} if said else {}
    return json.dumps(encodable(tree), allow_nan=False, separators=(",", ":"))


def from_json(line: str) -> Event:
    """The event of one line.

    Raises RunError for a half-written line and for an event of another version.
    """
    try:
        tree = json.loads(line)
        kind = tree.pop("event")
        return read(EVENTS[kind], tree)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"not an event: {line[:60]!r} ({type(error).__name__}: {error})") from error


def encodable(value: Any) -> Any:
    """The same value for JSON: NaN and inf as strings, a verdict as its name."""
    if type(value) in (int, str):  # most are
        return value
    if isinstance(value, dict):
        return {str(k): encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(v) for v in value]
    as_text = isinstance(value, Verdict) or (isinstance(value, float) and not math.isfinite(value))
    return str(value) if as_text else value


Part = TypeVar("Part")


def read(cls: type[Part], tree: dict[str, Any]) -> Part:
    """An event, or a part of one, of a parsed JSON object; a sentence of its `said` replaces its English text."""
    said = {key: Sentence.of(parts) for key, parts in tree.pop("said", {}).items()}
    readers = _readers(cls)
    return cls(**{name: readers[name](value) if name in readers else value for name, value in tree.items()} | said)


@functools.cache
def _readers(cls: type) -> dict[str, Callable[[Any], Any]]:
    """What reads the fields of a class that JSON does not give back as they were, by their annotation."""
    names = {each.name: getattr(each.type, "__name__", each.type) for each in dataclasses.fields(cls)}
    found = {name: _OF_TYPE[of_type] for name, of_type in names.items() if of_type in _OF_TYPE}
    return found | (dict.fromkeys(("link", "where", "prompt"), intern) if cls is LinkNote else {})


_NONE: dict[str, float] = {}


def _floats(tree: dict[str, Any]) -> dict[str, float]:
    """Numbers by name. A long run holds millions, so equal names and empty tables are shared."""
    return {intern(name): float(value) for name, value in tree.items()} if tree else _NONE


def _each(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda values: tuple(map(read, values))


_OF_TYPE: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "Verdict": Verdict.__getitem__,
    "Crash | None": lambda tree: tree and read(Crash, tree),
    "dict[str, float]": _floats,
    "dict[str, tuple[Any, ...]]": lambda tree: {name: tuple(values) for name, values in tree.items()},
    **dict.fromkeys(("tuple[int, ...]", "tuple[str, ...]", "tuple[bool, ...]"), tuple),
    "tuple[float, ...]": _each(float),
    "tuple[tuple[str, str, float], ...]": _each(lambda row: (row[0], row[1], float(row[2]))),
    "tuple[LinkNote, ...]": _each(partial(read, LinkNote)),
    "tuple[Action, ...]": _each(partial(read, Action)),
    "tuple[CompletionNote, ...]": _each(partial(read, CompletionNote)),
}
"""What reads a value, by the annotation of its field."""
