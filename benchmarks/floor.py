"""The least time that a step can take on this CPU, and the share of it in the time that a step takes.

Two rates are measured: reading memory, with a buffer as large as the model's weights, because small models stay in the
cache; and fp32 matrix products of 1024 x 1024 x 1024. A decoded position reads every weight once and multiplies each
weight with every row that is still alive; it takes at least the longer of both. The reference needs a forward pass over
each prompt once and over each completion, the policy a forward and a backward pass, which are two and six FLOPs a
weight and token, attention left out. AdamW reads weight, gradient and two moments, and writes three of them.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import shapes
from benchmarks.timing import QUICK, Plan, Run, milliseconds, settle, take_turns, use_threads
from grpo_lab.config.schema import Config
from grpo_lab.models import loading
from grpo_lab.tasks import tasks

SIDE = 1024
ADAMW_BYTES = 7 * 4
REPEATS = 7
LARGE_WORK = ("data.num_prompts=4", "data.num_generations=4", "sampling.max_completion_length=12")


def measure(threads: int, plan: Plan) -> Iterator[dict[str, Any]]:
    """The floor of a step of `tiny` and of a model with the shape of SmolLM2-135M, and the share that is reached."""
    use_threads(threads)
    gemm = gemm_rate()
    found: dict[str, Any] = {"GEMM GFLOP/s": round(gemm / 1e9, 1)}
    with tempfile.TemporaryDirectory() as folder:
        for name, config, some in _works(plan, Path(folder)):
            found[name] = of(config, some, gemm)
            found[f"{name}: floor / step"] = found[name]["floor / step"]
            yield found


def _works(plan: Plan, folder: Path) -> Iterator[tuple[str, Config, Plan]]:
    """The name, the config and the plan of each work."""
    yield "tiny", settle(), plan
    if plan != QUICK:
        yield "135M", shapes.work(shapes.save("135M", folder), *LARGE_WORK), plan.of_large_steps()


def of(config: Config, plan: Plan, gemm: float) -> dict[str, Any]:
    """The floor of a step of this work in its parts, the measured time, and their ratio."""
    run = Run(config.with_(f"run.num_steps={plan.total}"))
    parameters = run.load()
    blocks = take_turns({"ours": run.advance}, plan)["ours"]
    rows = config.data.num_prompts * config.data.num_generations
    tokens = rows * run.mean("completions/mean_length", plan.warm_up)
    # The longest completion of most steps is cut off, so that every position is decoded.
    positions, prompt_tokens = config.sampling.max_completion_length, _prompt_tokens(config, plan.total)
    bandwidth = read_rate(4 * parameters)
    parts = floor(parameters, prompt_tokens, tokens, positions, bool(config.loss.beta), bandwidth, gemm)
    step, least = milliseconds(blocks), sum(parts.values())
    return {
        "parameters": parameters,
        "tokens a step": {"prompts, each once": round(prompt_tokens, 1), "completions": round(tokens, 1)},
        "reading, GB/s": round(bandwidth / 1e9, 1),
        "floor ms": {name: round(1000 * part, 3) for name, part in parts.items()} | {"sum": round(1000 * least, 3)},
        "step ms": step,
        "floor / step": round(1000 * least / step["wall"], 3),
    }


def floor(
    parameters: int, prompts: float, tokens: float, positions: int, reference: bool, bandwidth: float, gemm: float
) -> dict[str, float]:
    """Seconds of each part: `prompts` and `tokens` are tokens of a step, `positions` those decoded one by one."""
    product = 2 * parameters / gemm
    reading = positions * 4 * parameters / bandwidth
    return {
        "sampling": max(reading, product * tokens) + product * prompts,
        "reference pass": product * (prompts + tokens) * reference,
        "policy pass, forward and backward": 3 * product * (prompts + tokens),
        "AdamW": ADAMW_BYTES * parameters / bandwidth,
    }


def gemm_rate() -> float:
    """FLOPs a second of an fp32 matrix product that fits the cache."""
    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    return 2 * SIDE**3 / _fastest(lambda: left @ right)


def read_rate(size: int) -> float:
    """Bytes a second at which a buffer of this size is read again and again."""
    buffer = torch.ones(size // 4)
    again = max(1, math.ceil(2**26 / size))
    return size * again / _fastest(lambda: [buffer.sum() for _ in range(again)])


def _fastest(work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _prompt_tokens(config: Config, steps: int) -> float:
    """Mean tokens of a step's prompts, without padding."""
    _, tokenizer = loading.load(config.model.name)
    task, data = tasks.load(config.data.tasks), config.data
    batches = [task.batch(config.run.seed, step, data.num_prompts) for step in range(steps)]
    return statistics.fmean(sum(len(tokenizer(row.prompt)["input_ids"]) for row in batch) for batch in batches)
