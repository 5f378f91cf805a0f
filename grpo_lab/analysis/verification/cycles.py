"""One cycle of a trainer, watched from outside: what it sampled, its gradients, its optimizer steps, its weights."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from grpo_lab.errors import ConfigError


class Trainer(Protocol):
    """A fresh trainer with a fixed seed, with or without the optional attributes that docs/verify.md lists."""

    model: Any
    """The policy, called as transformers' models are: `model(input_ids=, attention_mask=, position_ids=).logits`."""

    def step(self, reward: Callable[..., list[float | None]], micro_batches: int) -> Any:
        """Run one cycle (sample, score, update) and return its tensors, or a list of them for several objectives.

        Needed: `prompt_ids` and `prompt_mask` (B, S), padded on the left, and `completions` (B, T). Optional:
        `logprobs` (B, T), the sampler's own; `temperature`; `log_ratio`, `ref_logprobs` (B, T); `advantages` (B,);
        `objective`, its name; `weights` (B, T) of the tokens in the loss; `beta`.
        """
        ...


@dataclass
class Cycle:
    """What a trainer did in one cycle."""

    number: int = 1
    """Its place among the cycles of its trainer."""
    objectives: list[Mapping[str, Any]] = field(default_factory=list)
    """The tensors that it returned, of each objective."""
    model: Any = None
    """A copy of the policy before the first update, in fp32."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Gradients at the first optimizer step."""
    rate: float = 0.0
    """Learning rate of the optimizer steps, added up."""
    optimizer_steps: int = 0
    adam: bool = False
    """Whether the optimizer is one of Adam's family, which moves a weight by about its rate."""
    largest_move: float = 0.0
    """Largest change of one weight in the cycle; NaN if a weight is not finite."""
    rounding: float = 0.0
    """Distance of the largest weight to the next number of its dtype."""

    @property
    def gradient(self) -> Tensor:
        """(n,) All gradients of the first optimizer step."""
        parts = [gradient.flatten().float() for gradient in self.gradients.values()]
        return torch.cat(parts) if parts else torch.zeros(1)


def run(trainer: Trainer, reward: Callable[..., list[float | None]], micro_batches: int = 1, number: int = 1) -> Cycle:
    """Run one cycle of a trainer and watch its optimizer. Raises ConfigError where it returns too little."""
    cycle, before = Cycle(number), []

    def look(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        cycle.optimizer_steps += 1
        cycle.rate += max(group["lr"] for group in optimizer.param_groups)
        if cycle.model is None:
            cycle.adam = "adam" in type(optimizer).__name__.lower()
            before.extend((p, p.detach().clone()) for group in optimizer.param_groups for p in group["params"])
            named = dict(trainer.model.named_parameters())
            cycle.gradients = {name: p.grad.detach().clone() for name, p in named.items() if p.grad is not None}
            cycle.model = copy.deepcopy(trainer.model).float().eval()

    hook = register_optimizer_step_pre_hook(look)
    try:
        found = trainer.step(reward, micro_batches)
    finally:
        hook.remove()
    cycle.objectives = [found] if isinstance(found, Mapping) else list(found or [{}])
    for name in ("prompt_ids", "prompt_mask", "completions"):
        if any(rows.get(name) is None for rows in cycle.objectives):
            raise ConfigError(f"the adapter's step returned no `{name}`; docs/verify.md shows an adapter")
    cycle.model = cycle.model or copy.deepcopy(trainer.model).float().eval()
    for parameter, old in before:
        move = (parameter.detach() - old).abs().max().float()
        cycle.largest_move = float(torch.maximum(torch.tensor(cycle.largest_move), move.cpu()))  # NaN stays
        cycle.rounding = max(cycle.rounding, torch.finfo(old.dtype).eps * float(old.abs().max()))
    return cycle


def varied(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """Rewards that depend on the text alone, so that a repeated cycle receives the same ones."""
    pairs = zip(prompts, completions, strict=True)
    return [zlib.crc32(f"{prompt}{completion}".encode()) % 101 / 100 for prompt, completion in pairs]


def equal(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """The same reward for each completion."""
    return [0.7] * len(completions)


def every_other(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """The same reward for every other completion; None, unscorable, for the rest."""
    return [None if place % 2 else 0.7 for place in range(len(completions))]
