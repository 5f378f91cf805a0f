"""A diagnosis in words: as text, as HTML for a notebook, and as plain values for JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from grpo_lab import messages
from grpo_lab.analysis.diagnosis.causes import SETTINGS_OF, Remedy
from grpo_lab.analysis.diagnosis.findings import ENOUGH_STEPS, DetectedCause, Evidence, Findings
from grpo_lab.analysis.logs.algorithm import OWN, algorithm_in, settings_that_tell
from grpo_lab.events import encodable
from grpo_lab.metrics import METRICS, of_run

HEAD = ("step", "metric", "value", "last", "healthy", "meaning")
"""The columns of the evidence: the value in the first step that shows it, and the last one."""
WIDTH = 100
TRAINERS = {"here": "here", "trl": "TRL", "verl": "verl"}
NAMES = {"grpo_lab": "grpo_lab", "trl": "TRL", "verl": "verl", "openrlhf": "OpenRLHF", "ms-swift": "ms-swift"}
NOTHING_WRONG = messages.text_in(messages.ENGLISH, "diagnosis.nothing_wrong")
NOT_VISIBLE = messages.text_in(messages.ENGLISH, "diagnosis.not_visible")


def headline(found: Findings, language: str = messages.ENGLISH) -> str:
    """The verdict in one line. Titles of causes are English in every language."""
    first = next(iter(found.findings), None)
    if first is None or first.cause.level == "note":
        return messages.text_in(language, "diagnosis.not_enough" if found.lacking else "diagnosis.nothing_wrong")
    about = {"title": titled(first), "step": first.step, "cause": first.cause.name}
    said = messages.text_in(language, "diagnosis.failure", **about)
    return said if first.cause.level == "failure" else messages.text_in(language, "diagnosis.warning", said=said)


def titled(finding: DetectedCause) -> str:
    """The title of the cause, with the objective that shows it."""
    return finding.cause.title + (f" (objective {finding.objective})" if finding.objective else "")


def text(found: Findings, name: str = "") -> str:
    """The whole diagnosis, its lines at most 100 characters wide where they can be broken.

    Lines that begin at the left are headings and facts about the log; what they say is indented.
    """
    return "\n".join([*_of_log(found, name), "", *_of_findings(found), *_of_limits(found)])


def _of_log(found: Findings, name: str) -> Iterator[str]:
    log, steps = found.log, found.log.steps
    count = f"{len(steps):,} step{'s' * (len(steps) != 1)}" + (f" ({steps[0]} to {steps[-1]})" if len(steps) else "")
    writer = [f"written by {NAMES[log.source]}"] if log.source in NAMES else []
    settings = [f"{len(log.settings)} setting{'s' * (len(log.settings) != 1)}"] if log.settings else []
    facts = ", ".join([log.format, count, f"{len(log.metrics)} metrics", *writer, *settings])
    yield f"{name}: {facts}" if name else facts
    told = [f"{name}={value}" for name, value in settings_that_tell(log).items() if not name.startswith(OWN)]
    if algorithm := algorithm_in(log):
        yield f"algorithm: {algorithm}" + (f" ({', '.join(told)})" if told else "")
    few = [f"with {count}, most curves show no trend yet"] if len(steps) < ENOUGH_STEPS else []
    for note in (*log.notes, *few):
        yield f"note: {note}"
    if log.crash:
        yield f"crash: {log.crash}"
    for number, earlier in enumerate(found.earlier, start=1):
        yield f"run {number} of {len(found.earlier) + 1} in this log: {headline(earlier)}"


def _of_findings(found: Findings) -> Iterator[str]:
    yield headline(found)
    if not found.findings or found.findings[0].cause.level == "note":
        yield from (f"  {said}" for said in found.lacking or (NOT_VISIBLE,))
    named = [finding for finding in found.findings if finding.cause.level != "note"]
    for finding in named[:1]:
        yield from _of_cause(finding, found.log.source)
    if named[1:]:
        yield "\nAlso found, probably a consequence:"
        for also in named[1:]:
            yield from _wrapped(f"from step {also.step}: {titled(also)} [{also.cause.level}; {also.cause.name}]", 2)
    for finding in found.findings:
        if finding.cause.level == "note":
            yield f"\nNoted from step {finding.step}"
            yield from _wrapped(titled(finding) + ".", 2)
            yield from _wrapped(finding.cause.what, 2)


def _of_cause(finding: DetectedCause, source: str) -> Iterator[str]:
    yield from _wrapped(finding.cause.what, 2)
    yield "\nEvidence"
    yield from columns([[*HEAD], *map(_row, finding.evidence)])
    yield "\nSuspects, the most likely first"
    for place, suspect in enumerate(finding.suspects, start=1):
        yield from _wrapped(suspect.says, 2, f"{place}. ")
    yield "\nTo tell them apart"
    yield from _wrapped(finding.cause.tell_apart, 2)
    yield "\nTo try"
    for place, remedy in enumerate(finding.remedies, start=1):
        yield from _wrapped(remedy.do, 2, f"{place}. ")
        yield from (f"     {where:<4}  {setting}" for where, setting in settings_of(remedy, source))
    yield f"\nShown in lab {finding.cause.lab}" + (", and by" if finding.cause.scenarios else "")
    yield from (f"  grpo-lab train --scenario {name}" for name in finding.cause.scenarios)


def suspected(found: Findings) -> Iterator[str]:
    """The likeliest two suspects of the first finding, a line each."""
    named = [finding for finding in found.findings if finding.cause.level != "note"]
    for place, suspect in enumerate(named[0].suspects[:2] if named else (), start=1):
        yield from _wrapped(suspect.says, 2, f"{place}. ")


def _of_limits(found: Findings) -> Iterator[str]:
    if found.possible:
        yield "\nWhat this log cannot rule out:"
    for possible in found.possible:
        lacks = "; ".join(f"{missing.metric}: {missing.why}" for missing in possible.lacks)
        yield from _wrapped(f"from step {possible.step}: {possible.cause.title} ({lacks})", 2)
    if found.blind:
        yield "\nWhat this log cannot show:"
    for why in dict.fromkeys(missing.why for missing, _ in found.blind):
        names = [missing.metric for missing, _ in found.blind if missing.why == why]
        yield from _wrapped(f"{', '.join(names)} ({why})", 2)


def settings_of(remedy: Remedy, source: str) -> list[tuple[str, str]]:
    """The settings of a remedy, each with its trainer: that of the log's trainer alone, or all if it is not known."""
    of_all = [(trainer, getattr(remedy, name)) for name, trainer in TRAINERS.items()]
    own = {"grpo_lab": "here", **SETTINGS_OF}.get(source)
    kept = [(TRAINERS[own], getattr(remedy, own))] if own else of_all if not source else []
    return [(trainer, setting) for trainer, setting in kept if setting]


def _row(evidence: Evidence) -> list[str]:
    numbers = [f"{evidence.value:.4g}", f"{evidence.last:.4g}" if of_run(evidence.metric) in METRICS else ""]
    return [str(evidence.step), evidence.metric, *numbers, healthy(evidence), evidence.says]


def healthy(evidence: Evidence) -> str:
    """The healthy range of an evidence's metric."""
    low, high = (f"{bound:g}" for bound in evidence.healthy)
    if low == "-inf":
        return ("finite" if of_run(evidence.metric) in METRICS else "") if high == "inf" else f"<= {high}"
    return f">= {low}" if high == "inf" else f"{low} to {high}"


def _wrapped(said: str, by: int, first: str = "") -> list[str]:
    """A paragraph, indented, broken only between words."""
    indent = " " * by
    return textwrap.wrap(
        " ".join(said.split()),
        WIDTH,
        initial_indent=indent + first,
        subsequent_indent=indent + " " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as columns, the last one broken between words where it would be too wide."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    by = 2 + sum(width + 2 for width in widths)
    for row in rows:
        left = "  " + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
        first, *rest = _wrapped(row[-1], by) if row[-1] and by < WIDTH - 20 else [" " * by + row[-1]]
        yield (left + first[by:]).rstrip()
        yield from rest


def html(found: Findings) -> str:
    """The diagnosis for a notebook: verdict, evidence, suspects and remedies; the whole text folds out.

    Verdict and headings are in the user's language; causes, evidence and the whole text are English.
    """
    first = next((finding for finding in found.findings if finding.cause.level != "note"), None)
    parts = [f"<strong>{escape(headline(found, messages.language()))}</strong>"]
    if first is None:
        parts.append(_list("ul", found.lacking or (messages.text("diagnosis.not_visible"),)))
    else:
        head = "".join(f"<th>{messages.text(f'diagnosis.column.{name}')}</th>" for name in HEAD)
        body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in _row(e)) + "</tr>" for e in first.evidence)
        parts.append(f"<p>{escape(' '.join(first.cause.what.split()))}</p>")
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts.append(f"<p>{messages.text('diagnosis.suspects')}</p>" + _list("ol", [s.says for s in first.suspects]))
        parts.append(
            f"<p>{messages.text('diagnosis.to_try')}</p>"
            + _list("ol", [_in_a_line(r, found.log.source) for r in first.remedies])
        )
    parts.append(
        f"<details><summary>{messages.text('diagnosis.whole')}</summary><pre>{escape(text(found))}</pre></details>"
    )
    return "<div>" + "".join(parts) + "</div>"


def _list(kind: str, items: Sequence[str]) -> str:
    return f"<{kind}>" + "".join(f"<li>{escape(item)}</li>" for item in items) + f"</{kind}>"


def _in_a_line(remedy: Remedy, source: str) -> str:
    settings = "; ".join(f"{trainer}: {setting}" for trainer, setting in settings_of(remedy, source))
    return f"{remedy.do} ({settings})" if settings else remedy.do


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
