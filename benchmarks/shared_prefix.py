"""The gain from running each prompt once per group in the reference and policy passes: step time plain over shared."""

from __future__ import annotations

from typing import Any

from benchmarks.timing import Plan, Run, compare, milliseconds, settle, take_turns, use_threads


def measure(threads: int, plan: Plan) -> dict[str, Any]:
    """Step times with `model.prompt_pass` plain and shared; sampling shares the prompt in both."""
    use_threads(threads)
    config = settle().with_(f"run.num_steps={plan.total}")
    runs = {name: Run(config.with_(f"model.prompt_pass={name}")) for name in ("plain", "shared")}
    blocks = take_turns({name: run.advance for name, run in runs.items()}, plan)
    return {
        "prompt pass plain / shared": compare(blocks["plain"], blocks["shared"]),
        "step ms": {name: milliseconds(row) for name, row in blocks.items()},
        "mean length": {name: round(run.mean("completions/mean_length"), 3) for name, run in runs.items()},
    }
