"""`python -m benchmarks.trackers`: the cost of a tracker that follows a run, as a ratio of times of the same run."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from grpo_lab.config.catalog import preset
from grpo_lab.runs import environment
from grpo_lab.runs.session import Session
from grpo_lab.ui import console, trackers


def main(
    tracker: Annotated[str, typer.Option(help="The tracker that follows.")] = "tensorboard",
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs whose times are compared.")] = 7,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each run.")] = 150,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")] = Path("benchmarks/results"),
) -> None:
    """Measure and write trackers.{json,md}."""
    trackers.check([tracker])
    ratios = []
    with console.progress() as bars, TemporaryDirectory() as folder:
        task = bars.add_task("pairs", total=pairs, note="")
        for number in range(pairs):
            took = {}
            for name in (tracker, "") if number % 2 else ("", tracker):
                took[name] = seconds(Path(folder) / f"{number}-{name}", name, number, steps)
            ratios.append(round(took[tracker] / took[""], 4))
            bars.update(task, advance=1, note=f"{ratios[-1]:.3f}")
    tree = {"environment": environment.describe(threads=1), "tracker": tracker, "ratios": ratios}
    out.mkdir(parents=True, exist_ok=True)
    (out / "trackers.json").write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    median, least, most = statistics.median(ratios), min(ratios), max(ratios)
    text = f"""# Trackers

Made by `python -m benchmarks.trackers`. The {steps} steps of a run of the preset `stable`, followed by {tracker}, took
{median:.3f} times as long as without: the median of {pairs} pairs, from {least:.3f} to {most:.3f}.
"""
    (out / "trackers.md").write_text(text, encoding="utf-8")
    print(text)


def seconds(folder: Path, tracker: str, seed: int, steps: int) -> float:
    """Seconds of all steps of a run, in which the tracker's thread works too."""
    config = preset("stable").with_("run.device=cpu", "run.threads=1", f"run.seed={seed}", f"run.num_steps={steps}")
    session = Session(config.with_("run.checkpoint_minutes=none"), folder, child=False)
    session.views += trackers.views(tracker, session)
    return float(session.run(check=True).records["step_time"].sum())


if __name__ == "__main__":
    typer.run(main)
