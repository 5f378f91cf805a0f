"""`python -m benchmarks.judge`: the time that a step waits for a judge of 0.5 s, by the number of workers.

The judge is a function that sleeps. A step has 32 completions, so that n workers need 32 / n rounds of 0.5 s at least.
Writes results/judge.json.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.__main__ import write
from benchmarks.timing import Run
from grpo_lab.analysis.markdown import number
from grpo_lab.config.catalog import preset
from grpo_lab.ui import console

SECONDS = 0.5
WORKERS = (1, 4, 8, 16, 32)
CALLS = 32


def sleeps(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """A judge that takes 0.5 s for each call."""
    time.sleep(SECONDS)
    return [float(len(completion)) for completion in completions]


def measured(workers: int, steps: int) -> dict[str, float]:
    """Median seconds of a step, those that it waited for the judge, and the least possible."""
    settings = ("run.device=cpu", "run.threads=1", "data.num_prompts=4", f"run.num_steps={steps + 1}")
    config = preset("plain").with_(*settings, f"judge.workers={workers}", "judge.retries=0")
    run = Run(config, rewards=[sleeps])
    run.advance(1)  # the first one is slower
    run.advance(steps)
    kept = run.steps[1:]
    assert all(step.metrics["judge/failed"] == 0 for step in kept)
    found = {
        "step": statistics.median(step.metrics["step_time"] for step in kept),
        "waited": statistics.median(step.metrics["judge/time"] for step in kept),
        "least": -(-CALLS // workers) * SECONDS,
    }
    return {name: round(value, 3) for name, value in found.items()}


def main(
    steps: Annotated[int, typer.Option(min=1, help="Measured steps for each number of workers.")] = 3,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("benchmarks/results/judge.json"),
) -> None:
    """Measure, print a table, and write one JSON file."""
    found = {str(workers): measured(workers, steps) for workers in WORKERS}
    ratio = round(found["4"]["step"] / found["8"]["step"], 3)
    write(out, {**found, "step, 4 / 8 workers": ratio})
    rows = [[workers, *map(number, seconds.values())] for workers, seconds in found.items()]
    console.out.print(console.table([["workers", "step, s", "waited, s", "least possible, s"], *rows]))
    console.out.print(f"step, 4 / 8 workers: {ratio}")


if __name__ == "__main__":
    typer.run(main)
