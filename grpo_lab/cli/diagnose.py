"""The command that diagnoses a log, of this or another trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.cli.app import app


@app.command(example="diagnose my_run/trainer_state.json")
def diagnose(
    log: Annotated[
        Path, typer.Argument(help="A run folder, a log file, a folder of TensorBoard files, or - for stdin.")
    ],
    other: Annotated[Path | None, typer.Argument(help="A second log, to compare the first with.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the evidence into this PNG file.")] = None,
) -> None:
    """Diagnose a run: the first failure, its evidence, suspects and remedies in the trainer that wrote the log.

    Reads run folders, trainer_state.json, consoles, JSON lines, CSV and TensorBoard of TRL, verl, OpenRLHF, ms-swift
    and W&B, and the settings and crash beside them (docs/logs.md). A second log is compared with the first.

    Exit code 0 for any diagnosis.
    """
    from grpo_lab.analysis.diagnosis import diagnose
    from grpo_lab.errors import ConfigError
    from grpo_lab.ui import console

    if plot and plot.suffix != ".png":
        raise ConfigError(f"--plot {plot}: figures are written as PNG; give a name that ends in .png")
    found = diagnose(log)
    comparison = found.compare(diagnose(other), (str(log), str(other))) if other else None
    if plot:
        from grpo_lab.ui.plots import diagnosis, save

        if not found.log.metrics:
            raise ConfigError(f"--plot: {log} holds no metric to draw; leave --plot out")

        runs = [comparison.first, comparison.second] if comparison else [found]
        names = comparison.names if comparison else ()
        console.report(f"figure: {save(diagnosis.figure(*runs, names=names), plot)}")
    shown = comparison or found
    if as_json:
        typer.echo(json.dumps(shown.tree(), indent=2, allow_nan=False))
    else:
        console.say_report(shown.text() if comparison else found.text(str(log)))
