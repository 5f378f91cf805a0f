"""Commands that read a run after the fact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.cli.app import app

Run = Annotated[Path, typer.Argument(help="A run folder.")]


@app.command()
def trace(run: Run) -> None:
    """Which link of the chain broke first, read from a run's record."""
    from grpo_lab import console, plots
    from grpo_lab.chain import summary
    from grpo_lab.session import Session

    session = Session.open(run)
    console.out.print(summary(session.events), markup=False)
    path = plots.save(plots.strip_figure(session.events, title=session.config.run.name), run / "chain.png")
    console.out.print(f"figure: {path}", markup=False, soft_wrap=True)


@app.command()
def replay(
    run: Run, speed: Annotated[float, typer.Option(min=0.0, help="Times the recorded speed; 0 for at once.")] = 0.0
) -> None:
    """Show a recorded run again, step by step, without training."""
    from grpo_lab import console, plots
    from grpo_lab.session import Session

    session = Session.open(run)
    with console.progress() as bars:
        for _ in session.replay(console.ProgressView(bars, session.config.run.name), speed):
            pass
    path = plots.save(plots.run_figure(session.events, title=session.config.run.name), run / "run.png")
    console.say_end(session)
    console.out.print(f"figure: {path}", markup=False, soft_wrap=True)
