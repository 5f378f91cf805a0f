"""Step time with both ways to compute the logits of completions, in the reference and policy passes.

`shared` is the package's own way, completions packed behind their prompt. `plain` repeats the prompt for each of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import shapes
from benchmarks.timing import PRETRAINED, QUICK, Plan, Run, compare, milliseconds, settle, take_turns, use_threads
from grpo_lab.config.schema import Config
from grpo_lab.models.registry import MODELS

LONG = {
    "long prompts": ("data.tasks=reviews", "data.num_prompts=4", "data.num_generations=4"),
    "long completions": ("data.num_prompts=4", "sampling.max_completion_length=64"),
}
"""What changes in the work, on a model with the shape of `tiny` and more positions."""


def measure(threads: int, plan: Plan) -> Iterator[dict[str, Any]]:
    """Step times of each way, on short and on long prompts and completions; sampling is the same in all."""
    use_threads(threads)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, config, some in _works(plan, shapes.save("0.8M", Path(folder))):
            compared = _compare(config.with_(f"run.num_steps={some.total}"), some)
            found |= {f"{name}{key}": value for key, value in compared.items()}
            yield found


def _works(plan: Plan, model: Path) -> Iterator[tuple[str, Config, Plan]]:
    """The name, the config and the plan of each work; SmolLM2-135M where it is."""
    yield "", settle(), plan
    for name, settings in LONG.items():
        yield f"{name}: ", shapes.work(model, *settings), plan.of_large_steps()
    if plan != QUICK and MODELS["smollm2-135m"].present:
        yield "135M: ", settle(PRETRAINED), plan.of_large_steps()


def _compare(config: Config, plan: Plan) -> dict[str, Any]:
    runs = {name: Run(config.with_(f"model.prompt_pass={name}")) for name in ("plain", "shared")}
    blocks = take_turns({name: run.advance for name, run in runs.items()}, plan)
    return {
        "prompt pass plain / shared": compare(blocks["plain"], blocks["shared"]),
        "step ms": {name: milliseconds(row) for name, row in blocks.items()},
        "mean length": {name: round(run.mean("completions/mean_length"), 3) for name, run in runs.items()},
    }
