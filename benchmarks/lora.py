"""`python -m benchmarks.lora`: LoRA against training all weights, in peak memory and time of a step.

Writes results/lora.json. `python -m benchmarks.runs lora` compares the held-out rewards.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import memory, shapes
from benchmarks.__main__ import write
from benchmarks.timing import Plan, Run, compare, settle, take_turns, use_threads
from grpo_lab.config.schema import Config

RANKS: Mapping[str, tuple[str, ...]] = {"full": (), "r = 8": ("lora.r=8",), "r = 16": ("lora.r=16",)}
SHAPES = ("0.8M", "135M")
WORK = ("data.num_prompts=4", "data.num_generations=4", "sampling.max_completion_length=32")


def main(
    out: Annotated[Path, typer.Option(help="The result file.")] = Path("benchmarks/results/lora.json"),
) -> None:
    """Measure all parts, and write the file after each result; other parts in it stay."""
    use_threads(1)
    parts: dict[str, Iterator[dict[str, Any]]] = {f"memory, {shape}": peaks(shape) for shape in SHAPES}
    parts |= {"step time": times(Plan(blocks=12, steps=3))}
    for name, part in parts.items():
        for state in part:
            found = json.loads(out.read_text(encoding="utf-8"))["results"] if out.exists() else {}
            write(out, {**found, name: state})
            print(name, json.dumps(state), flush=True)


def peaks(shape: str) -> Iterator[dict[str, Any]]:
    """MiB at the peak of a few steps above those of a process that has imported, for each rank; and trained weights."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        config = shapes.work(shapes.save(shape, Path(folder)), *WORK)
        for name, settings in RANKS.items():
            seen = memory.peak("ours", config.with_(*settings), 1)
            found[name] = {"trained weights": seen["parameters"], "MiB above imports": seen["above imports"]}
            yield found


def times(plan: Plan) -> Iterator[dict[str, Any]]:
    """Time of a step with adapters over that of a full one, on the tiny model."""
    blocks = take_turns({name: Run(_long(plan, settings)).advance for name, settings in RANKS.items()}, plan)
    yield {f"{name} / full": compare(blocks[name], blocks["full"]) for name in RANKS if name != "full"}


def _long(plan: Plan, settings: tuple[str, ...]) -> Config:
    return settle().with_(f"run.num_steps={plan.total}", *settings)


if __name__ == "__main__":
    typer.run(main)
