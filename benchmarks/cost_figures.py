"""`python -m benchmarks.cost_figures`: draw the result of the benchmark `cost`, one figure for each axis."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from grpo_lab.ui.plots import style

FILES = {"G": "cost-group", "completion length": "cost-length", "parameters": "cost-parameters"}
AXES = {
    "G": "completions in a group (G)",
    "completion length": "tokens of a completion",
    "parameters": "parameters of the model",
}
CONTENDERS = {"ours": "ours", "TRL": "trl"}
"""The contenders, and their names in the step times."""
CLOSE = 1.5
"""Two places with a smaller ratio have their labels below each other."""
Row = list[dict[str, Any]]


def main(
    result: Annotated[Path, typer.Argument(help="The result of the benchmark.")] = Path("benchmarks/results/cpu.json"),
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("docs/figures"),
) -> None:
    """Draw time and peak memory against group size, completion length and parameters."""
    by_threads = json.loads(result.read_text(encoding="utf-8"))["results"]["cost"]
    threads, found = next(iter(by_threads.items()))
    out.mkdir(parents=True, exist_ok=True)
    for axis, row in found.items():
        path = out / f"{FILES[axis]}.png"
        figure(axis, row, threads).savefig(path)
        print(path)


def figure(axis: str, row: Row, threads: str) -> Figure:
    """Time and peak memory of a step against one axis, both with logarithmic axes."""
    drawn = style.new_figure(4.6)
    names = [name for name in CONTENDERS if any(_time(point, name) for point in row)]
    count = threads.replace("1 threads", "1 thread")
    style.write(drawn, 0.3, f"A step of GRPO on {count} against the {AXES[axis]}", fontsize=style.LARGE, weight="bold")
    style.name_runs(drawn, names, 0.06, 0.5, ncols=2)
    left, right = drawn.subplots(1, 2, gridspec_kw={"left": 0.06, "right": 0.985, "top": 0.8, "bottom": 0.13})
    _panel(left, axis, row, names, _time, "time of a step, ms")
    _panel(right, axis, row, names, _memory, "peak memory above the imports, MiB")
    return drawn


def _panel(axes: Axes, axis: str, row: Row, names: list[str], value: Any, label: str) -> None:
    for name, look in zip(names, style.looks(names), strict=True):
        places = [(point[axis], value(point, name)) for point in row if value(point, name)]
        axes.plot(*zip(*places, strict=True), color=look.colour, ls=look.line, marker=look.marker, lw=2)
    axes.set_xscale("log", base=10 if axis == "parameters" else 2)
    axes.set_yscale("log")
    at = [point[axis] for point in row]
    labels = [str(point["model"] if axis == "parameters" else point[axis]) for point in row]
    close = [False, *(place < CLOSE * before for before, place in pairwise(at))]
    axes.set_xticks(at, ["\n" * lower + label for lower, label in zip(close, labels, strict=True)])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(AXES[axis])
    axes.set_title(label, fontsize=style.NORMAL, loc="left")
    axes.grid(which="both", alpha=0.25)


def _time(point: dict[str, Any], name: str) -> float:
    return point["step ms"].get(CONTENDERS[name], {}).get("wall", 0.0)


def _memory(point: dict[str, Any], name: str) -> int:
    return point["MiB"].get(name, {}).get("above imports", 0)


if __name__ == "__main__":
    typer.run(main)
