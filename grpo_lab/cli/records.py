"""Commands that read recorded runs, and logs of any trainer."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from grpo_lab.cli.app import AsJson, Out, app
from grpo_lab.errors import ConfigError, DataError, RunError
from grpo_lab.runs import recordings as recordings_of
from grpo_lab.ui import console

if TYPE_CHECKING:
    from grpo_lab.runs.session import Session

Run = Annotated[Path, Argument(help="A run folder, or the name of a recording; see `grpo-lab recordings`.")]


@app.command(example="trace cuda-001-smollm2-135m-original")
def trace(
    run: Run,
    link: Annotated[str, Option(help="Show this link alone: its numbers, and the lines that computed it.")] = "",
    step: Annotated[int | None, Option(help="The step of --link; by default that of the first break.")] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Show which link of the chain broke first in a recorded run, and draw the chain."""
    from grpo_lab.runs.first_break import statuses
    from grpo_lab.ui import plots

    session = _opened(run)
    if link:
        from grpo_lab.analysis.anatomy import anatomy

        return console.say(str(anatomy(session.events, link, step)))
    if not as_json:
        console.say_summary(session)
    figure = plots.strip_figure(session.events, title=session.config.run.name)
    path = plots.save(figure, _place(session.directory, out, "chain"))
    if not as_json:
        return console.say(f"figure: {path}")
    found = session.first_break()
    tree = {
        "run": str(session.directory),
        "name": session.config.run.name,
        "status": session.status,
        "message": session.ended.message if session.ended else "",
        "crash": asdict(session.crash) if session.crash else None,
        "first_break": asdict(found) if found else None,
        "links": {str(step): row for step, row in statuses(session.events).items()},
        "figure": str(path),
    }
    console.say_json(tree)


def _opened(run: Path) -> Session:
    """The session of a run folder or a recording. Raises DataError, as for any bad file, if it cannot be read."""
    from grpo_lab.runs.session import Session

    try:
        return Session.open(recordings_of.find(run))
    except RunError as error:
        raise DataError(str(error)) from error


@app.command(example="diff runs/one runs/other")
def diff(
    first: Annotated[Path, Argument(help="A run folder, its events.jsonl, or the name of a recording.")],
    second: Annotated[Path, Argument(help="The run to compare it with.")],
    as_json: AsJson = False,
) -> None:
    """Compare two runs, events field by field and the final weights; exit code 1 if they differ.

    Times, memory, checkpoints and what a resume replaced do not count.
    """
    from grpo_lab.analysis.run_difference import difference

    try:
        found = difference(first, second)
    except RunError as error:
        raise DataError(str(error)) from error
    if as_json:
        console.say_json(found.tree())
    else:
        console.say(found.text)
    sys.exit(int(not found.same))


@app.command(example="suggest runs/my_run")
def suggest(run: Run, out: Out = None) -> None:
    """Write the healed config of a run that broke, as a preset's file, with the reason.

    Exit code 1 if the config of the run holds no known cause.
    """
    from grpo_lab.analysis import healing

    session = _opened(run)
    found = healing.suggest(session.config, session.events)
    if found is None:
        console.say(
            f"the config of {session.directory} holds no known cause; `grpo-lab diagnose {run}` reads its metrics"
        )
        sys.exit(1)
    path = _place(session.directory, out, "healed", ".toml")
    healing.write_preset(found.config, path, f"{session.config.run.name}, healed", found.heal.why)
    console.say(
        f"cause: {found.case.title} ({found.case.name})\n{healing.in_words(found, console.out.width)}\nconfig: {path}"
    )
    console.say(f"next: grpo-lab train --preset {path}")


@app.command(example="replay cuda-001-smollm2-135m-original --speed 4")
def replay(
    run: Run,
    speed: Annotated[float, Option(min=0.0, help="Factor on the recorded speed; 0 shows all at once.")] = 0.0,
    out: Out = None,
) -> None:
    """Show a recorded run step by step, without training, and draw its curves."""
    from grpo_lab.ui import plots

    session = _opened(run)
    with console.progress() as bars:
        for _ in session.replay(console.ProgressView(bars, session.config.run.name), speed):
            pass
    figure = plots.run_figure(session.events, title=session.config.run.name)
    path = plots.save(figure, _place(session.directory, out, "run"))
    console.say_end(session)
    console.say(f"figure: {path}")


@app.command(example="export runs/my_run --to tensorboard")
def export(
    run: Run,
    to: Annotated[str, Option(help="tensorboard, wandb or trackio; see docs/trackers.md.")],
    out: Out = None,
) -> None:
    """Write a recorded run to an experiment tracker, whose files are in its folder or in that of --out."""
    from grpo_lab.ui import trackers

    trackers.check([to])
    session = _opened(run)
    recorded = recordings_of.is_recording(session.directory)
    folder = out or (Path("runs") / session.directory.name if recorded else session.directory)
    with console.err.status(f"writing to {to}"):
        trackers.export(to, session, folder)
    console.say(f"{len(session.records)} steps of {session.directory} are in {to}, under {folder}")


@app.command(example="recordings --json")
def recordings(as_json: AsJson = False) -> None:
    """List the recorded runs, to trace and replay without training."""
    trees, rows = [], []
    for name in recordings_of.recording_names():
        session = _opened(Path(name))
        model, steps, end = session.config.model.name, len(session.records), session.ended
        message = end.message if end else ""
        tree = {"name": name, "model": model, "steps": steps, "status": session.status, "message": message}
        trees.append(tree | {"path": str(session.directory)})
        rows.append([name, model, str(steps), f"{session.status}  {message}".strip()])
    console.say_list(as_json, trees, ["recording", "model", "steps", "result"], rows)


def _place(run: Path, out: Path | None, kind: str, suffix: str = ".png") -> Path:
    """The path of a file about a run: in --out, in the run's folder, or, for an included recording, elsewhere."""
    place = out or (Path() if recordings_of.is_recording(run) else run)
    if place == run:
        return run / f"{kind}{suffix}"
    place.mkdir(parents=True, exist_ok=True)
    return place / f"{run.name}-{kind}{suffix}"


@app.command(example="diagnose my_run/trainer_state.json")
def diagnose(
    log: Annotated[Path, Argument(help="A run folder, a log file, a folder of TensorBoard files, or - for stdin.")],
    other: Annotated[Path | None, Argument(help="A second log, to compare the first with.")] = None,
    as_json: AsJson = False,
    plot: Annotated[Path | None, Option(help="Draw the evidence into this PNG file.")] = None,
    metric: Annotated[list[str] | None, Option(help="A metric's name in the log, as reward=foo; repeatable.")] = None,
) -> None:
    """Diagnose a run: the first failure, its evidence, suspects and remedies in the trainer that wrote the log.

    Reads run folders, trainer_state.json, consoles, JSON lines, CSV and TensorBoard of TRL, verl, OpenRLHF, ms-swift
    and W&B, and the settings and crash beside them (docs/logs.md). A second log is compared with the first.

    Exit code 0 for any diagnosis.
    """
    from grpo_lab.analysis.diagnosis import diagnose

    if plot and plot.suffix != ".png":
        raise ConfigError(f"--plot {plot}: figures are written as PNG; give a name that ends in .png")
    for each in metric or ():
        if "=" not in each:
            raise ConfigError(f"--metric {each}: give a metric and its name in the log, as reward=foo")
    names = dict(each.split("=", 1) for each in metric or ())
    found = diagnose(log, names)
    comparison = found.compare(diagnose(other, names), (str(log), str(other))) if other else None
    if plot:
        from grpo_lab.ui.plots import diagnosis, save

        if not found.log.metrics:
            raise ConfigError(f"--plot: {log} holds no metric to draw; leave --plot out")
        runs = [comparison.first, comparison.second] if comparison else [found]
        figure = diagnosis.figure(*runs, names=comparison.names if comparison else ())
        console.report(f"figure: {save(figure, plot)}")
    if as_json:
        tree = (comparison or found).tree()
        print(json.dumps(tree, indent=2, allow_nan=False))  # ASCII: a log may hold any character
    else:
        console.say_report(comparison.text() if comparison else found.text(str(log)))
