"""Commands about the labs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.cli.app import app

labs_app = typer.Typer(help="The notebooks.", no_args_is_help=True)
app.add_typer(labs_app, name="labs")


@labs_app.callback()
def labs() -> None:
    """The notebooks: made from labs/src, checked against it."""


@labs_app.command()
def build(
    names: Annotated[list[str] | None, typer.Argument(metavar="[LAB]...", help="Labs; all if none is named.")] = None,
    edition: Annotated[str | None, typer.Option(help="learner or instructor; both if not given.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a notebook is out of date.")] = False,
    folder: Annotated[Path, typer.Option(help="Where src/ is and the notebooks go.")] = Path("labs"),
) -> None:
    """Make the notebooks from labs/src: one for learners, and one with solutions and notes in labs/instructor."""
    from grpo_lab import console
    from grpo_lab.errors import RunError, unknown
    from grpo_lab.labs import editions

    if edition is not None and edition not in editions.EDITIONS:
        raise unknown("edition", edition, editions.EDITIONS)
    notebooks = editions.render(folder, names or (), (edition,) if edition else editions.EDITIONS)
    if not check:
        for path in editions.write(notebooks):
            console.out.print(f"{path} written", markup=False, soft_wrap=True)
    elif stale := editions.stale(notebooks):
        raise RunError(f"out of date: {', '.join(map(str, stale))}; run grpo-lab labs build")
