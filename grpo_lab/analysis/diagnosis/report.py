"""A diagnosis: what a log shows, and how it is said as text and HTML in the user's language, and as plain values.

data/templates/diagnosis.txt and diagnosis.html have the order of its parts.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.cells import cell_len as width

from grpo_lab import messages
from grpo_lab.analysis.diagnosis import rules
from grpo_lab.analysis.diagnosis.curves import course, finite, noise, start
from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.logs.table import HELD_OUT, Fact
from grpo_lab.analysis.markdown import holds, templates
from grpo_lab.events import encodable
from grpo_lab.messages import ENGLISH
from grpo_lab.metrics import METRICS, OF_THE_MACHINE, of_run

_LIMITS = rules.tables("limits")["report"]
WIDTH = _LIMITS["width"]
_WIDE = "\u2e80-\u9fff\uff00-\uffef"
_UNIT = re.compile(rf"[（《“]*[{_WIDE}][，。：；、！？）》”]*|[^\s{_WIDE}（“《]+[，。：；、！？）》”]*|\s+|.")
"""The parts between which a line may break: words, and Chinese characters with the punctuation that stays with them."""


def wrapped(said: str, by: int = 0, first: str = "", most: int = WIDTH) -> list[str]:
    """A paragraph of at most so many columns, indented by `by`, broken only between words or Chinese characters."""
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
    """The words of one language."""

    language: str

    def __call__(self, key: str, **values: Any) -> str:
        """The fixed phrase of a key."""
        return messages.text_in(self.language, f"diagnosis.{key}", **values)

    def count(self, thing: str, number: int) -> str:
        """A number of steps, metrics or settings."""
        return self(f"{'one' if number == 1 else 'many'}.{thing}", count=f"{number:,}")

    def because(self, said: str, reasons: Sequence[str], between: str = "semicolon") -> str:
        """A text with its reasons in brackets, if it has any."""
        return self("because", said=said, why=self(between).join(reasons)) if reasons else said

    def titled(self, cause: rules.Cause, objective: str = "") -> str:
        """The title of a cause, with the objective that shows it."""
        title = self.of(f"cause.{cause.name}.title", cause.title)
        return title + self("objective", name=objective) if objective else title

    def suspect(self, suspect: rules.Suspect) -> str:
        """A suspect in words; one that a single cause names has its words as its name."""
        return self.of(f"suspect.{suspect.name}" if suspect.name else f"own_suspect.{suspect.says}", suspect.says)

    def symptom(self, evidence: rules.Evidence, medians: str = "") -> str:
        """A symptom in words, with the medians of all objectives."""
        said = self.of(f"symptom.{evidence.symptom}", evidence.says)
        return said + self("medians", values=medians) if medians else said

    def lacks(self, missing: Sequence[rules.Unknown]) -> list[str]:
        """The metrics that a log lacks, each with the reason."""
        return [self("named", name=each.metric, said=each.why.said(self.language)) for each in missing]

    def of(self, key: str, english: str) -> str:
        """A text of data/diagnosis; code alone has no translation."""
        return messages.catalogue(self.language, "diagnosis").get(key, english)


class Number(float):
    """A number as a sentence has it; `digits` of it tell it from another one."""

    digits = 2

    def __format__(self, spec: str) -> str:
        if not spec and 100 <= abs(self) < 1e6:
            spec = ",.0f"
        digits = max(self.digits, 3 if abs(self) >= 10 or 0.99 <= abs(self) < 1 else 2)
        return super().__format__(spec or f".{digits}g") if spec or abs(self) >= 5e-4 else "0"


def story(log: Log, language: str) -> str:
    """What happened to the run of a log, in one sentence, by the rules of data/diagnosis/story.toml.

    >>> falls = pd.Series([0.8] * 10 + [0.0] * 10, index=range(1, 21))
    >>> story(Log({"reward": falls, "entropy": 3 - 3 * falls}), "en")
    'Reward 0.8 → 0 from step 11: entropy rose 0.6 → 3; the reward did not recover.'
    """

    def say(key: str, values: Mapping[str, Any]) -> str:
        keys.append(key)
        values = {**values, **values.get("shown", {})}
        numbers = {name: Number(value) for name, value in values.items() if isinstance(value, float)}
        ends = [("first", "last"), ("begin", "end"), ("least", "most")]
        for pair in [(numbers[a], numbers[b]) for a, b in ends if a in numbers]:
            begin, end = (float(f"{each}".replace(",", "")) for each in pair)
            change = pair[1] - pair[0]
            if abs(end - begin - change) > 0.25 * abs(change) and not math.isclose(*pair, rel_tol=0.002):
                pair[0].digits = pair[1].digits = 3
        return word(f"story.{key}", **{**values, **numbers})

    word, chosen, keys = Words(language), rules.tables("story"), list[str]()
    curve = HELD_OUT if HELD_OUT in log.metrics and "reward" not in log.metrics else "reward"
    reward = {"name": curve, "of": word(f"story.of.{curve}"), **measures(log.metrics, curve)}
    main = next(key for key, rule in chosen["main"].items() if holds(rule, log=log, **reward))
    since = reward["fell_at"] if main in ("fell", "rose_and_fell") else None
    told: list[tuple[str, str]] = []
    for begin in dict.fromkeys((since, None)):  # a curve that is the same since the reward fell may have moved before
        left = [(key, rule) for key, rule in chosen["companions"].items() if rule["of"] not in {curve, *dict(told)}]
        names = [curve if rule["of"] == "main" else rule["of"] for _, rule in left]
        of_each = [measures(log.metrics, name, begin) for name in names]
        found = [(*each, {"log": log, "main": main, **known}) for each, known in zip(left, of_each, strict=True)]
        told += [(rule["of"], say(key, known)) for key, rule, known in found if holds(rule["when"], **known)]
    parts = [{"name": name, "main": main, **measures(log.functions, name)} for name in log.functions]
    for key, rule in chosen["functions"].items():
        moved = [known for known in parts if holds(rule, whole=reward, **known)]
        told += [("", say(key, known)) for known in moved[: _LIMITS["named"]]]
    told += [("", say(key, known)) for key, known in _not_finite(log)]
    happened = say(main, reward)
    if told:
        happened = word("story.with", said=happened, told=word("comma").join(said for _, said in told))
    crash = textwrap.shorten(log.crash, _LIMITS["crash"], placeholder=" …")
    end = {"step": next(iter(log.steps), 0), "crash": crash.rstrip(".")}
    texts = messages.catalogue(language)
    steps = any(re.search(r"\{(\w+_at|step)\}", texts[f"diagnosis.story.{key}"]) for key in keys)
    end |= {"log": log, "main": main, "tells_steps": steps, **reward}
    ends = [say(key, end) for key, rule in chosen["ends"].items() if holds(rule, **end)]
    return "".join([happened, *ends, word("stop")])


def measures(curves: Mapping[str, pd.Series], name: str, since: int | None = None) -> dict[str, Any]:
    """The values of a curve that rules and messages of the sentence know."""
    curve = curves.get(name, pd.Series(dtype=np.float64))
    curve = curve.loc[np.isfinite(curve.to_numpy(np.float64))]
    values, steps = curve.to_numpy(np.float64), curve.index.to_numpy(np.int64).tolist()
    if not steps:
        return {"count": 0}
    known = {"count": len(values), "begin": float(values[0]), "end": float(values[-1]), "mean": float(values.mean())}
    known |= {"least": float(values.min()), "most": float(values.max()), "median": float(np.median(values))}
    known |= {"most_at": steps[int(values.argmax())], "least_at": steps[int(values.argmin())]}
    known |= {"far": max(known["most"], known["least"], key=abs), "far_at": steps[int(np.abs(values).argmax())]}
    rests = len(values) - int(np.argmin((values == values[-1])[::-1])) if known["least"] < known["most"] else 0
    known |= {"rest": len(values) - rests, "rest_at": steps[min(rests, len(steps) - 1)]}
    known |= {"usual": METRICS[name].high if name in METRICS else math.inf, "ninth": float(np.quantile(values, 0.9))}
    lower, upper = np.quantile(values, (0.25, 0.75))
    far = not lower <= known["mean"] <= upper and known["least"] < known["median"] < known["most"]
    known |= {"middle": known["median"] if far else known["mean"], "spread": float(upper - lower)}
    known |= {"at_most": float(np.mean(values == values.max())), "zeros": float(np.mean(np.abs(values) < 1e-6))}
    if found := course(values):
        known |= {key: steps[value] if key.endswith("_at") else value for key, value in found._asdict().items()}
        before = [value for step, value in zip(steps, values, strict=True) if since is not None and step < since]
        known["first"] = float(np.median(before[-5:])) if before else found.first
        ends = values[-max(3, found.width) :]
        known["late"] = float(np.median(ends))
        if name not in ("reward", HELD_OUT) and found.width < 3:  # the last row alone is no level of other curves
            known["last"] = known["late"]
        few, gain = len(values) < rules.tables("limits")["curves"]["few"], found.last - found.first
        if few and found.kind == "fell" and known["most_at"] < known["fell_at"]:
            known |= {"top": known["most"], "top_at": known["most_at"]}
            known["first"] = known["first"] if before else known["begin"]
        both = few and found.kind in ("rose", "declined") and (values[-1] - values[0]) / gain > 0.5
        tail = values[-max(_LIMITS["goes_on"], found.width) :]
        known["falls"] = int(np.argmax(np.append(np.diff(values)[::-1] >= 0, True)))
        way = found.last - known["first"]
        lost = name in ("reward", HELD_OUT) and known["falls"] > 3
        goes_on = both or ((lost or (np.diff(tail) * way > 0).all()) and (values[-1] - known["first"]) * way > 0)
        began = not before and (both or (name == "kl" and (np.diff(values[:3]) * gain > 0).all()))
        known["shown"] = dict.fromkeys(("last", "late") if goes_on else (), known["end"])
        known["shown"] |= {"first": known["begin"]} if began else {}
    return known


def _not_finite(log: Log) -> Iterator[tuple[str, dict[str, Any]]]:
    """The curves that are not finite in any step, from one on, or in some, by that step."""
    found: dict[tuple[int, str, int, int], list[str]] = {}
    for name in (name for name in METRICS if name in log.metrics):
        curve = log.metrics[name]
        broken = ~np.isfinite(curve.to_numpy(np.float64))
        if not broken.any() or (broken.all() and name in ("reward", HELD_OUT)):
            continue
        place, key = int(np.argmax(broken)), "nan_always" if broken.all() else "nan_some"
        if broken[-1] and not broken.all():
            place, key = int(np.flatnonzero(~broken)[-1]) + 1, "nan_from"
        found.setdefault((int(curve.index[place]), key, int(broken.sum()), len(curve)), []).append(name)
    for (step, key, count, rows), names in sorted(found.items()):
        most = _LIMITS["named"]
        more = [str(len(names) - most)] if len(names) > most else []
        yield key, {"metric": " + ".join([*names[:most], *more]), "step": step, "count": count, "rows": rows}


def rendered(template: str, **values: Any) -> str:
    """A template of data/templates, in the user's language, of lines that are not too wide."""
    word, page = Words(messages.language()), templates().get_template(template)
    breaks = {"paragraph": lambda *said: "\n".join(wrapped(*said)), "columns": lambda rows: "\n".join(columns(rows))}
    return page.render(**values, **breaks, word=word, width=width)


HEAD = ("step", "metric", "value", "last", "healthy", "meaning")
"""The columns of the evidence: the value in the first step that shows it, and the last one."""
HEALTHY = "healthy"
"""The verdict if no logged metric shows a cause."""
NOT_ENOUGH = "not-enough"
"""The verdict if no logged metric shows a cause, and too little was logged to call the run healthy."""


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of one log: what was found, and how it is said."""

    log: Log
    findings: tuple[rules.DetectedCause, ...] = ()
    """The cause first, then its probable consequences, and notes; empty if nothing is wrong."""
    possible: tuple[rules.DetectedCause, ...] = ()
    """Causes that fit the symptoms, and that the log cannot tell from the one found."""
    blind: tuple[tuple[rules.Unknown, tuple[rules.Cause, ...]], ...] = ()
    """Each metric that the log lacks, with the causes that only this metric would show."""
    lacking: tuple[Fact, ...] = ()
    """What to log before the run can be called healthy."""
    earlier: tuple[Diagnosis, ...] = ()
    """Diagnoses of the other runs in the same log."""
    number: int = 0
    """The place of this run among them, from 1; 0 for the last."""

    @property
    def named(self) -> list[rules.DetectedCause]:
        """The findings that are no notes."""
        return [finding for finding in self.findings if finding.cause.level != "note"]

    @property
    def verdict(self) -> str:
        """The name of the cause, `healthy`, or `not-enough`."""
        return self.named[0].cause.name if self.named else NOT_ENOUGH if self.lacking else HEALTHY

    def headline(self, language: str = ENGLISH) -> str:
        """The verdict in one line."""
        word = Words(language)
        if not self.named:
            well = "nothing_wrong_before" if self.log.crash else "nothing_wrong"
            return word("not_enough" if self.lacking else well)
        first = self.named[0]
        said = word("failure", title=word.titled(first.cause, first.objective), step=first.step, cause=first.cause.name)
        warning = "warning_before" if self.log.crash else "warning"
        return said if first.cause.level == "failure" else word(warning, said=said)

    def text(self, name: str = "") -> str:
        """The whole diagnosis in the user's language, as `grpo-lab diagnose` prints it.

        Its lines are at most 100 columns wide where they can be broken. Those that begin at the left are headings and
        facts about the log; what they say is indented.
        """
        return self._rendered("diagnosis.txt", name=name).removesuffix("\n")

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """The diagnosis for a notebook, in the user's language; the whole text folds out."""
        return self._rendered("diagnosis.html", text=self.text())

    def _rendered(self, template: str, **values: Any) -> str:
        """A template of the diagnosis, in the user's language."""
        word, log, first = Words(messages.language()), self.log, next(iter(self.named), None)
        settings = rules.settings_that_tell(log).items()
        told = [f"{name}={value}" for name, value in settings if not name.startswith(rules.OWN)]
        algorithm = rules.algorithm_in(log) and word.because(rules.algorithm_in(log), told, "comma")
        rows = [[word(f"column.{name}") for name in HEAD]]
        rows += [_row(each, log, word) for each in first.evidence] if first else []
        values |= {"found": self, "log": log, "first": first, "story": story, "evidence": rows, "algorithm": algorithm}
        values |= {"rules": rules.tables("story")["lacking"], "trainer": rules.TRAINERS["names"].get(log.source)}
        remedies = [_advised(remedy, log.source, word) for remedy in first.remedies] if first else []
        return rendered(template, **values, remedies=remedies, cannot_show=list(self._cannot_show(word)))

    def _cannot_show(self, word: Words) -> Iterator[str]:
        """The metrics that the log lacks, in two lines at most."""
        whys, most = dict.fromkeys(missing.why for missing, _ in self.blind), _LIMITS["named"]
        for why in sorted(whys, key=lambda each: each.key == "not_logged")[:2]:
            missing = {missing.metric for missing, _ in self.blind if missing.why == why}
            names = [name for name in METRICS if name in missing]
            more = [f"+ {len(names) - most}"] if len(names) > most else []
            yield word.because(word("comma").join([*names[:most], *more]), [why.said(word.language)])

    def tree(self) -> dict[str, Any]:
        """The diagnosis as plain values for JSON, as `grpo-lab diagnose --json` prints it; NaN and inf are texts.

        docs/diagnose.md has the fields.
        """
        log = self.log
        about: dict[str, Any] = {"format": log.format_in_words(), "source": log.source, "crash": log.crash}
        about |= {"algorithm": rules.algorithm_in(log), "steps": len(log.steps), "metrics": list(log.metrics)}
        about |= {"settings": len(log.settings), "notes": [note.said() for note in log.notes]}
        possible = [
            {"cause": each.cause.name, "step": each.step, "lacks": [missing.tree() for missing in each.lacks]}
            for each in self.possible
        ]
        blind = [{**missing.tree(), "causes": [cause.name for cause in causes]} for missing, causes in self.blind]
        return encodable(
            {
                "verdict": self.verdict,
                "happened": story(log, ENGLISH),
                "log": about,
                "findings": [_tree_of(finding, log) for finding in self.findings],
                "possible": possible,
                "cannot_show": blind,
                "lacking": [lacks.said() for lacks in self.lacking],
                "earlier": [each.tree() for each in self.earlier],
            }
        )

    def compare(self, other: Diagnosis, names: tuple[str, str] = ("first", "second")) -> Comparison:
        """This run beside another one: settings that differ, levels of the curves, and the step at which they part."""
        return Comparison(self, other, names)


def _row(evidence: rules.Evidence, log: Log, word: Words) -> list[str]:
    """A row of the table of the evidence."""
    measured = of_run(evidence.metric) in METRICS
    numbers = [f"{evidence.value:.4g}", f"{evidence.last:.4g}" if measured else ""]
    most = _LIMITS["widest"]
    named = evidence.metric if len(evidence.metric) <= most else evidence.metric[: most - 1] + "…"
    lower, upper = evidence.healthy
    low, high = (f"{bound:g}" if math.isfinite(bound) else "" for bound in evidence.healthy)
    healthy = word("finite") if measured and not (low or high) else ""
    inside = lower <= min(evidence.value, evidence.last) and max(evidence.value, evidence.last) <= upper
    if (low or high) and not inside:  # a value inside is seen by another limit
        healthy = word("range", low=low, high=high) if low and high else f">= {low}" if low else f"<= {high}"
    return [str(evidence.step), named, *numbers, healthy, word.symptom(evidence, log.medians(evidence.metric))]


def settings_of(remedy: rules.Remedy, source: str, word: Words) -> list[tuple[str, str]]:
    """The settings of a remedy, each with its trainer: that of the log's trainer alone, or all if it is not known."""
    own = rules.TRAINERS["field"].get(source)
    named = {"here": word("here"), "trl": "TRL", "verl": "verl"}
    kept = [name for name in rules.FIELDS if getattr(remedy, name) and (name == own or not source)]
    return [(named[name], word.of(f"setting.{getattr(remedy, name)}", getattr(remedy, name))) for name in kept]


def _advised(remedy: rules.Remedy, source: str, word: Words) -> tuple[str, list[tuple[str, str]], str]:
    """A remedy in words, its settings, and both in one line."""
    said, settings = word.of(f"remedy.{remedy.do}", remedy.do), settings_of(remedy, source, word)
    return said, settings, word.because(said, [word("named", name=name, said=own) for name, own in settings])


def _tree_of(finding: rules.DetectedCause, log: Log) -> dict[str, Any]:
    cause, word = finding.cause, Words(ENGLISH)
    shown = [(each, log.medians(each.metric)) for each in finding.evidence]
    return {
        "cause": cause.name,
        "title": cause.title,
        "level": cause.level,
        "objective": finding.objective,
        "step": finding.step,
        "evidence": [
            {**asdict(each), "says": word.symptom(each, medians), "medians": medians, "healthy": each.healthy}
            for each, medians in shown
        ],
        "suspects": [suspect.says for suspect in finding.suspects],
        "suspect_names": [suspect.name for suspect in finding.suspects],
        "tell_apart": cause.tell_apart,
        "remedies": [asdict(remedy) for remedy in finding.remedies],
        "scenarios": cause.scenarios,
        "lab": cause.lab,
    }


class Level(NamedTuple):
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

    first: Diagnosis
    second: Diagnosis
    names: tuple[str, str] = ("first", "second")

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """The settings that both logs have and that differ."""
        one, two = self.first.log.settings, self.second.log.settings
        of_the_run = {"output_dir", "logging_dir", "run_name", "run.name", "trainer.experiment_name"}
        both = [name for name in one if name in two and name not in of_the_run]
        return {name: (one[name], two[name]) for name in both if str(one[name]) != str(two[name])}

    @property
    def levels(self) -> dict[str, tuple[Level, Level]]:
        """Each metric that both logs have, in three numbers a run."""
        one, two = self.first.log.metrics, self.second.log.metrics
        both = [name for name in one if name in two and name not in ("learning_rate", *OF_THE_MACHINE)]
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
        both = pd.concat([each.log.metrics[name] for each in (self.first, self.second)], axis=1, join="inner")
        left, right = both.to_numpy(float).T
        usual = min(noise(finite(left)), noise(finite(right)))
        with np.errstate(invalid="ignore"):
            apart = (np.isfinite(left) != np.isfinite(right)) | (np.abs(left - right) > _LIMITS["apart"] * usual)
        stay = apart[:-2] & apart[1:-1] & apart[2:]
        return int(both.index[int(np.argmax(stay))]) if stay.any() else None

    def text(self) -> str:
        """The comparison in words, in the user's language."""
        word = Words(messages.language())
        levels = [["", *(f"{run} {word(f'part_of_run.{name}')}" for name in Level._fields for run in ("A", "B"))]]
        for name, runs in self.levels.items():
            levels.append([name, *(f"{number:.4g}" for pair in zip(*runs, strict=True) for number in pair)])
        settings = [["", *self.names], *([name, *map(str, pair)] for name, pair in self.settings.items())]
        shown = {"found": self, "runs": [self.first, self.second], "settings": settings, "levels": levels}
        return rendered("comparison.txt", **shown).removesuffix("\n")

    def tree(self) -> dict[str, Any]:
        """The comparison as plain values."""
        levels = {name: [each._asdict() for each in runs] for name, runs in self.levels.items()}
        parting = {"step": self.parting[0], "metric": self.parting[1]} if self.parting else None
        verdicts = [self.first.verdict, self.second.verdict]
        settings = {name: [str(value) for value in pair] for name, pair in self.settings.items()}
        about = {"names": self.names, "verdicts": verdicts, "settings": settings, "levels": levels, "parting": parting}
        return encodable({**about, "diagnoses": [self.first.tree(), self.second.tree()]})
