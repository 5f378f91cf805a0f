"""`python -m benchmarks.diagnosis own` and `… trl`: how often the diagnosis names the cause of a run from its log."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.diagnosis import own_runs, trl_remedies, trl_runs
from grpo_lab.runs import environment

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
First = Annotated[int, typer.Option(help="First seed; rules were tuned on seeds below 100.")]
Only = Annotated[list[str] | None, typer.Option(help="One scenario or recipe; may be given again.")]
Kept = Annotated[Path | None, typer.Option("--runs", help="Folder of the runs; those that it has are not made again.")]
Out = Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")]
RESULTS = Path("benchmarks/results")


@app.command()
def own(
    first: First = 100,
    seeds: Annotated[int, typer.Option(help="Runs of each scenario.")] = 10,
    healthy_runs: Annotated[int, typer.Option(help="Healthy runs.")] = 40,
    only: Only = None,
    kept: Kept = None,
    out: Out = RESULTS,
) -> None:
    """Runs of every scenario and healthy ones, as this project, TRL and verl log them: diagnosis.{json,md}."""
    started = time.perf_counter()
    planned = list(own_runs.runs(first, seeds, healthy_runs, only or []))
    with tempfile.TemporaryDirectory() as scratch:
        found = own_runs.measure(planned, kept or Path(scratch))
    _write(out, "diagnosis", "Blind diagnosis, counted", found, own_runs.markdown(found), started)


@app.command()
def trl(
    first: First = 100,
    seeds: Annotated[int, typer.Option(help="Runs of each recipe.")] = 3,
    only: Only = None,
    kept: Kept = None,
    out: Out = RESULTS,
) -> None:
    """Runs of TRL's GRPOTrainer that go wrong in known ways, and healthy ones: diagnosis_trl.{json,md}."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        found = trl_runs.measure(range(first, first + seeds), only or [], kept or Path(scratch))
    _write(out, "diagnosis_trl", "Blind diagnosis of runs of TRL, counted", found, trl_runs.markdown(found), started)


@app.command()
def remedies(
    first: First = 300,
    seeds: Annotated[int, typer.Option(help="Runs of each recipe.")] = 2,
    only: Only = None,
    out: Out = RESULTS,
) -> None:
    """Runs of TRL's GRPOTrainer with each remedy that the diagnosis of the broken one names: trl_remedies.{json,md}."""
    started = time.perf_counter()
    found = trl_remedies.measure(range(first, first + seeds), only or [])
    _write(out, "trl_remedies", "Remedies of the diagnosis, tried in TRL", found, trl_remedies.markdown(found), started)


def _write(out: Path, name: str, title: str, found: dict[str, Any], text: str, started: float) -> None:
    command = shlex.join(["python", "-m", "benchmarks.diagnosis", *_lasting(sys.argv[1:])])
    about = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command,
        "seconds": round(time.perf_counter() - started),
        "environment": environment.describe(),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps({**about, **found}, indent=2) + "\n", encoding="utf-8")
    intro = f"# {title}\n\nMade by `{command}`, with seeds that no rule was tuned on.\n\n"
    (out / f"{name}.md").write_text(intro + text, encoding="utf-8")
    print(text)


def _lasting(words: list[str]) -> list[str]:
    """The command's words without folders of this machine."""
    folders = [place for place, word in enumerate(words) if word in ("--runs", "--out")]
    return [word for place, word in enumerate(words) if place not in folders and place - 1 not in folders]


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)  # a model with NaN weights is not saved, as expected here
    app()
