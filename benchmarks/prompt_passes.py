"""Step time with three ways to compute the logits of completions, in the reference and policy passes.

`shared` is the package's own way, completions packed behind their prompt. `plain` repeats the prompt for each of them.
`cached prefix` was the package's way before: a pass over the prompts, whose cache is expanded, then over completions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks import shapes
from benchmarks.timing import (
    PRETRAINED,
    QUICK,
    Block,
    Plan,
    Run,
    compare,
    milliseconds,
    settle,
    take_turns,
    use_threads,
)
from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.logprobs import Head
from grpo_lab.models.registry import MODELS
from grpo_lab.training.passes import PASSES

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
    runs["cached prefix"] = CachedPrefix(config.with_("model.prompt_pass=shared"))
    blocks = take_turns({name: run.advance for name, run in runs.items()}, plan)
    return {
        "prompt pass plain / shared": compare(blocks["plain"], blocks["shared"]),
        "prompt pass cached prefix / shared": compare(blocks["cached prefix"], blocks["shared"]),
        "step ms": {name: milliseconds(row) for name, row in blocks.items()},
        "mean length": {name: round(run.mean("completions/mean_length"), 3) for name, run in runs.items()},
    }


class CachedPrefix(Run):
    """A run that computes logits through an expanded cache while it advances."""

    def advance(self, steps: int) -> Block:
        with mock.patch.dict(PASSES, {"shared": cached_prefix_pass}):
            return super().advance(steps)


def cached_prefix_pass(model: Any, batch: Batch) -> tuple[Tensor, Head]:
    """Logits (B, T, V) of the completions, and nothing to make of them, in the form of the package's passes."""
    return cached_prefix_logits(model, batch), lambda logits: logits


def cached_prefix_logits(model: Any, batch: Batch) -> Tensor:
    """Logits (B, T, V) of the completions; each prompt is run once and autograd flows through its expanded cache."""
    prompts = model(
        input_ids=batch.prompt_ids,
        attention_mask=batch.prompt_mask,
        position_ids=(batch.prompt_mask.cumsum(dim=1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
    )
    cache, first = prompts.past_key_values, prompts.logits[batch.group]
    cache.batch_select_indices(batch.group)
    tokens, prompt_mask = batch.completions[:, :-1], batch.prompt_mask[batch.group]
    if not tokens.shape[1]:
        return first
    rest = model(
        input_ids=tokens,
        attention_mask=torch.cat([prompt_mask, prompt_mask.new_ones(tokens.shape)], dim=1),
        position_ids=prompt_mask.sum(dim=1, keepdim=True) + torch.arange(tokens.shape[1], device=tokens.device),
        past_key_values=cache,
        use_cache=True,
    )
    return torch.cat([first, rest.logits], dim=1)
