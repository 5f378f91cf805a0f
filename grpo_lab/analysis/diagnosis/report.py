"""A diagnosis in words: as text and as HTML for a notebook, in the user's language, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from grpo_lab import messages
from grpo_lab.analysis.diagnosis.causes import SETTINGS_OF, Remedy
from grpo_lab.analysis.diagnosis.findings import ENOUGH_STEPS, DetectedCause, Evidence, Findings
from grpo_lab.analysis.diagnosis.layout import columns, width, wrapped
from grpo_lab.analysis.diagnosis.words import Words
from grpo_lab.analysis.logs.algorithm import OWN, algorithm_in, settings_that_tell
from grpo_lab.events import encodable
from grpo_lab.metrics import METRICS, of_run

HEAD = ("step", "metric", "value", "last", "healthy", "meaning")
"""The columns of the evidence: the value in the first step that shows it, and the last one."""
TRAINERS = {"here": "here", "trl": "TRL", "verl": "verl"}
NAMES = {"grpo_lab": "grpo_lab", "trl": "TRL", "verl": "verl", "openrlhf": "OpenRLHF", "ms-swift": "ms-swift"}


def headline(found: Findings, language: str = messages.ENGLISH) -> str:
    """The verdict in one line."""
    word, first = Words(language), next(iter(found.findings), None)
    if first is None or first.cause.level == "note":
        return word("not_enough" if found.lacking else "nothing_wrong")
    said = word("failure", title=word.titled(first), step=first.step, cause=first.cause.name)
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
    between = word("between", first=steps[0], last=steps[-1]) if len(steps) else ""
    writer = [word("written_by", name=NAMES[log.source])] if log.source in NAMES else []
    settings = [word.count("setting", len(log.settings))] if log.settings else []
    metrics = word("metrics", count=len(log.metrics))
    facts = word("comma").join([word.fact(log.format), count + between, metrics, *writer, *settings])
    yield word("named", name=name, said=facts) if name else facts
    told = [f"{name}={value}" for name, value in settings_that_tell(log).items() if not name.startswith(OWN)]
    if algorithm := algorithm_in(log):
        said = word("because", said=algorithm, why=word("comma").join(told)) if told else algorithm
        yield word("algorithm", said=said)
    few = [word("few", count=count + between)] if len(steps) < ENOUGH_STEPS else []
    for note in (*map(word.fact, log.notes), *few):
        yield word("note", said=note)
    if log.crash:
        yield word("crash", said=log.crash)
    for number, earlier in enumerate(found.earlier, start=1):
        said = headline(earlier, word.language)
        yield word("run", number=number, count=len(found.earlier) + 1, said=said)


def _of_findings(found: Findings, word: Words) -> Iterator[str]:
    yield headline(found, word.language)
    if not found.findings or found.findings[0].cause.level == "note":
        yield from (f"  {said}" for said in list(map(word.fact, found.lacking)) or [word("not_visible")])
    named = [finding for finding in found.findings if finding.cause.level != "note"]
    for finding in named[:1]:
        yield from _of_cause(finding, found.log.source, word)
    if named[1:]:
        yield "\n" + word("also")
        for also in named[1:]:
            level = word("level." + also.cause.level)
            said = word("also_found", title=word.titled(also), level=level, cause=also.cause.name)
            yield from wrapped(word("from_step", step=also.step, said=said), 2)
    for finding in found.findings:
        if finding.cause.level == "note":
            yield "\n" + word("noted", step=finding.step)
            yield from wrapped(word.titled(finding) + word("stop"), 2)
            yield from wrapped(word.what(finding.cause), 2)


def _of_cause(finding: DetectedCause, source: str, word: Words) -> Iterator[str]:
    cause = finding.cause
    yield from wrapped(word.what(cause), 2)
    yield "\n" + word("evidence")
    yield from columns([_head(word), *(_row(each, word) for each in finding.evidence)])
    yield "\n" + word("suspects")
    for place, suspect in enumerate(finding.suspects, start=1):
        yield from wrapped(word.suspect(suspect), 2, f"{place}. ")
    yield "\n" + word("tell_apart")
    yield from wrapped(word.tell_apart(cause), 2)
    yield "\n" + word("to_try")
    for place, remedy in enumerate(finding.remedies, start=1):
        yield from wrapped(word.remedy(remedy), 2, f"{place}. ")
        settings = [(word.trainer(where), word.setting(own)) for where, own in settings_of(remedy, source)]
        yield from (f"     {where}{' ' * (6 - width(where))}{own}" for where, own in settings)
    yield "\n" + word("shown_also" if cause.scenarios else "shown", lab=cause.lab)
    yield from (f"  grpo-lab train --scenario {name}" for name in cause.scenarios)


def suspected(found: Findings) -> Iterator[str]:
    """The likeliest two suspects of the first finding, a line each, in the user's language."""
    word = Words(messages.language())
    named = [finding for finding in found.findings if finding.cause.level != "note"]
    for place, suspect in enumerate(named[0].suspects[:2] if named else (), start=1):
        yield from wrapped(word.suspect(suspect), 2, f"{place}. ")


def _of_limits(found: Findings, word: Words) -> Iterator[str]:
    if found.possible:
        yield "\n" + word("not_ruled_out")
    for possible in found.possible:
        lacks = [word("named", name=missing.metric, said=word.fact(missing.why)) for missing in possible.lacks]
        said = word("because", said=word.title(possible.cause), why=word("semicolon").join(lacks))
        yield from wrapped(word("from_step", step=possible.step, said=said), 2)
    if found.blind:
        yield "\n" + word("not_shown")
    for why in dict.fromkeys(missing.why for missing, _ in found.blind):
        names = [missing.metric for missing, _ in found.blind if missing.why == why]
        yield from wrapped(word("because", said=word("comma").join(names), why=word.fact(why)), 2)


def settings_of(remedy: Remedy, source: str) -> list[tuple[str, str]]:
    """The settings of a remedy, each with its trainer: that of the log's trainer alone, or all if it is not known."""
    of_all = [(trainer, getattr(remedy, name)) for name, trainer in TRAINERS.items()]
    own = {"grpo_lab": "here", **SETTINGS_OF}.get(source)
    kept = [(TRAINERS[own], getattr(remedy, own))] if own else of_all if not source else []
    return [(trainer, setting) for trainer, setting in kept if setting]


def _head(word: Words) -> list[str]:
    return [word(f"column.{name}") for name in HEAD]


def _row(evidence: Evidence, word: Words) -> list[str]:
    numbers = [f"{evidence.value:.4g}", f"{evidence.last:.4g}" if of_run(evidence.metric) in METRICS else ""]
    return [str(evidence.step), evidence.metric, *numbers, healthy(evidence, word.language), word.symptom(evidence)]


def healthy(evidence: Evidence, language: str = messages.ENGLISH) -> str:
    """The healthy range of an evidence's metric."""
    word, (low, high) = Words(language), (f"{bound:g}" for bound in evidence.healthy)
    if low == "-inf":
        return (word("finite") if of_run(evidence.metric) in METRICS else "") if high == "inf" else f"<= {high}"
    return f">= {low}" if high == "inf" else word("range", low=low, high=high)


def html(found: Findings) -> str:
    """The diagnosis for a notebook, in the user's language: verdict, evidence, remedies; the whole text folds out."""
    word = Words(messages.language())
    first = next((finding for finding in found.findings if finding.cause.level != "note"), None)
    parts = [f"<strong>{escape(headline(found, word.language))}</strong>"]
    if first is None:
        parts.append(_list("ul", [word.fact(said) for said in found.lacking] or [word("not_visible")]))
    else:
        head = "".join(f"<th>{name}</th>" for name in _head(word))
        rows = [_row(evidence, word) for evidence in first.evidence]
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        parts.append(f"<p>{escape(' '.join(word.what(first.cause).split()))}</p>")
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts.append(f"<p>{word('suspects')}</p>" + _list("ol", [word.suspect(each) for each in first.suspects]))
        to_try = [_in_a_line(remedy, found.log.source, word) for remedy in first.remedies]
        parts.append(f"<p>{word('to_try')}</p>" + _list("ol", to_try))
    parts.append(f"<details><summary>{word('whole')}</summary><pre>{escape(text(found))}</pre></details>")
    return "<div>" + "".join(parts) + "</div>"


def _list(kind: str, items: Sequence[str]) -> str:
    return f"<{kind}>" + "".join(f"<li>{escape(item)}</li>" for item in items) + f"</{kind}>"


def _in_a_line(remedy: Remedy, source: str, word: Words) -> str:
    of_each = settings_of(remedy, source)
    settings = [word("named", name=word.trainer(trainer), said=word.setting(own)) for trainer, own in of_each]
    said = word.remedy(remedy)
    return word("because", said=said, why=word("semicolon").join(settings)) if settings else said


def tree(found: Findings) -> dict[str, Any]:
    """The diagnosis as plain values for JSON; NaN and inf are texts. docs/diagnose.md has the fields."""
    log = found.log
    about = {
        "format": log.format,
        "source": log.source,
        "algorithm": algorithm_in(log),
        "steps": len(log.steps),
        "metrics": list(log.metrics),
        "settings": len(log.settings),
        "crash": log.crash,
        "notes": log.notes,
    }
    possible = [
        {"cause": p.cause.name, "step": p.step, "lacks": [asdict(missing) for missing in p.lacks]}
        for p in found.possible
    ]
    blind = [{**asdict(missing), "causes": [cause.name for cause in causes]} for missing, causes in found.blind]
    findings = [_tree_of(finding) for finding in found.findings]
    earlier = [tree(each) for each in found.earlier]
    limits = {"possible": possible, "cannot_show": blind, "lacking": found.lacking}
    return encodable({"verdict": found.verdict, "log": about, "findings": findings, **limits, "earlier": earlier})


def _tree_of(finding: DetectedCause) -> dict[str, Any]:
    cause = finding.cause
    return {
        "cause": cause.name,
        "title": cause.title,
        "level": cause.level,
        "objective": finding.objective,
        "step": finding.step,
        "evidence": [{**asdict(each), "healthy": each.healthy} for each in finding.evidence],
        "suspects": [suspect.says for suspect in finding.suspects],
        "suspect_names": [suspect.name for suspect in finding.suspects],
        "tell_apart": cause.tell_apart,
        "remedies": [asdict(remedy) for remedy in finding.remedies],
        "scenarios": cause.scenarios,
        "lab": cause.lab,
    }
