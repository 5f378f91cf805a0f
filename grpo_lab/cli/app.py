"""The application that commands register with, and the options that several of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Commands import what they need when they run: torch takes seconds, and --help must not.
app = typer.Typer(
    help="Reproduce, trace and stop the ways a GRPO run blows up.",
    epilog="Exit codes: 0 done; 1 the run failed, crashed or was stopped; 2 bad usage; 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Model = Annotated[str | None, typer.Option("--model", help="tiny, smollm2-135m, a local folder, or a hub id.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for what is written.")]


def given(model: str | None, device: str | None) -> tuple[str, ...]:
    """The shared options as overrides of a config."""
    pairs = (("model.name", model), ("run.device", device))
    return tuple(f"{name}={value}" for name, value in pairs if value)
