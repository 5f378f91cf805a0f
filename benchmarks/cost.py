"""Time and peak memory of a step against the size of a group, the length of completions and the number of parameters.

Weights are random and completions have the full length (see `shapes`). TRL and our trainer take turns for the time;
for the memory each has a process of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import against_trl, shapes
from benchmarks.memory import peak
from benchmarks.timing import QUICK, Plan, Run, milliseconds, take_turns, use_threads
from grpo_lab.config.schema import Config

PATIENCE = 25.0
"""Seconds of a step of ours above which TRL is left out."""
LARGE = ("124M", "135M")
SHAPE = "0.8M"
BATCH = ("data.num_prompts=2", "data.num_generations=8", "sampling.max_completion_length=32")
SMALL_BATCH = ("data.num_prompts=2", "data.num_generations=4", "sampling.max_completion_length=16")
Point = tuple[int, str, tuple[str, ...]]
"""A place on the axis, the shape of the model, and the settings."""


def points(quick: bool) -> dict[str, list[Point]]:
    """The points of each axis."""
    groups, lengths = ((4, 8), (8, 16)) if quick else ((4, 8, 16, 32, 64), (8, 16, 32, 64, 128, 256, 512))
    sizes = ("0.8M",) if quick else ("0.8M", "10M", "124M", "135M")
    return {
        "G": [(size, SHAPE, (*BATCH, f"data.num_generations={size}")) for size in groups],
        "completion length": [(size, SHAPE, (*BATCH, f"sampling.max_completion_length={size}")) for size in lengths],
        "parameters": [(shapes.parameters(shape), shape, SMALL_BATCH) for shape in sizes],
    }


def measure(threads: int, plan: Plan) -> Iterator[dict[str, Any]]:
    """The points so far, after each one."""
    use_threads(threads)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for axis, row in points(quick=plan == QUICK).items():
            for place, shape, settings in row:
                begun = time.perf_counter()
                config = shapes.work(shapes.save(shape, Path(folder)), *settings)
                point = one(config, plan.of_large_steps() if shape in LARGE else plan, threads)
                found.setdefault(axis, []).append({axis: place, "model": shape, **point})
                print(f"  {axis} {place:,}: {time.perf_counter() - begun:.0f} s", flush=True)
                yield found


def one(config: Config, plan: Plan, threads: int) -> dict[str, Any]:
    """Time and peak memory of both contenders on this work."""
    seconds = _try(config)
    if seconds > PATIENCE:
        skipped = f"TRL skipped: a step of ours takes {seconds:.0f} s, more than {PATIENCE:.0f} s"
        return {**_alone(config, plan), "MiB": {"ours": peak("ours", config, threads)}, "skipped": skipped}
    config = config.with_(f"run.num_steps={plan.total}")
    found = against_trl.race(config, {"ours": Run(config)}, plan)
    return {**found, "MiB": {name: peak(name, config, threads) for name in ("ours", "TRL")}}


def _try(config: Config) -> float:
    """Seconds of a second step of ours; the first one warms up."""
    run = Run(config.with_("run.num_steps=2"))
    run.advance(1)
    return run.advance(1).wall


def _alone(config: Config, plan: Plan) -> dict[str, Any]:
    short = plan.of_large_steps()
    run = Run(config.with_(f"run.num_steps={short.total}"))
    blocks = take_turns({"ours": run.advance}, short)
    return {"step ms": {name: milliseconds(row) for name, row in blocks.items()}}
