"""`python -m benchmarks`: run them, print a table, write one JSON file."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.timing import QUICK, Plan
from grpo_lab.runs import environment


class Name(StrEnum):
    """The benchmarks; each is a module of this name with a function `measure`."""

    against_trl = "against_trl"
    defaults = "defaults"
    guards = "guards"
    prompt_passes = "prompt_passes"
    pretrained = "pretrained"
    live_panel = "live_panel"
    memory = "memory"
    cost = "cost"


PLANS = {
    Name.against_trl: Plan(blocks=30, steps=3, warm_up=10),
    Name.defaults: Plan(blocks=30, steps=3, warm_up=10),
    Name.guards: Plan(blocks=30, steps=3, warm_up=5),
    Name.prompt_passes: Plan(blocks=20, steps=3, warm_up=5),
    Name.pretrained: Plan(blocks=10, steps=1, warm_up=2),
    Name.live_panel: Plan(blocks=10, steps=5),
    Name.memory: Plan(),
    Name.cost: Plan(blocks=7, steps=1, warm_up=1),
}
THREADS = {Name.defaults: [0], Name.memory: [1], Name.cost: [1]}
"""The threads of benchmarks that are measured once; 0 for torch's own choice."""
TARGETS = {
    "TRL / ours": (">=", 2.5, "1"),
    "defaults: TRL / ours": (">=", 2.0, ""),
    "guards stable / none": ("<=", 1.01, ""),
    "guards everyone / none": ("<=", 1.05, ""),
    "recorder on / off": ("<=", 1.02, ""),
    "token notes and histograms on / off": ("<=", 1.02, ""),
    "135M: TRL / ours": (">=", 2.5, ""),
    "135M: guards stable / none": ("<=", 1.01, ""),
    "panel live / headless, step": ("<=", 1.03, ""),
    "memory: (peak - chunk) / weights and moments": ("<=", 1.3, ""),
    "memory: peak ours / TRL": ("<=", 0.5, ""),
}
"""Upper limits (lower for TRL) of the median, and the number of threads that a limit is for; empty for each."""


def main(
    quick: Annotated[
        bool, typer.Option(help="A few steps, to test that everything runs; the figures mean nothing.")
    ] = False,
    only: Annotated[list[Name] | None, typer.Option(help="One benchmark; may be given again.")] = None,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")] = Path("benchmarks/results"),
    threads: Annotated[list[int] | None, typer.Option(help="CPU threads; may be given again. 1 and 2 if not.")] = None,
) -> None:
    """Measure, print a table, and write cpu.json.

    A partial run writes cpu-partial.json, where the results of other benchmarks stay; a quick one cpu-quick.json. The
    file is written after each benchmark, and after each point of a long one, so that an interruption loses no result.
    """
    console = Console(width=None if sys.stdout.isatty() else 120)  # a log has no width of its own
    partial = bool(only) or bool(threads)
    path = out / ("cpu-quick.json" if quick else "cpu-partial.json" if partial else "cpu.json")
    results = json.loads(path.read_text(encoding="utf-8"))["results"] if partial and path.exists() else {}
    chosen = only or list(Name)
    # Import only the chosen ones, and all of them before any runs: a missing package is reported at once.
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in chosen}
    for name, module in modules.items():
        for count in threads or THREADS.get(name, [1, 2]):
            label = f"{count} threads" if count else "default threads"
            console.print(f"{name}, {label} …", style="dim")
            found = module.measure(count, QUICK if quick else PLANS[name])
            for state in found if isinstance(found, Iterator) else [found]:
                results.setdefault(name, {})[label] = state
                write(path, results)
            if "skipped" in state:
                console.print(f"{name}: skipped, {state['skipped']}")
    console.print(table(results))
    console.print(f"written to {path}", style="dim")


def write(path: Path, results: dict[str, Any]) -> None:
    """Replace the file of the results at once, so that an interruption leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({**about(), "results": results}, indent=2) + "\n", encoding="utf-8")
    new.replace(path)


def about() -> dict[str, Any]:
    """Date, command and environment of a measurement."""
    described = environment.describe()
    with suppress(importlib.metadata.PackageNotFoundError):  # only `against_trl` needs it
        described["packages"]["trl"] = importlib.metadata.version("trl")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "not set"),
        "load average at the end": [round(load, 2) for load in os.getloadavg()],
        "environment": {key: value for key, value in described.items() if key != "threads"},
    }


def table(results: dict[str, dict[str, Any]]) -> Table:
    """A table with one row for each ratio and number of threads."""
    shown = Table("ratio", "threads", "median", "quartiles", "range", "fastest", "processor", "budget")
    for by_threads in results.values():
        for threads, found in by_threads.items():
            for name, ratio in found.items():
                sign, target, where = TARGETS.get(name, ("", 0.0, ""))
                budget = f"{sign} {target:g}" if sign and where in ("", threads.split()[0]) else ""
                if isinstance(ratio, dict) and "wall" in ratio:
                    shown.add_row(name, threads.split()[0], *_cells(ratio), budget)
                elif isinstance(ratio, float):
                    shown.add_row(name, threads.split()[0], f"{ratio:.3f}", "", "", "", "", budget)
    return shown


def _cells(ratio: dict[str, dict[str, float]]) -> list[str]:
    wall, cpu = ratio["wall"], ratio["cpu"]
    ranges = [f"{wall[low]:.2f}–{wall[high]:.2f}" for low, high in (("low", "high"), ("min", "max"))]
    return [f"{wall['median']:.3f}", *ranges, f"{wall['fastest']:.3f}", f"{cpu['median']:.3f}"]


if __name__ == "__main__":
    typer.run(main)
