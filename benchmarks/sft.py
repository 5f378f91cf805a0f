"""`python -m benchmarks.sft`: is SFT before GRPO better than GRPO alone, from the same model?

The tiny model knows sums; the task is differences, whose sign `-` it has never seen in training. GRPO alone makes as
many steps as both stages together. Writes results/sft.md.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.analysis.markdown import number, table
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.events import Evaluated
from grpo_lab.runs import environment
from grpo_lab.runs.session import Session
from grpo_lab.tasks import tasks
from grpo_lab.ui import console

HELD_OUT = 500
SHOWN = 2000
"""Demonstrations, taken from the problems to train on."""


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each run.")] = 3,
    sft_steps: Annotated[int, typer.Option(min=1, help="Steps of SFT.")] = 200,
    grpo_steps: Annotated[int, typer.Option(min=1, help="Steps of GRPO after them.")] = 60,
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("benchmarks/results/sft.md"),
) -> None:
    """Train both ways on each seed, and write a table of held-out rewards."""
    alone, both = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        problems, shown = write_files(Path(scratch))
        given = (
            f"data.tasks={problems}",
            f"sft.data={shown}",
            "sft.learning_rate=1e-3",
            "sft.batch_size=64",
            f"sft.num_steps={sft_steps}",
        )
        for seed in range(seeds):
            config = preset("stable").with_(*given, f"run.seed={seed}", f"run.num_eval={HELD_OUT}", "run.device=cpu")
            alone[seed] = held_out(config.with_(f"run.num_steps={sft_steps + grpo_steps}"), Path(scratch, f"a{seed}"))
            stages = ("run.stages=sft,grpo", f"run.num_steps={grpo_steps}")
            both[seed] = held_out(config.with_(*stages), Path(scratch, f"b{seed}"))
            console.report(f"seed {seed}: GRPO alone {alone[seed]}, SFT then GRPO {both[seed]}")
    rows = [["seed", "start", f"GRPO alone, {sft_steps + grpo_steps} steps", "after SFT", "after SFT and GRPO"]]
    rows += [[str(seed), *map(number, (alone[seed][0], alone[seed][-1], *both[seed][1:]))] for seed in alone]
    columns = zip(*([alone[s][0], alone[s][-1], *both[s][1:]] for s in alone), strict=True)
    rows += [["mean", *(number(statistics.fmean(column)) for column in columns)]]
    command = f"python -m benchmarks.sft --seeds {seeds} --sft-steps {sft_steps} --grpo-steps {grpo_steps}"
    page = f"""# SFT before GRPO

Made by `{command}` on a CPU, torch {environment.describe(threads=1)["packages"]["torch"]}.
The tiny model, which knows sums, learns differences: share of right answers to {HELD_OUT} held-out problems, sampled
once each at temperature 1. SFT: {sft_steps} steps of 64 rows out of {SHOWN} demonstrations, learning rate 1e-3. GRPO:
the preset `stable`, {grpo_steps} steps after SFT; alone it makes the steps of both.

{table(rows, literal=True)}
"""
    out.write_text(page, encoding="utf-8")
    console.say(f"page: {out}")


def write_files(folder: Path) -> tuple[Path, Path]:
    """Write all differences that are not negative, and demonstrations that are no held-out problem."""
    problems, shown = folder / "differences.jsonl", folder / "shown.jsonl"
    pairs = [(a, b) for a in range(100) for b in range(a + 1)]
    problems.write_text(_lines({"prompt": f"{a}-{b}=", "answer": str(a - b)} for a, b in pairs), encoding="utf-8")
    chosen = tasks.drawn(tasks.from_jsonl(problems).train, seed=0, step=0, count=SHOWN)
    rows = ({"prompt": problem.prompt, "completion": problem.columns["answer"]} for problem in chosen)
    shown.write_text(_lines(rows), encoding="utf-8")
    return problems, shown


def _lines(rows: Iterable[dict[str, str]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def held_out(config: Config, folder: Path) -> list[float]:
    """The held-out rewards of a run: before it, and after each stage."""
    return [event.reward for event in Session(config, folder).run(check=True).events if isinstance(event, Evaluated)]


if __name__ == "__main__":
    typer.run(main)
