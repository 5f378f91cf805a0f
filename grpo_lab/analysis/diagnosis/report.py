"""A diagnosis in words: as text and as HTML for a notebook, in the user's language, and as plain values for JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.cells import cell_len as width

from grpo_lab import messages
from grpo_lab.analysis.diagnosis.causes import ENOUGH_STEPS, Cause, DetectedCause, Evidence, Findings, Remedy, Suspect
from grpo_lab.analysis.diagnosis.symptoms import (
    FIELD_OF,
    FIELDS,
    OWN,
    Unknown,
    algorithm_in,
    course,
    finite,
    noise,
    settings_that_tell,
    start,
)
from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.markdown import templates
from grpo_lab.events import encodable
from grpo_lab.metrics import METRICS, OF_THE_MACHINE, of_run

WIDTH = 100
_WIDE = "\u2e80-\u9fff\uff00-\uffef"
_UNIT = re.compile(rf"[（《“]*[{_WIDE}][，。：；、！？）》”]*|[^\s{_WIDE}（“《]+[，。：；、！？）》”]*|\s+|.")
"""The parts between which a line may break: words, and Chinese characters with the punctuation that stays with them."""


def wrapped(said: str, by: int, first: str = "", most: int = WIDTH) -> list[str]:
    """A paragraph of at most so many columns, indented by `by`, broken only between words or Chinese characters.

    >>> wrapped("one two", 2, "1. ")
    ['  1. one two']
    """
    line, later, lines = " " * by + first, " " * (by + width(first)), []
    for unit in _UNIT.findall(" ".join(said.split())):
        if width(line + unit.rstrip()) > most and line.strip() and line != later:
            lines.append(line.rstrip())
            line, unit = later, unit.lstrip()
        line += unit
    return [*lines, line.rstrip()]


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as columns, the last one broken between words where it would be too wide."""
    widths = [max(width(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    by = 2 + sum(each + 2 for each in widths)
    for row in rows:
        cells = zip(row, widths, strict=False)
        left = "  " + "".join(cell + " " * (most - width(cell) + 2) for cell, most in cells)
        first, *rest = wrapped(row[-1], by) if row[-1] and by < WIDTH - 20 else [" " * by + row[-1]]
        yield (left + first[by:]).rstrip()
        yield from rest


@dataclass(frozen=True)
class Words:
    """The words of one language.

    >>> Words("en")("tell_apart"), Words("zh")("tell_apart")
    ('To tell them apart', '如何区分')
    """

    language: str

    def __call__(self, key: str, **values: Any) -> str:
        """The fixed phrase of a key."""
        return messages.text_in(self.language, f"diagnosis.{key}", **values)

    def count(self, thing: str, number: int) -> str:
        """A number of steps, metrics or settings."""
        return self(f"{'one' if number == 1 else 'many'}.{thing}", count=f"{number:,}")

    def titled(self, cause: Cause, objective: str = "") -> str:
        """The title of a cause, with the objective that shows it."""
        title = self.of(f"cause.{cause.name}.title", cause.title)
        return title + self("objective", name=objective) if objective else title

    def what(self, cause: Cause) -> str:
        """What a cause does."""
        return self.of(f"cause.{cause.name}.what", cause.what)

    def suspect(self, suspect: Suspect) -> str:
        """A suspect in words; one that a single cause names has its words as its name."""
        table = "suspect" if suspect.name else "own_suspect"
        return self.of(f"{table}.{suspect.name or suspect.says}", suspect.says)

    def remedy(self, remedy: Remedy) -> str:
        """What a remedy does."""
        return self.of(f"remedy.{remedy.do}", remedy.do)

    def symptom(self, evidence: Evidence) -> str:
        """A symptom in words, with the medians of all objectives."""
        said = self.of(f"symptom.{evidence.symptom}", evidence.says)
        return said + self("medians", values=evidence.medians) if evidence.medians else said

    def of(self, key: str, english: str) -> str:
        """A text of data/diagnosis; code alone has no translation."""
        table = {} if self.language == messages.ENGLISH else messages.catalogue(self.language, "diagnosis")
        return table.get(key, english)


TOGETHER = 3
"""Curves that are named together; of more the number is told."""
HIGH = 0.85
"""A mean reward of at most 1 that begins here is solved from the start."""
NO_SPREAD, HUGE = 0.999, 1e4
"""The share of groups without spread, and the gradient norm, that are told where every row has more."""
LEAST_HELD_OUT = 0.15
"""The relative change of a held-out reward that is told."""
COMPANIONS = {
    "entropy": ("entropy_up", "entropy_down", 0.5),
    "kl": ("kl_up", "kl_down", 1.0),
    "completions/mean_length": ("length_up", "length_down", 0.35),
}
"""The curves told beside the reward: messages for up and down, and the least relative change."""


class Part(NamedTuple):
    """A part of the sentence: a message diagnosis.story.<key> of data/locale with its values."""

    key: str
    values: Mapping[str, Any] = MappingProxyType({})

    def said(self, language: str) -> str:
        values = {name: number(value) if isinstance(value, float) else value for name, value in self.values.items()}
        return messages.text_in(language, f"diagnosis.story.{self.key}", **values)


def number(value: float) -> str:
    """A number as a sentence has it.

    >>> number(17098.2), number(0.06361), number(1e-9)
    ('17,098', '0.064', '0')
    """
    if abs(value) < 5e-4:
        return "0"
    if 100 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.3g}"


def story(log: Log, language: str) -> str:
    """What happened to the run of a log, in one sentence.

    >>> falls = pd.Series([0.8] * 10 + [0.0] * 10, index=range(1, 21))
    >>> story(Log({"reward": falls, "entropy": 3 - 3 * falls}), "en")
    'Reward 0.8 → 0 from step 11: entropy rose 0.6 → 3; it did not recover.'
    """
    main, since = _of_reward(log)
    told = [part.said(language) for part in _companions(log, main, since)]
    end = [part.said(language) for part in _end(log, main)]
    said = main.said(language)
    if told:
        joined = messages.text_in(language, "diagnosis.comma").join(told)
        said = messages.text_in(language, "diagnosis.story.with", said=said, told=joined)
    return "".join([said, *end]) + messages.text_in(language, "diagnosis.stop")


def _of_reward(log: Log) -> tuple[Part, int | None]:
    """The course of the reward, and the step from which on it fell; None if it did not."""
    if "reward" not in log.metrics:
        return Part("no_reward" if log.metrics else "no_metric"), None
    curve = _finite(log, "reward")
    values, steps = curve.to_numpy(np.float64), curve.index.to_numpy(np.int64).tolist()
    if not len(values):
        return Part("reward_nan"), None
    found = course(values)
    if found is None:
        ends = {"count": len(values), "first": float(values[0]), "last": float(values[-1])}
        return Part("few" if len(values) > 1 else "one_row", ends), None
    ends = {"first": found.first, "last": found.last}
    if np.ptp(values) == 0:
        return Part("same", {"level": found.first}), None
    if found.kind == "fell":
        rose = found.top - found.first > found.sure
        told = {"begin": found.first, "top": found.top, "peak": steps[found.peak], "last": found.last}
        return Part("rose_and_fell" if rose else "fell", told | {"step": steps[found.left]}), steps[found.left]
    if found.kind == "dipped":
        return Part("dipped", {**ends, "low": found.dip, "step": steps[found.dip_place]}), None
    if found.first >= HIGH and float(values.max()) <= 1 + 1e-6:
        return Part("solved", ends), None
    return Part(found.kind, ends), None


def _companions(log: Log, main: Part, since: int | None) -> Iterator[Part]:
    """What moved with the reward: before and after its fall, or from the first steps to the last."""
    for name, (up, down, least) in COMPANIONS.items():
        if (ends := _ends(log, name, since)) is None:
            continue
        first, last, sure = ends
        if abs(last - first) > max(sure, least * abs(first), 0.05 if name == "kl" else 0.02):
            yield Part(up if last > first else down, {"first": first, "last": last})
    if cut := _ends(log, "completions/clipped_ratio", since):
        first, last, _ = cut
        if last >= 0.5:
            yield Part("cut_throughout" if first >= 0.5 else "into_the_limit", {"share": f"{last:.0%}"})
    yield from _held_out(log)
    zero = _finite(log, "frac_reward_zero_std")
    if len(zero) > 1 and zero.min() > NO_SPREAD and main.key != "same":
        yield Part("no_spread")
    norm = _finite(log, "grad_norm")
    if len(norm) and norm.min() > HUGE:
        yield Part("norm_huge", {"level": float(norm.median())})
    if len(norm) and norm.max() > max(50 * norm.median(), METRICS["grad_norm"].high):
        yield Part("norm_peak", {"peak": float(norm.max()), "step": int(norm.index[norm.argmax()])})
    yield from _not_finite(log)


def _held_out(log: Log) -> Iterator[Part]:
    """The held-out reward, which few rows have: from its best value down if half the gain is lost, or up."""
    values = _finite(log, "eval/reward").to_numpy(np.float64)
    if len(values) < 2:
        return
    first, best, last = float(values[0]), float(values.max()), float(values[-1])
    if best - last > max(LEAST_HELD_OUT * abs(best), 0.5 * (best - first), 0.01):
        yield Part("held_out_down", {"first": best, "last": last})
    elif last - first > max(LEAST_HELD_OUT * abs(first), 0.01):
        yield Part("held_out_up", {"first": first, "last": last})


def _finite(log: Log, name: str) -> pd.Series:
    curve = log.metrics.get(name, pd.Series(dtype=np.float64))
    return curve.loc[np.isfinite(curve.to_numpy(np.float64))]


def _ends(log: Log, name: str, since: int | None) -> tuple[float, float, float] | None:
    """The levels of a curve before a step and at the end, or at both ends, and the least sure difference."""
    curve = _finite(log, name)
    found = course(curve.to_numpy(np.float64))
    if found is None:
        return None
    before = curve.loc[curve.index < since] if since is not None else curve.iloc[:0]
    first = float(before.iloc[-5:].median()) if len(before) else found.first
    return first, found.last, found.sure


def _not_finite(log: Log) -> Iterator[Part]:
    """The curves that are not finite to the end, by the step from which on they are not; 0 rows before it: in none."""
    found: dict[tuple[str, int], list[str]] = {}
    for name in (name for name in METRICS if name in log.metrics and name != "reward"):
        curve = log.metrics[name]
        broken = ~np.isfinite(curve.to_numpy(np.float64))
        if len(broken) and broken[-1]:
            place = int(np.flatnonzero(~broken)[-1]) + 1 if not broken.all() else 0
            found.setdefault(("nan_from" if place else "nan_always", int(curve.index[place])), []).append(name)
    for (key, step), names in sorted(found.items(), key=lambda item: item[0][1]):
        more = f" + {len(names) - TOGETHER}" if len(names) > NAMED else ""
        yield Part(key, {"metric": ", ".join(names[:TOGETHER]) + more, "step": step})


def _end(log: Log, main: Part) -> Iterator[Part]:
    """Whether the run recovered, and how it ended."""
    if main.key in ("fell", "rose_and_fell"):
        rows = int((log.metrics["reward"].index >= main.values["step"]).sum())
        yield Part("not_recovered" if rows >= 3 else "at_the_end")
    if log.begins_late:
        counted = int(log.steps[0]) <= 1  # the rows have no step, and something else tells that others were before
        yield Part("beginning_missing") if counted else Part("begins_late", {"step": int(log.steps[0])})
    if log.crash:
        yield Part("crashed", {"crash": log.crash})


HEAD = ("step", "metric", "value", "last", "healthy", "meaning")
"""The columns of the evidence: the value in the first step that shows it, and the last one."""
WIDEST = 40
"""Letters of the column of metrics, where an exception may stand too."""
NAMED = 3
"""Metrics that are named in each of two lines of what a log lacks; `--json` has all."""
NAMES = {"grpo_lab": "grpo_lab", "trl": "TRL", "verl": "verl", "openrlhf": "OpenRLHF", "ms-swift": "ms-swift"}


def headline(found: Findings, language: str = messages.ENGLISH) -> str:
    """The verdict in one line."""
    word = Words(language)
    if not found.named:
        return word("not_enough" if found.lacking else "nothing_wrong")
    first = found.named[0]
    said = word("failure", title=word.titled(first.cause, first.objective), step=first.step, cause=first.cause.name)
    return said if first.cause.level == "failure" else word("warning", said=said)


def text(found: Findings, name: str = "") -> str:
    """The whole diagnosis in the user's language, its lines at most 100 columns wide where they can be broken.

    Lines that begin at the left are headings and facts about the log; what they say is indented.
    """
    word = Words(messages.language())
    return "\n".join([*_of_log(found, name, word), "", *_of_findings(found, word), *_of_limits(found, word)])


def _of_log(found: Findings, name: str, word: Words) -> Iterator[str]:
    log, steps = found.log, found.log.steps
    count = word.count("step", len(steps))
    if len(steps):
        count += word("between", first=steps[0], last=steps[-1])
    facts = [log.format_in_words(word.language), count, word("metrics", count=len(log.metrics))]
    if log.source:
        facts.append(word("written_by", name=NAMES[log.source]))
    if log.settings:
        facts.append(word.count("setting", len(log.settings)))
    said = word("comma").join(facts)
    yield word("named", name=name, said=said) if name else said
    told = [f"{name}={value}" for name, value in settings_that_tell(log).items() if not name.startswith(OWN)]
    if algorithm := algorithm_in(log):
        said = word("because", said=algorithm, why=word("comma").join(told)) if told else algorithm
        yield word("algorithm", said=said)
    for note in log.notes:
        yield word("note", said=note.said(word.language))
    if len(steps) < ENOUGH_STEPS:
        yield word("note", said=word("few", count=count))
    if log.crash:
        yield word("crash", said=log.crash)
    for number, earlier in enumerate(found.earlier, start=1):
        yield word("run", number=number, count=len(found.earlier) + 1, said=headline(earlier, word.language))


def _of_findings(found: Findings, word: Words) -> Iterator[str]:
    yield from wrapped(story(found.log, word.language), 0)
    yield "\n" + headline(found, word.language)
    if not found.named:
        yield from (f"  {said}" for said in _why_nothing(found, word))
    for finding in found.named[:1]:
        yield from _of_cause(finding, found.log.source, word)
    if found.named[1:]:
        yield "\n" + word("also")
    for also in found.named[1:]:
        title = word.titled(also.cause, also.objective)
        said = word("also_found", title=title, level=word(f"level.{also.cause.level}"), cause=also.cause.name)
        yield from wrapped(word("from_step", step=also.step, said=said), 2)
    for finding in found.findings:
        if finding.cause.level == "note":
            yield "\n" + word("noted", step=finding.step)
            yield from wrapped(word.titled(finding.cause, finding.objective) + word("stop"), 2)
            yield from wrapped(word.what(finding.cause), 2)


def _why_nothing(found: Findings, word: Words) -> list[str]:
    """What the log lacks to show a healthy run, or what no log shows."""
    return [lacks.said(word.language) for lacks in found.lacking] or [word("not_visible")]


def _of_cause(finding: DetectedCause, source: str, word: Words) -> Iterator[str]:
    cause = finding.cause
    yield from wrapped(word.what(cause), 2)
    yield "\n" + word("evidence")
    yield from columns([[word(f"column.{name}") for name in HEAD], *(_row(each, word) for each in finding.evidence)])
    yield "\n" + word("suspects")
    for place, suspect in enumerate(finding.suspects, start=1):
        yield from wrapped(word.suspect(suspect), 2, f"{place}. ")
    yield "\n" + word("tell_apart")
    yield from wrapped(word.of(f"cause.{cause.name}.tell_apart", cause.tell_apart), 2)
    if finding.remedies:
        yield "\n" + word("to_try")
    for place, remedy in enumerate(finding.remedies, start=1):
        yield from wrapped(word.remedy(remedy), 2, f"{place}. ")
        yield from (f"     {where}{' ' * (6 - width(where))}{own}" for where, own in settings_of(remedy, source, word))
    yield "\n" + word("shown_also" if cause.scenarios else "shown", lab=cause.lab)
    yield from (f"  grpo-lab train --scenario {name}" for name in cause.scenarios)


def suspected(found: Findings) -> Iterator[str]:
    """The likeliest two suspects of the first finding, a line each, in the user's language."""
    word = Words(messages.language())
    for finding in found.named[:1]:
        for place, suspect in enumerate(finding.suspects[:2], start=1):
            yield from wrapped(word.suspect(suspect), 2, f"{place}. ")


def _of_limits(found: Findings, word: Words) -> Iterator[str]:
    if found.possible:
        yield "\n" + word("not_ruled_out")
    for possible in found.possible:
        lacks = [word("named", name=missing.metric, said=missing.why.said(word.language)) for missing in possible.lacks]
        said = word("because", said=word.titled(possible.cause), why=word("semicolon").join(lacks))
        yield from wrapped(word("from_step", step=possible.step, said=said), 2)
    if found.blind:
        yield "\n" + word("not_shown")
        whys = dict.fromkeys(missing.why for missing, _ in found.blind)
        for why in sorted(whys, key=lambda each: each.key == "not_logged")[:2]:
            names = [missing.metric for missing, _ in found.blind if missing.why == why]
            names = [name for name in METRICS if name in names]
            more = [f"+ {len(names) - NAMED}"] if len(names) > NAMED else []
            said = word("comma").join([*names[:NAMED], *more])
            yield from wrapped(word("because", said=said, why=why.said(word.language)), 2)


def settings_of(remedy: Remedy, source: str, word: Words) -> list[tuple[str, str]]:
    """The settings of a remedy, each with its trainer: that of the log's trainer alone, or all if it is not known."""
    own = FIELD_OF.get(source)
    named = {"here": word("here"), "trl": "TRL", "verl": "verl"}
    kept = [name for name in FIELDS if getattr(remedy, name) and (name == own or not source)]
    return [(named[name], word.of(f"setting.{getattr(remedy, name)}", getattr(remedy, name))) for name in kept]


def _row(evidence: Evidence, word: Words) -> list[str]:
    numbers = [f"{evidence.value:.4g}", f"{evidence.last:.4g}" if of_run(evidence.metric) in METRICS else ""]
    named = evidence.metric if len(evidence.metric) <= WIDEST else evidence.metric[: WIDEST - 1] + "…"
    return [str(evidence.step), named, *numbers, _healthy(evidence, word), word.symptom(evidence)]


def _healthy(evidence: Evidence, word: Words) -> str:
    """The healthy range of an evidence's metric."""
    low, high = (f"{bound:g}" for bound in evidence.healthy)
    if low == "-inf":
        return (word("finite") if of_run(evidence.metric) in METRICS else "") if high == "inf" else f"<= {high}"
    return f">= {low}" if high == "inf" else word("range", low=low, high=high)


def html(found: Findings) -> str:
    """The diagnosis for a notebook, in the user's language: verdict, evidence, remedies; the whole text folds out."""
    word, first = Words(messages.language()), next(iter(found.named), None)
    return (
        templates()
        .get_template("diagnosis.html")
        .render(
            word=word,
            happened=story(found.log, word.language),
            headline=headline(found, word.language),
            lacking=_why_nothing(found, word),
            first=first,
            head=[word(f"column.{name}") for name in HEAD],
            rows=[_row(evidence, word) for evidence in first.evidence] if first else [],
            remedies=[_in_a_line(remedy, found.log.source, word) for remedy in first.remedies] if first else [],
            text=text(found),
        )
    )


def _in_a_line(remedy: Remedy, source: str, word: Words) -> str:
    settings = [word("named", name=trainer, said=own) for trainer, own in settings_of(remedy, source, word)]
    said = word.remedy(remedy)
    return word("because", said=said, why=word("semicolon").join(settings)) if settings else said


def tree(found: Findings) -> dict[str, Any]:
    """The diagnosis as plain values for JSON; NaN and inf are texts. docs/diagnose.md has the fields."""
    log, word = found.log, Words(messages.ENGLISH)
    about = {
        "format": log.format_in_words(word.language),
        "source": log.source,
        "algorithm": algorithm_in(log),
        "steps": len(log.steps),
        "metrics": list(log.metrics),
        "settings": len(log.settings),
        "crash": log.crash,
        "notes": [note.said(word.language) for note in log.notes],
    }
    possible = [
        {"cause": each.cause.name, "step": each.step, "lacks": [_missing(missing) for missing in each.lacks]}
        for each in found.possible
    ]
    blind = [{**_missing(missing), "causes": [cause.name for cause in causes]} for missing, causes in found.blind]
    return encodable(
        {
            "verdict": found.verdict,
            "happened": story(found.log, messages.ENGLISH),
            "log": about,
            "findings": [_tree_of(finding) for finding in found.findings],
            "possible": possible,
            "cannot_show": blind,
            "lacking": [lacks.said(word.language) for lacks in found.lacking],
            "earlier": [tree(each) for each in found.earlier],
        }
    )


def _missing(missing: Unknown) -> dict[str, str]:
    return {"metric": missing.metric, "why": missing.why.said()}


def _tree_of(finding: DetectedCause) -> dict[str, Any]:
    cause, word = finding.cause, Words(messages.ENGLISH)
    return {
        "cause": cause.name,
        "title": cause.title,
        "level": cause.level,
        "objective": finding.objective,
        "step": finding.step,
        "evidence": [
            {**asdict(each), "says": word.symptom(each), "healthy": each.healthy} for each in finding.evidence
        ],
        "suspects": [suspect.says for suspect in finding.suspects],
        "suspect_names": [suspect.name for suspect in finding.suspects],
        "tell_apart": cause.tell_apart,
        "remedies": [asdict(remedy) for remedy in finding.remedies],
        "scenarios": cause.scenarios,
        "lab": cause.lab,
    }


NOT_COMPARED = {"learning_rate", *OF_THE_MACHINE}
PLACES = {"output_dir", "logging_dir", "run_name", "run.name", "trainer.experiment_name"}
"""Settings that name the run."""
FACTOR = 5
"""Times its noise by which a curve leaves the other one."""


@dataclass(frozen=True)
class Level:
    """One curve in three numbers: its beginning, the median of its second half, and its largest magnitude."""

    start: float
    late: float
    largest: float

    @staticmethod
    def of(values: np.ndarray) -> Level:
        """The numbers of a curve, of shape (steps,); a value that is not finite is the largest."""
        kept = finite(values)
        if not len(kept):
            return Level(math.nan, math.nan, math.nan)
        largest = kept[np.argmax(np.abs(kept))] if len(kept) == len(values) else values[~np.isfinite(values)][0]
        return Level(start(kept), float(np.median(kept[len(kept) // 2 :])), float(largest))


@dataclass(frozen=True)
class Comparison:
    """Two diagnosed runs."""

    first: Findings
    second: Findings
    names: tuple[str, str] = ("first", "second")

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """The settings that both logs have and that differ."""
        one, two = self.first.log.settings, self.second.log.settings
        both = [name for name in one if name in two and name not in PLACES]
        return {name: (one[name], two[name]) for name in both if str(one[name]) != str(two[name])}

    @property
    def levels(self) -> dict[str, tuple[Level, Level]]:
        """Each metric that both logs have, in three numbers a run."""
        one, two = self.first.log.metrics, self.second.log.metrics
        both = [name for name in one if name in two and name not in NOT_COMPARED]
        return {name: (Level.of(one[name].to_numpy(float)), Level.of(two[name].to_numpy(float))) for name in both}

    @property
    def parting(self) -> tuple[int, str] | None:
        """The first step at which a metric of one run leaves that of the other for good, and the metric.

        A metric has left if, there and in the next two steps that both logs have, the two differ by more than five
        times the noise of the less noisy one, or one of them is not finite. None if no metric does.
        """
        found = [(step, name) for name in self.levels if (step := self._parts(name)) is not None]
        return min(found, default=None)

    def _parts(self, name: str) -> int | None:
        one, two = (each.log.metrics[name] for each in (self.first, self.second))
        steps = one.index.intersection(two.index)
        left, right = one.loc[steps].to_numpy(float), two.loc[steps].to_numpy(float)
        if len(steps) < 3:
            return None
        usual = min(noise(finite(left)), noise(finite(right)))
        with np.errstate(invalid="ignore"):
            apart = (np.isfinite(left) != np.isfinite(right)) | (np.abs(left - right) > FACTOR * usual)
        stay = apart[:-2] & apart[1:-1] & apart[2:]
        return int(steps[int(np.argmax(stay))]) if stay.any() else None

    def text(self) -> str:
        """The comparison in words, in the user's language."""
        word, lines = Words(messages.language()), []
        for name, each in zip(self.names, (self.first, self.second), strict=True):
            lines += [word("named", name=name, said=headline(each, word.language)), *suspected(each)]
        if self.settings:
            rows = [[name, str(one), str(two)] for name, (one, two) in self.settings.items()]
            lines += ["", word("settings_differ"), *columns([["", *self.names], *rows])]
        if self.levels:
            parts = [word(f"part_of_run.{name}") for name in ("start", "late", "largest")]
            head = ["", *(f"{of} {name}" for name in parts for of in ("A", "B"))]
            named = word("curves", first=self.names[0], second=self.names[1])
            pairs = {name: zip(astuple(one), astuple(two), strict=True) for name, (one, two) in self.levels.items()}
            rows = [[name, *(f"{number:.4g}" for pair in each for number in pair)] for name, each in pairs.items()]
            lines += ["", named, *columns([head, *rows])]
        step, metric = self.parting or (0, "")
        return "\n".join([*lines, "", word("part", step=step, metric=metric) if metric else word("never_part")])

    def tree(self) -> dict[str, Any]:
        """The comparison as plain values."""
        levels = {name: [vars(one), vars(two)] for name, (one, two) in self.levels.items()}
        parting = {"step": self.parting[0], "metric": self.parting[1]} if self.parting else None
        verdicts = [self.first.verdict, self.second.verdict]
        settings = {name: [str(value) for value in pair] for name, pair in self.settings.items()}
        about = {"names": self.names, "verdicts": verdicts, "settings": settings, "levels": levels, "parting": parting}
        return encodable({**about, "diagnoses": [tree(self.first), tree(self.second)]})
