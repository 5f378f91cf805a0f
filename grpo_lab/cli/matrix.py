"""The command that measures which guard stops which failure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from grpo_lab.cli.app import INTERRUPTED, Backend, Device, Model, Scheduler, app, given
from grpo_lab.config.fields import listed
from grpo_lab.ui import console

if TYPE_CHECKING:
    from grpo_lab.analysis.matrix import Cell, FarPool, Journal, Measurement, Pool

CELLS = "cells.jsonl"


@app.command(example="matrix --scenario cuda-001 --guards clip_gradients,stable")
def matrix(
    scenario: Annotated[list[str] | None, Option(help="A scenario, your own .toml, or `healthy`; repeatable.")] = None,
    guards: Annotated[list[str] | None, Option("--guards", "--guard", help="Their columns, a,stable,none.")] = None,
    algorithms: Annotated[list[str] | None, Option("--algorithms", "--algorithm", help="Their columns, a,b.")] = None,
    column: Annotated[list[str] | None, Option(help="Only these columns of the table; repeatable.")] = None,
    seeds: Annotated[int, Option(min=1, help="Seeds of each cell: 0, 1, …")] = 3,
    steps: Annotated[int | None, Option(min=1, help="Steps of a run; by default its own, at least 12.")] = None,
    jobs: Annotated[int, Option(min=1, help="Cells to run in parallel.")] = os.cpu_count() or 1,
    limit: Annotated[float, Option(min=1.0, help="Seconds after which a cell counts as hung.")] = 120.0,
    model: Model = None,
    device: Device = None,
    out: Annotated[Path, Option(help="Output folder; its finished cells are not run again.")] = Path("runs/matrix"),
    keep: Annotated[bool, Option("--keep", help="Keep the folder of every run.")] = False,
    backend: Backend = "local",
    scheduler: Scheduler = "",
) -> None:
    """Measure which guard stops which failure: one short run for every scenario, guard and seed.

    Ctrl-C stops after the running cells; the same command goes on. Writes cells.csv and heat_map.png.
    """
    from grpo_lab.analysis.matrix import NONE, FarPool, Journal, Pool, cells, columns, only, rows
    from grpo_lab.runs import clusters

    guard, chosen = ([name for text in texts or () for name in listed(text)] for texts in (guards, algorithms))
    guard_sets = columns(guard) if guard or not chosen else {NONE: {}}
    every, overrides = not (guard or chosen), given(model, device)
    wanted = only(column, cells(rows(scenario or ()), guard_sets, seeds, steps, overrides, every, algorithms=chosen))
    cluster, folder = clusters.connect(backend, scheduler, jobs), out / "runs" if keep else None
    journal, pool = Journal(out / CELLS), FarPool(cluster, limit, folder) if cluster else Pool(limit, folder)
    with closing(pool):
        results = _finish(wanted, journal, pool, cluster.jobs if cluster else jobs, out)
    _write(out, results)


def _finish(wanted: Sequence[Cell], journal: Journal, pool: Pool | FarPool, jobs: int, out: Path) -> list[Measurement]:
    """Run the unfinished cells, with a bar; exit with code 130 after Ctrl-C."""
    from grpo_lab.analysis.matrix import run_all

    unique = {cell.key: cell for cell in wanted}.values()
    with console.progress() as bars:
        done = sum(journal.has(cell) for cell in unique)
        task = bars.add_task("cells", total=len(unique), completed=done, note="")

        def tell(result: Measurement) -> None:
            bars.update(task, advance=1, note=f"{result.scenario}, {result.column}: {result.fate}")

        finished = run_all(list(unique), journal, pool, jobs, tell)
    if not finished:
        done = sum(journal.has(cell) for cell in unique)
        console.report(
            f"stopped: {done} of {len(unique)} cells are finished in {out}; the same command goes on from there"
        )
        raise typer.Exit(INTERRUPTED)
    return journal.of(wanted)


def _write(out: Path, results: list[Measurement]) -> None:
    """Write the files and print a summary; exit with code 1 if a cell measured nothing."""
    from grpo_lab.analysis.matrix import Fate, Findings, summary, to_csv
    from grpo_lab.ui import plots

    found = Findings(results)
    (out / "cells.csv").write_text(to_csv(results), encoding="utf-8")
    figure = plots.save(plots.heat_map_figure(found), out / "heat_map.png")
    console.out.print(console.table(summary(found)))
    console.say(f"figure: {figure}")
    if failed := [result for result in results if result.fate == Fate.FAILED]:
        console.report(f"{len(failed)} of {len(results)} cells measured nothing; the first: {failed[0].message}")
        raise typer.Exit(1)
