"""The application that commands register with, and their shared options."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer import Option

from grpo_lab import messages
from grpo_lab.errors import unknown

T = TypeVar("T", bound=Callable[..., Any])
CODES = (
    "Exit codes: 0 done; 1 the run failed, crashed or was stopped by a guard; 2 bad usage or a bad file; 130 Ctrl-C; "
    "143 or 129 ended by SIGTERM or SIGHUP."
)
INTERRUPTED = 130


class _Application(typer.Typer):
    """A Typer whose commands state their exit codes, and an example, below their help."""

    def command(self, name: str | None = None, *, example: str = "", **options: Any) -> Callable[[T], T]:
        """Register a command; `example` is a command line without `grpo-lab`."""
        epilog = (f"Example: grpo-lab {example}\n\n" if example else "") + CODES
        return super().command(name, epilog=epilog, **options)


# Commands import what needs torch or pandas when they run: that takes seconds, and --help must be quick.
app = _Application(
    help="Reproduce, trace and stop failures of GRPO training.",
    epilog=CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def sub(name: str, help: str, **options: Any) -> _Application:
    """A group of commands below `grpo-lab NAME`."""
    found = _Application(help=help, epilog=CODES, rich_markup_mode=None, **options)
    app.add_typer(found, name=name)
    return found


def spoken(language: str | None) -> str:
    """The language of --language, or the one that GRPO_LAB_LANG sets. Raises ConfigError for an unknown one."""
    chosen = language or messages.language()
    if chosen != messages.ENGLISH and chosen not in messages.languages():
        raise unknown("language", chosen, messages.languages())
    return chosen


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"grpo-lab {version('grpo-lab')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Reproduce, trace and stop failures of GRPO training."""


Model = Annotated[str | None, Option("--model", help="tiny, smollm2-135m, a local folder, or a hub id.")]
Language = Annotated[str | None, Option("--language", help="en or zh; by default GRPO_LAB_LANG, or else en.")]
Device = Annotated[str | None, Option("--device", help="auto, cpu, cuda or cuda:1.")]
Out = Annotated[Path | None, Option("--out", help="Output folder.")]
Settings = Annotated[list[str] | None, Option("--set", help="section.setting=value; may be repeated.")]
Browser = Annotated[bool, Option(help="Open a browser window, or only print the address.")]
Check = Annotated[bool, Option("--check", help="Write nothing; exit 1 if a file is out of date.")]
Backend = Annotated[str, Option(help="Where tasks run: local, dask or ray; see docs/fan-out.md.")]
Scheduler = Annotated[str, Option(help="Address of a dask or ray cluster; without it one starts here.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]


def given(model: str | None, device: str | None) -> tuple[str, ...]:
    """The shared options as overrides of a config."""
    pairs = (("model.name", model), ("run.device", device))
    return tuple(f"{name}={value}" for name, value in pairs if value)
