"""Commands that read recorded runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.cli.app import Out, app

Run = Annotated[Path, typer.Argument(help="A run folder, or the name of a recording; see `grpo-lab recordings`.")]


@app.command()
def trace(run: Run, out: Out = None) -> None:
    """Show which link of the chain broke first in a recorded run, and draw the chain."""
    from grpo_lab.runs.recordings import find
    from grpo_lab.runs.session import Session
    from grpo_lab.ui import console, plots

    session = Session.open(find(run))
    console.say_summary(session)
    figure = plots.strip_figure(session.events, title=session.config.run.name)
    console.say(f"figure: {plots.save(figure, _place(session.directory, out, 'chain'))}")


@app.command()
def suggest(run: Run, out: Out = None) -> None:
    """Write the healed config of a run that broke, as a preset's file, with the reason.

    Exit code 1 if the config of the run holds no known cause.
    """
    from grpo_lab.analysis import healing
    from grpo_lab.runs.recordings import find
    from grpo_lab.runs.session import Session
    from grpo_lab.ui import console

    session = Session.open(find(run))
    found = healing.suggest(session.config, session.events)
    if found is None:
        console.say(
            f"the config of {session.directory} holds no known cause; `grpo-lab diagnose {run}` reads its metrics"
        )
        sys.exit(1)
    path = _place(session.directory, out, "healed", ".toml")
    healing.write_preset(found.config, path, f"{session.config.run.name}, healed", found.heal.why)
    console.say(f"cause: {found.case.title} ({found.case.name})\n{healing.in_words(found)}\nconfig: {path}")
    console.say(f"next: grpo-lab train --preset {path}")


@app.command()
def replay(
    run: Run,
    speed: Annotated[float, typer.Option(min=0.0, help="Factor on the recorded speed; 0 shows all at once.")] = 0.0,
    out: Out = None,
) -> None:
    """Show a recorded run step by step, without training, and draw its curves."""
    from grpo_lab.runs.recordings import find
    from grpo_lab.runs.session import Session
    from grpo_lab.ui import console, plots

    session = Session.open(find(run))
    with console.progress() as bars:
        for _ in session.replay(console.ProgressView(bars, session.config.run.name), speed):
            pass
    figure = plots.run_figure(session.events, title=session.config.run.name)
    path = plots.save(figure, _place(session.directory, out, "run"))
    console.say_end(session)
    console.say(f"figure: {path}")


@app.command()
def recordings() -> None:
    """List the recorded runs, to trace and replay without training."""
    from grpo_lab.runs.recordings import find, recording_names
    from grpo_lab.runs.session import Session
    from grpo_lab.ui import console

    rows = [["recording", "model", "steps", "result"]]
    for name in recording_names():
        session = Session.open(find(name))
        end = session.ended.message if session.ended else ""
        rows.append([name, session.config.model.name, str(len(session.records)), f"{session.status}  {end}".strip()])
    console.out.print(console.table(rows))


def _place(run: Path, out: Path | None, kind: str, suffix: str = ".png") -> Path:
    """The path of a file about a run: in --out, in the run's folder, or, for an included recording, elsewhere."""
    from grpo_lab.runs.recordings import place_for_figures

    place = out or place_for_figures(run)
    if place == run:
        return run / f"{kind}{suffix}"
    place.mkdir(parents=True, exist_ok=True)
    return place / f"{run.name}-{kind}{suffix}"
