"""One value of one step: its numbers, where its worst element is, and the lines of the trainer that computed it."""

import functools
import inspect
import linecache
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.analysis.run_state import MULTINOMIAL, shown
from grpo_lab.config.sections import LossConfig
from grpo_lab.errors import RunError, check_known
from grpo_lab.events import Event, LinkNote, Started, Stepped
from grpo_lab.messages import spoken, text
from grpo_lab.metrics import LINKS
from grpo_lab.paths import data_tables
from grpo_lab.runs.first_break import first_break
from grpo_lab.training import policy_loss
from grpo_lab.training.registry import FORMULAS

_TABLES = data_tables("anatomy")
COMPUTED: dict[str, list[list[str]]] = _TABLES["links"]
"""The functions that compute each link by default, each with expressions of its lines."""
_AROUND = 2
"""Lines shown before and after those that computed a value."""
_BY_NORM = ("gradients", "clipped_gradients", "moments", "weights")
_OF_SURROGATE = ("surrogate", "importance_sampling_level", "importance_sampling_mode")


class Source(NamedTuple):
    """Lines of an installed file: number, text, and whether it computed the value."""

    path: Path
    lines: tuple[tuple[int, str, bool], ...]

    @property
    def first(self) -> int:
        """The number of the first line that computed the value."""
        return next(number for number, _, computed in self.lines if computed)

    def __str__(self) -> str:
        lines = (f"{'>' if computed else ' '} {number:>4}  {line}" for number, line, computed in self.lines)
        return "\n".join([f"{self.path}:{self.first}", *lines])


def source(function: Callable[..., Any], expressions: Sequence[str]) -> Source:
    """The lines of a function that hold the expressions, with those around them, as the file has them now.

    Raises RunError where an expression is gone.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)  # of a decorator, such as torch.no_grad
    path = Path(inspect.getsourcefile(function) or "")
    linecache.checkcache(str(path))
    lines, first = inspect.getsourcelines(function)
    places = {each: [at for at, line in enumerate(lines) if each in line] for each in expressions}
    if gone := [each for each, found in places.items() if not found]:
        raise RunError(f"{path}: {function.__qualname__} has no line with {gone[0]!r}")
    marked = {at for found in places.values() for at in found}
    shown_lines = range(max(0, min(marked) - _AROUND), min(len(lines), max(marked) + _AROUND + 1))
    return Source(path, tuple((first + at, lines[at].rstrip(), at in marked) for at in shown_lines))


@dataclass(frozen=True)
class Anatomy:
    """A link at an update of a step; `note` is None where torch.multinomial has no number."""

    link: str
    step: int
    note: LinkNote | None
    operator: str
    explanation: str
    sources: tuple[Source, ...]

    @property
    def title(self) -> str:
        """The link, step and update."""
        label = spoken(LINKS[self.link].label) if self.link in LINKS else self.link
        return text("anatomy.title", link=label, step=self.step, update=self.note.update if self.note else 0)

    def rows(self) -> list[tuple[str, str]]:
        """Names and values of the numbers, in the user's language."""
        note, operator = self.note, (text("anatomy.operator"), spoken(self.operator))
        if note is None:
            return [operator]
        share = text("anatomy.share", count=f"{note.nonfinite:,.0f}", total=f"{note.numel:,}")
        found, by_norm = {"shape": " × ".join(map(str, note.shape)), "nonfinite": share}, self.link in _BY_NORM
        extremes = {name: shown(note.facts[name]) for name in ("lowest", "highest") if name in note.facts}
        found |= extremes or {"norm" if by_norm else "magnitude": shown(note.magnitude)}
        found |= {"pass": "" if by_norm else note.where.partition("[")[0].strip(), "worst": place(note)}
        return [*((text(f"anatomy.{name}"), value) for name, value in found.items() if value), operator]

    def bars(self) -> list[tuple[str, int]]:
        """The decades of |x| with the number of sampled elements in each; empty in older recordings."""
        counts = self.note.histogram if self.note else ()
        ends = [f"1e{power}" for power in range(-7, 8)]
        return list(zip([f"< {ends[0]}", *(f"≥ {end}" for end in ends)], counts, strict=False))

    def __str__(self) -> str:
        most = max((count for _, count in self.bars()), default=0)
        bars = (f"  {name:>7} {count:>6} {'█' * round(30 * count / most)}" for name, count in self.bars() if count)
        rows = (f"  {name}: {value}" for name, value in self.rows())
        return "\n".join([self.title, *rows, *bars, *map(str, self.sources)])


def place(note: LinkNote) -> str:
    """The worst element's place in words: its completion, prompt and token, or the name of its parameter."""
    owner = ("prompt", "completion", "token")
    facts, found = {name: int(note.facts[name]) for name in owner if name in note.facts}, note.where
    index = [int(each) + 1 for each in re.findall(r"\d+", found.partition("[")[2])]
    if facts:
        prompt = repr(note.prompt) if note.prompt else facts["prompt"]
        key = "anatomy.token" if "token" in facts else "anatomy.completion"
        return text(key, **{**facts, "prompt": prompt})
    if len(index) == 2 and note.link in ("rewards", "advantages"):
        return text("anatomy.completion", prompt=index[0], completion=index[1])
    if len(index) == 2 and note.link != "probabilities":
        return text("anatomy.row", completion=index[0], token=index[1])
    return found if note.link in _BY_NORM else ", ".join(map(str, index))


def anatomy(events: Iterable[Event], link: str, step: int | None = None, update: int | None = None) -> Anatomy:
    """The anatomy of a link; without a step of the first break, or else of the last step, without an update of its
    worst note.

    Raises RunError for an unknown link, and where the step did not get so far.
    """
    check_known("link", [link], COMPUTED, RunError)
    events = list(events)
    steps, broken = [event for event in events if isinstance(event, Stepped)], first_break(events)
    if step is None:
        step = broken.step if broken and broken.step >= 0 else max((event.step for event in steps), default=0)
    began = [event for event in steps if event.step == step]
    links = [(event, note) for event in began for note in event.links if note.link == link]
    if len({note.update for _, note in links}) > 1 and update is not None:
        links = [pair for pair in links if pair[1].update == update]
    if not links and (link != MULTINOMIAL or not began):
        raise RunError(text("anatomy.absent", link=link, step=step))
    found = max(links, key=lambda pair: (pair[1].broken, pair[1].magnitude), default=None)
    event, note = found or (began[-1], None)
    config = next((each.config for each in events if isinstance(each, Started)), {})
    cause = first_break([event])
    operator, why = LINKS[link].operator if note else MULTINOMIAL, ""
    if note and cause and (cause.link, cause.update) == (link, note.update):
        operator, why = cause.operator, cause.explanation
    return Anatomy(link, step, note, operator, why, tuple(_of_run(link, config)))


def _of_run(link: str, config: dict[str, Any]) -> Iterable[Source]:
    """The lines of a link, with the formulas that the run's settings name in the places of the default ones."""
    usual = vars(LossConfig())
    changed = {name: value for name, value in config.get("loss", {}).items() if value != usual.get(name)}
    if link == "ratio" and not changed.keys().isdisjoint(_OF_SURROGATE):
        yield source(policy_loss.surrogate, ("log_weights = ", "ratio = "))
        return
    for name, *expressions in COMPUTED[link]:
        setting = _TABLES["replaced"].get(name, "")
        replaced = FORMULAS.get(setting, {}).get(changed.get(setting, ""))
        module, _, function = name.partition(":")
        usual_one = attrgetter(function)(import_module(f"grpo_lab.{module}"))
        yield source(replaced, ("return ",)) if replaced else source(usual_one, expressions)
