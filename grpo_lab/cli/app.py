"""The application that commands register with, and their shared options."""

from pathlib import Path
from typing import Annotated

import typer

# Commands import the package when they run: torch takes seconds to import, and --help must be quick.
app = typer.Typer(
    help="Reproduce, trace and stop failures of GRPO training.",
    epilog="Exit codes: 0 done; 1 the run failed, crashed or was stopped; 2 bad usage; 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Model = Annotated[str | None, typer.Option("--model", help="tiny, smollm2-135m, a local folder, or a hub id.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
Out = Annotated[Path | None, typer.Option("--out", help="Output folder.")]


def given(model: str | None, device: str | None) -> tuple[str, ...]:
    """The shared options as overrides of a config."""
    pairs = (("model.name", model), ("run.device", device))
    return tuple(f"{name}={value}" for name, value in pairs if value)
