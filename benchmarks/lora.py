"""`python -m benchmarks.lora`: LoRA against training all weights, in peak memory, time of a step and held-out reward.

Writes results/lora.json.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import memory, shapes
from benchmarks.__main__ import write
from benchmarks.timing import Plan, Run, compare, settle, take_turns, use_threads
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.events import Evaluated
from grpo_lab.training.trainer import train

RANKS: Mapping[str, tuple[str, ...]] = {"full": (), "r = 8": ("lora.r=8",), "r = 16": ("lora.r=16",)}
NORMS = ("lora.r=8", "lora.alpha=32", "lora.modules_to_save=ln_1,ln_2,ln_f")
REWARDS: Mapping[str, tuple[str, ...]] = {
    "full": ("optimizer.learning_rate=3e-4",),
    "r = 8": (*RANKS["r = 8"], "optimizer.learning_rate=4e-3"),
    "r = 16": (*RANKS["r = 16"], "optimizer.learning_rate=4e-3"),
    "r = 8, alpha = 32": (*NORMS[:2], "optimizer.learning_rate=4e-3"),
    "r = 8, alpha = 32, norms": (*NORMS, "optimizer.learning_rate=4e-3"),
}
"""Of the comparison of rewards. Rates: that of `plain`, and the best of 1e-3, 2e-3 and 4e-3 at r = 8, seed 0."""
DUAL: Mapping[str, tuple[str, ...]] = {
    "full": (),
    "r = 8, alpha = 32, norms": (*NORMS, "sft.learning_rate=4e-4", "optimizer.learning_rate=2e-4"),
}
"""Of the comparison on the preset `dual`."""
SHAPES = ("0.8M", "135M")
WORK = ("data.num_prompts=4", "data.num_generations=4", "sampling.max_completion_length=32")
LEARN = ("run.num_eval=500", "run.threads=1", "run.device=cpu", "optimizer.schedule=cosine")


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="One part, by the start of its name; may be given again.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each run that is compared by its reward.")] = 200,
    seeds: Annotated[int, typer.Option(help="Runs of each.")] = 3,
    out: Annotated[Path, typer.Option(help="The result file.")] = Path("benchmarks/results/lora.json"),
) -> None:
    """Measure all parts or some, and write the file after each result; other parts in it stay."""
    use_threads(1)
    parts: dict[str, Iterator[dict[str, Any]]] = {f"memory, {shape}": peaks(shape) for shape in SHAPES}
    parts |= {"step time": times(Plan(blocks=12, steps=3))}
    work = preset("plain").with_(*LEARN, f"run.num_steps={steps}")
    parts |= {f"reward, {name}": rewards(work.with_(*changes), seeds) for name, changes in REWARDS.items()}
    both = preset("dual").with_("run.num_eval=400", *LEARN[1:3])
    parts |= {f"dual, {name}": rewards(both.with_(*changes), seeds) for name, changes in DUAL.items()}
    for name, part in parts.items():
        if not only or name.startswith(tuple(only)):
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


def rewards(config: Config, seeds: int) -> Iterator[dict[str, Any]]:
    """Held-out rewards at the start and after each stage, by objective and seed, and the means at the end."""
    found: dict[str, list[list[float]]] = {}
    for seed in range(seeds):
        events = train(config.with_(f"run.seed={seed}"))
        held_out = [event.objectives or {"reward": event.reward} for event in events if isinstance(event, Evaluated)]
        for name in held_out[0]:
            found.setdefault(name, []).append([stage[name] for stage in held_out])
        means = {name: round(statistics.fmean(run[-1] for run in runs), 4) for name, runs in found.items()}
        given = {"steps": config.run.num_steps, "rate": config.optimizer.learning_rate}
        yield {**given, "held out": found, "mean at the end": means}


if __name__ == "__main__":
    typer.run(main)
