"""`python -m benchmarks`: run them, print a table, write one JSON file."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shlex
import sys
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Plan
from grpo_lab.runs import environment


class Name(StrEnum):
    """The benchmarks; each is a module of this name with a function `measure`."""

    against_trl = "against_trl"
    guards = "guards"
    shared_prefix = "shared_prefix"
    pretrained = "pretrained"
    live_panel = "live_panel"


PLANS = {
    Name.against_trl: Plan(blocks=30, steps=3, warm_up=10),
    Name.guards: Plan(blocks=30, steps=3, warm_up=5),
    Name.shared_prefix: Plan(blocks=20, steps=3, warm_up=5),
    Name.pretrained: Plan(blocks=10, steps=1, warm_up=2),
    Name.live_panel: Plan(blocks=10, steps=5),
}
QUICK = Plan(blocks=3, steps=2, warm_up=2)
# Upper limits (lower for TRL) of the median, as DESIGN.md's budgets have them.
TARGETS = {
    "TRL / ours": (">=", 1.7),
    "guards stable / none": ("<=", 1.05),
    "guards everyone / none": ("<=", 1.05),
    "135M: TRL / ours": (">=", 1.2),
    "135M: guards stable / none": ("<=", 1.03),
    "panel live / headless, step": ("<=", 1.05),
}


def main(
    quick: Annotated[
        bool, typer.Option(help="A few steps, to test that everything runs; the figures mean nothing.")
    ] = False,
    only: Annotated[list[Name] | None, typer.Option(help="One benchmark; may be given again.")] = None,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")] = Path("benchmarks/results"),
    threads: Annotated[list[int] | None, typer.Option(help="CPU threads; may be given again. 1 and 2 if not.")] = None,
) -> None:
    """Measure, print a table, and write cpu.json; a partial run writes cpu-partial.json instead."""
    console = Console(width=None if sys.stdout.isatty() else 120)  # a log has no width of its own
    chosen, counts = only or list(Name), threads or [1, 2]
    results: dict[str, dict[str, Any]] = {}
    # Import only the chosen ones, and all of them before any runs: a missing package is reported at once.
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in chosen}
    for name, module in modules.items():
        for count in counts:
            console.print(f"{name}, {count} threads …", style="dim")
            found = module.measure(count, QUICK if quick else PLANS[name])
            results.setdefault(name, {})[f"{count} threads"] = found
            if "skipped" in found:
                console.print(f"{name}: skipped, {found['skipped']}")
    partial = quick or bool(only) or bool(threads)
    path = out / ("cpu-partial.json" if partial else "cpu.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about(), "results": results}, indent=2) + "\n", encoding="utf-8")
    console.print(table(results))
    console.print(f"written to {path}", style="dim")


def about() -> dict[str, Any]:
    """Date, command and environment of a measurement."""
    described = environment.describe()
    with suppress(importlib.metadata.PackageNotFoundError):  # only `against_trl` needs it
        described["packages"]["trl"] = importlib.metadata.version("trl")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"],
        "load average at the end": [round(load, 2) for load in os.getloadavg()],
        "environment": {key: value for key, value in described.items() if key != "threads"},
    }


def table(results: dict[str, dict[str, Any]]) -> Table:
    """A table with one row for each ratio and number of threads."""
    shown = Table("ratio", "threads", "median", "quartiles", "range", "fastest", "processor", "budget")
    for by_threads in results.values():
        for threads, found in by_threads.items():
            for name, ratio in found.items():
                if isinstance(ratio, dict) and "wall" in ratio:
                    shown.add_row(*_row(name, threads, ratio))
    return shown


def _row(name: str, threads: str, ratio: dict[str, dict[str, float]]) -> list[str]:
    wall, cpu = ratio["wall"], ratio["cpu"]
    ranges = [f"{wall[low]:.2f}–{wall[high]:.2f}" for low, high in (("low", "high"), ("min", "max"))]
    sign, target = TARGETS.get(name, ("", 0.0))
    budget = f"{sign} {target:g}" if sign else ""
    return [
        name,
        threads.split()[0],
        f"{wall['median']:.3f}",
        *ranges,
        f"{wall['fastest']:.3f}",
        f"{cpu['median']:.3f}",
        budget,
    ]


if __name__ == "__main__":
    typer.run(main)
