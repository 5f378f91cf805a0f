"""`python -m benchmarks.algorithms learns` and `… fails`: what the formulas of each algorithm change.

Ctrl-C loses no finished run: the same command goes on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.algorithms import fails, learns
from benchmarks.matrix import heat_map_in_words
from grpo_lab.analysis.matrix.cells import NONE, cells
from grpo_lab.analysis.matrix.pool import Pool, run_all
from grpo_lab.analysis.matrix.results import GAIN, Journal, Measurement, from_json
from grpo_lab.analysis.matrix.table import Findings
from grpo_lab.config.algorithms import algorithm_names
from grpo_lab.events import encodable
from grpo_lab.runs import environment
from grpo_lab.ui import console, plots

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
Only = Annotated[list[str] | None, typer.Option("--algorithm", help="An algorithm, by default all; repeatable.")]
Out = Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")]
Claims = Annotated[Path, typer.Option(help="The page whose part about algorithms is written.")]
RESULTS, CLAIMS = Path("benchmarks/results"), Path("docs/claims.md")
INTERRUPTED = 130
Updates = Annotated[list[int] | None, typer.Option(min=1, help="Updates a batch, by default 1 and 4; repeatable.")]


@app.command("learns")
def learn(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each algorithm.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a run.")] = 100,
    updates: Updates = None,
    only: Only = None,
    out: Out = RESULTS,
) -> None:
    """Train a healthy run of each algorithm, one after another: algorithms_learns.{json,md}."""
    path, names = out / "algorithms_learns.json", only or algorithm_names()
    known = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    wanted = [
        {"algorithm": name, "seed": seed, "steps": steps, "updates": each}
        for each in updates or (1, 4)
        for seed in range(seeds)
        for name in names
    ]
    with console.progress() as bars:
        task = bars.add_task("runs", total=len(wanted), note="")
        try:
            runs = known
            for runs in learns.measure(wanted, known, lambda asked: _show(bars, task, asked)):
                learns.write(path, {**_about(), "runs": runs})
        except KeyboardInterrupt:
            console.report(f"stopped: finished runs are in {path}; the same command goes on")
            raise typer.Exit(INTERRUPTED) from None
    text = f"""# How fast each algorithm learns

Made by `{_command()}` on a CPU, torch {environment.describe(threads=1)["packages"]["torch"]}.
The preset `stable` with the formulas of each algorithm and the same beta, one run after another on one thread. The
held-out reward is the mean over {learns.HELD_OUT} problems, sampled once each at temperature 1, every {learns.EVERY}
steps (standard error 0.03). *steps to {learns.GOAL}*: median over all seeds of the first measurement that reaches it,
`-` where half of the seeds do not. *time a step*: median step over that of `{learns.BASE}` with the same seed; the
median over seeds. *last KL*: mean of the last five steps and of the seeds.

{learns.page(runs)}"""
    (out / "algorithms_learns.md").write_text(text, encoding="utf-8")
    print(text)


@app.command("fails")
def fail(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each cell.")] = 3,
    only: Only = None,
    scenario: Annotated[list[str] | None, typer.Option(help="A scenario; repeatable.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells to run in parallel.")] = os.cpu_count() or 1,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds after which a cell counts as hung.")] = 600.0,
    kept: Annotated[Path, typer.Option(help="Folder of finished cells.")] = Path("runs/algorithms"),
    out: Out = RESULTS,
    claims: Claims = CLAIMS,
) -> None:
    """Train each algorithm on failures, as long as their heals are tried: algorithms_fails.{json,md,png}, claims."""
    names, cases = only or algorithm_names(), scenario or list(fails.SCENARIOS)
    wanted = cells(cases, {NONE: {}}, seeds, trial=True, algorithms=names)
    journal, pool = Journal(kept / "cells.jsonl"), Pool(limit)
    unique = list({cell.key: cell for cell in wanted}.values())
    try:
        with console.progress() as bars:
            done = sum(map(journal.has, unique))
            task = bars.add_task("cells", total=len(unique), completed=done, note="")

            def tell(result: Measurement) -> None:
                bars.update(task, advance=1, note=f"{result.scenario}, {result.column}: {result.fate}")

            if not run_all(unique, journal, pool, jobs, tell):
                console.report(f"stopped: finished cells are in {kept}; the same command goes on")
                raise typer.Exit(INTERRUPTED)
        results = journal.of(wanted)
    finally:
        pool.close()
    rows = [encodable(dataclasses.asdict(result)) for result in results]
    learns.write(out / "algorithms_fails.json", {**_about(), "cells": rows})
    found = Findings(results)
    figure = plots.save(plots.heat_map_figure(found), out / "algorithms_fails.png")
    text = fails.page(found, figure.name, heat_map_in_words(found))
    intro = f"""# Which algorithm fails how

Made by `{_command()}` on a CPU, torch {environment.describe(threads=1)["packages"]["torch"]}.
Each cell is {seeds} runs without a guard: a scenario's cause, the formulas of an algorithm, and the length and batch of
the scenario's trial. The words are those of the [matrix](../../docs/matrix/findings.md); *learn*: runs that gain
{GAIN} or more of held-out reward.

"""
    (out / "algorithms_fails.md").write_text(intro + text, encoding="utf-8")
    print(text)
    write_claims(out, claims)


@app.command("claims")
def write_claims(out: Out = RESULTS, claims: Claims = CLAIMS) -> None:
    """Write the part of docs/claims.md about algorithms again, from algorithms_fails.json."""
    changed = fails.put_into(claims, read(out / "algorithms_fails.json"))
    console.report(f"{claims}: {'written' if changed else 'as it was'}")


def read(path: Path) -> Findings:
    """The results in a file; none if it is not there."""
    rows = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
    return Findings([from_json(json.dumps(row)) for row in rows])


def _show(bars: Any, task: Any, asked: learns.Run) -> None:
    words = f"{asked['algorithm']}, seed {asked['seed']}, {asked['updates']} updates"
    bars.update(task, advance=1, note=words)


def _command() -> str:
    """The command without folders of this machine."""
    words = sys.argv[1:]
    places = [place for place, word in enumerate(words) if word in ("--out", "--kept", "--claims", "--jobs")]
    lasting = [word for place, word in enumerate(words) if place not in places and place - 1 not in places]
    return shlex.join(["python", "-m", "benchmarks.algorithms", *lasting])


def _about() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": _command(),
        "environment": environment.describe(threads=1),
    }


if __name__ == "__main__":
    app()
