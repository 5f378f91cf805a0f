"""A diagnosis in words: as text and as HTML for a notebook, in the user's language, and as plain values for JSON."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grpo_lab import messages
from grpo_lab.analysis.diagnosis.algorithm import FIELD_OF, FIELDS, OWN, algorithm_in, settings_that_tell
from grpo_lab.analysis.diagnosis.causes import Remedy
from grpo_lab.analysis.diagnosis.findings import ENOUGH_STEPS, DetectedCause, Evidence, Findings
from grpo_lab.analysis.diagnosis.layout import columns, width, wrapped
from grpo_lab.analysis.diagnosis.story import story
from grpo_lab.analysis.diagnosis.symptoms import Unknown
from grpo_lab.analysis.diagnosis.words import Words
from grpo_lab.events import encodable
from grpo_lab.metrics import METRICS, of_run
from grpo_lab.paths import data_directory

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
    return _page().render(
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


@functools.cache
def _page() -> Any:
    loader = FileSystemLoader(data_directory() / "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("diagnosis.html")


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
