"""The command that diagnoses a log, of this or another trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_lab.cli.app import app

if TYPE_CHECKING:
    from grpo_lab.analysis.diagnosis import DetectedCause, Diagnosis, Evidence


ENOUGH = 6
"""Steps that a curve needs to have a beginning and an end."""


@app.command(example="diagnose my_run/trainer_state.json")
def diagnose(
    log: Annotated[Path, typer.Argument(help="A run folder, a log file, or a folder of TensorBoard files.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
) -> None:
    """Diagnose a run: the first failure, its evidence, and remedies.

    Reads run folders, trainer_state.json of TRL and transformers, verl's console and file logger, JSON lines,
    TensorBoard and CSV. It uses metrics only. Exit code 0 for any diagnosis.
    """
    from grpo_lab.analysis.diagnosis import diagnose

    found = diagnose(log)
    if as_json:
        typer.echo(json.dumps(_tree(found), indent=2, allow_nan=False))
    else:
        _show(found, str(log))


def _show(found: Diagnosis, name: str) -> None:
    from grpo_lab.ui import console

    steps, metrics = found.log.steps, found.log.metrics
    count = f"{len(steps):,} step{'s' * (len(steps) != 1)}"
    said = f"{name}: {found.log.format}, {count} ({steps[0]} to {steps[-1]}), {len(metrics)} metrics"
    short = [f"with {count}, most curves show no trend yet"] if len(steps) < ENOUGH else []
    for line in (said, *(f"note: {note}" for note in (*found.log.notes, *short)), ""):
        console.say(line)
    if not found.findings:
        console.out.print("Nothing wrong in the logged metrics.", style="bold")
        console.out.print("Not every failure is visible: compare once the gradients of a batch and its micro-batches.")
    for finding in found.findings[:1]:
        _show_cause(finding)
    if found.findings[1:]:
        console.say("\nAlso found, probably a consequence:")
        for finding in found.findings[1:]:
            console.out.print(f"  from step {finding.step}: {_titled(finding)}", markup=False)
    _show_unknown(found)


def _titled(finding: DetectedCause) -> str:
    """The title of the cause, with the objective that shows it."""
    return finding.cause.title + (f" (objective {finding.objective})" if finding.objective else "")


def _show_cause(finding: DetectedCause) -> None:
    from rich.padding import Padding

    from grpo_lab.ui import console

    cause, out = finding.cause, console.out
    out.print(f"{_titled(finding)}  [from step {finding.step}; {cause.name}]", style="bold", markup=False)
    out.print(console.indented(" ".join(cause.what.split()), 2))
    rows = [[str(e.step), e.metric, f"{e.value:.4g}", _range(e), e.says] for e in finding.evidence]
    out.print("\nEvidence")
    out.print(Padding(console.table([["step", "metric", "value", "healthy", "meaning"], *rows]), (0, 0, 0, 2)))
    out.print("\nSuspects, the most likely first")
    for place, suspect in enumerate(cause.suspects, start=1):
        out.print(console.indented(f"{place}. {suspect}", 2))
    out.print("\nTo tell them apart")
    out.print(console.indented(cause.tell_apart, 2))
    out.print("\nTo try")
    for place, remedy in enumerate(cause.remedies, start=1):
        out.print(console.indented(f"{place}. {remedy.do}", 2))
        for where, setting in (("here", remedy.here), ("TRL ", remedy.trl), ("verl", remedy.verl)):
            out.print(console.indented(f"{where}  {setting}", 5), soft_wrap=True)
    shown = "".join(f"\n  grpo-lab train --scenario {name}" for name in cause.scenarios)
    out.print(f"\nShown in lab {cause.lab}" + (", and by" + shown if shown else ""), markup=False)


def _show_unknown(found: Diagnosis) -> None:
    from grpo_lab.ui import console

    if found.possible:
        console.out.print("\nWhat this log cannot rule out:")
    for possible in found.possible:
        lacks = "; ".join(f"{missing.metric}: {missing.why}" for missing in possible.lacks)
        console.out.print(console.indented(f"from step {possible.step}: {possible.cause.title} ({lacks})", 2))
    if found.blind:
        console.out.print("\nWhat this log cannot show:")
    for missing, causes in found.blind:
        titles = "; ".join(cause.title for cause in causes)
        console.out.print(console.indented(f"{missing.metric} ({missing.why}): {titles}", 2))


def _range(evidence: Evidence) -> str:
    low, high = (f"{bound:g}" for bound in evidence.healthy)
    if low == "-inf" and high == "inf":
        return "finite"
    return f">= {low}" if high == "inf" else f"{low} to {high}"


def _tree(found: Diagnosis) -> dict[str, Any]:
    """The diagnosis as plain values; NaN and inf are strings."""
    from dataclasses import asdict

    from grpo_lab.events import encodable

    findings = [
        {
            "cause": finding.cause.name,
            "title": finding.cause.title,
            "level": finding.cause.level,
            "objective": finding.objective,
            "step": finding.step,
            "evidence": [{**asdict(e), "healthy": e.healthy} for e in finding.evidence],
            "suspects": finding.cause.suspects,
            "tell_apart": finding.cause.tell_apart,
            "remedies": [asdict(remedy) for remedy in finding.cause.remedies],
            "scenarios": finding.cause.scenarios,
            "lab": finding.cause.lab,
        }
        for finding in found.findings
    ]
    possible = [
        {"cause": p.cause.name, "step": p.step, "lacks": [asdict(missing) for missing in p.lacks]}
        for p in found.possible
    ]
    log = {"format": found.log.format, "steps": len(found.log.steps), "metrics": list(found.log.metrics)}
    blind = [{**asdict(missing), "causes": [cause.name for cause in causes]} for missing, causes in found.blind]
    tree = {"verdict": found.verdict, "log": {**log, "notes": found.log.notes}, "findings": findings}
    return encodable({**tree, "possible": possible, "cannot_show": blind})
