"""`python -m benchmarks.pairs WHAT`: how much longer, or shorter, the same run takes with something than without it.

    checkpoints  a checkpoint every quarter of a minute, forty times as many as by default
    processes    two processes with a thread each against one, on a large batch; and two runs that share nothing,
                 side by side, which is the most that a machine can give
    trackers     TensorBoard that follows the run

Runs of the preset `stable` in pairs; which of a pair comes first alternates. Writes results/pairs_WHAT.{json,md}.
"""

from __future__ import annotations

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from grpo_lab.config.catalog import preset
from grpo_lab.runs import environment
from grpo_lab.runs.session import Session
from grpo_lab.ui import console, trackers

What = Literal["checkpoints", "processes", "trackers"]
STEPS = {"checkpoints": 400, "processes": 25, "trackers": 150}
"""Steps of each run."""
BATCH = ("data.num_prompts=64", "data.num_generations=16")
"""Of `processes`; a smaller batch takes about as long as half of it on a CPU."""
SETTLED = 5
"""First steps of `processes` that are not counted."""


def main(
    what: Annotated[What, typer.Argument(help="What is measured.")],
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs.")] = 5,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")] = Path("benchmarks/results"),
) -> None:
    """Measure and write both files."""
    ratios: dict[str, list[float]] = {"with / without": []}
    with console.progress() as bars, TemporaryDirectory() as scratch:
        task = bars.add_task("pairs", total=pairs, note="")
        for number in range(pairs):
            folder = Path(scratch) / str(number)
            order = (True, False) if number % 2 else (False, True)
            took = {with_it: seconds(what, with_it, folder / str(with_it), number) for with_it in order}
            ratios["with / without"].append(round(took[True] / took[False], 4))
            if what == "processes":
                both = apart(folder) / took[False]
                ratios.setdefault("two runs apart / one", []).append(round(both, 4))
            bars.update(task, advance=1, note=f"{ratios['with / without'][-1]:.3f}")
    here = environment.describe(threads=1)
    text = f"# {what.capitalize()}\n\nMade by `python -m benchmarks.pairs {what}`, torch {here['packages']['torch']}.\n"
    for name, each in ratios.items():
        median, least, most = statistics.median(each), min(each), max(each)
        text += f"\nTime of {STEPS[what]} steps, {name}: {median:.3f}, the median of {pairs} pairs, "
        text += f"from {least:.3f} to {most:.3f}.\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"pairs_{what}.json").write_text(
        json.dumps({"environment": here, **ratios}, indent=1) + "\n", encoding="utf-8"
    )
    (out / f"pairs_{what}.md").write_text(text, encoding="utf-8")
    print(text)


def run(what: What, with_it: bool, folder: Path, seed: int, child: bool = False) -> Session:
    """A finished run with what is measured, or without it."""
    settings = ["run.device=cpu", "run.threads=1", f"run.seed={seed}", f"run.num_steps={STEPS[what]}"]
    minutes = 0.25 if what == "checkpoints" and with_it else "none"
    settings += [f"run.checkpoint_minutes={minutes}"]
    if what == "processes":
        settings += [*BATCH, f"run.processes={2 if with_it else 1}"]
    session = Session(preset("stable").with_(*settings), folder, child=child)
    if what == "trackers" and with_it:
        session.views += trackers.views("tensorboard", session)
    return session.run(check=True)


def seconds(what: What, with_it: bool, folder: Path, seed: int) -> float:
    """The time of the run; of `processes`, of its middle step."""
    begun = time.perf_counter()
    session = run(what, with_it, folder, seed)
    whole = time.perf_counter() - begun
    steps: Any = session.records["step_time"]
    return statistics.median(steps.iloc[SETTLED:]) if what == "processes" else whole


def apart(folder: Path) -> float:
    """The middle step of two runs of one process each that go on side by side."""
    with ThreadPoolExecutor(2) as threads:
        names = ("a", "b")
        sessions = threads.map(lambda name: run("processes", False, folder / name, 0, child=True), names)
        steps: list[Any] = [session.records["step_time"] for session in sessions]
    return statistics.fmean(statistics.median(each.iloc[SETTLED:]) for each in steps)


if __name__ == "__main__":
    typer.run(main)
