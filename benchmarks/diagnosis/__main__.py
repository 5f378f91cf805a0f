"""`python -m benchmarks.diagnosis`: how often the diagnosis names the cause of a run of TRL from its log."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
import warnings
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.diagnosis import trl_runs
from grpo_lab.runs import environment


def main(
    first: Annotated[int, typer.Option(help="First seed; rules were tuned on seeds below 100.")] = 100,
    seeds: Annotated[int, typer.Option(help="Runs of each recipe.")] = 3,
    only: Annotated[list[str] | None, typer.Option(help="One recipe; may be given again.")] = None,
    kept: Annotated[
        Path | None, typer.Option("--runs", help="Folder of the runs; those that it has are not made again.")
    ] = None,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")] = Path("benchmarks/results"),
) -> None:
    """Runs of TRL's GRPOTrainer that go wrong in known ways, and healthy ones: diagnosis_trl.{json,md}."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        found = trl_runs.measure(range(first, first + seeds), only or [], kept or Path(scratch))
    some = [word for name in only or () for word in ("--only", name)]
    command = ["python", "-m", "benchmarks.diagnosis", "--first", str(first), "--seeds", str(seeds), *some]
    about = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(command),
        "seconds": round(time.perf_counter() - started),
        "environment": environment.describe(),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "diagnosis_trl.json").write_text(json.dumps({**about, **found}, indent=2) + "\n", encoding="utf-8")
    intro = f"Made by `{shlex.join(command)}`, with seeds that no rule was tuned on.\n\n"
    text = f"# Blind diagnosis of runs of TRL, counted\n\n{intro}{trl_runs.markdown(found)}"
    (out / "diagnosis_trl.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)  # a model with NaN weights is not saved, as expected here
    typer.run(main)
