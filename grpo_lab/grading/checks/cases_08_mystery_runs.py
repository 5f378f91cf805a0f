"""What the repairs of lab 8 are asked: an objective, an accumulation and an update, each as it was meant to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab import kl, losses
from grpo_lab.grading.exercises import Case


class Batch(dict[str, Any]):
    """The inputs of `objective`: B completions of T tokens."""

    @staticmethod
    def draw(generator: torch.Generator, rows: int = 3, length: int = 4, drift: float = 0.3) -> Batch:
        """Log-probabilities of a policy that has moved by `drift` nats from the one that sampled, and its reference."""
        old = -torch.rand(rows, length, generator=generator) * 3 - 0.1
        near = (old + torch.randn(rows, length, generator=generator) * drift for _ in range(2))
        advantages = torch.randn(rows, generator=generator)
        mask = torch.ones(rows, length)
        mask[0, -1] = mask[1, -2:] = 0.0
        logprobs, reference = near
        parts = {"logprobs": logprobs, "old_logprobs": old, "ref_logprobs": reference}
        return Batch(**parts, advantages=advantages, mask=mask)


def objective(logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """What the broken objective was meant to be: epsilon 0.2, beta 0.05, the mean over trained tokens."""
    inside = mask.bool()
    log_ratio = (logprobs - old_logprobs).masked_fill(~inside, 0.0).clamp(-5, 5)
    delta = (ref_logprobs - logprobs).masked_fill(~inside, 0.0).clamp(-10, 10)
    per_token = losses.clipped_surrogate(log_ratio, advantages, 0.2) + 0.05 * kl.k3(delta)
    return losses.aggregate(per_token, inside)


def value_and_gradient(function: Callable[..., Tensor], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The number and what it hands back to the log-probabilities."""
    logprobs = inputs["logprobs"].clone().requires_grad_()
    value = function(**{**inputs, "logprobs": logprobs})
    value.backward()
    return {"loss": value.item(), "gradient": logprobs.grad}


def objective_cases(seed: int) -> Sequence[Case]:
    """A usual batch, one whose reference is far away, padding that holds anything, and a token 100 nats away."""
    generator = torch.Generator().manual_seed(seed)
    usual, far, padded, extreme = (Batch.draw(generator) for _ in range(4))
    far["ref_logprobs"] = far["ref_logprobs"] - 1.5
    padded["logprobs"][1, -1], padded["old_logprobs"][0, -1] = -torch.inf, torch.nan
    extreme["logprobs"][2, 0], extreme["old_logprobs"][2, 0] = -0.1, -100.0
    extreme["ref_logprobs"][2, 1] = 60.0 + extreme["logprobs"][2, 1]
    extreme["advantages"][2] = 1.0
    ratio = "The ratio compares the policy with the one that sampled; the KL compares it with the reference."
    padding = (
        "A mask of 0 times NaN is NaN, also on the way back: take padding out before exp, and divide by what is left."
    )
    after = (
        "min picks the other branch and the loss is finite, but backward multiplies 0 by inf. Bound what goes into exp."
    )
    return [
        _objective_case(
            "a batch near both policies", usual, "Work one token by hand: ratio, minimum, KL, then the mean."
        ),
        _objective_case("the reference is 1.5 nats away", far, ratio),
        _objective_case("padding that holds -inf and NaN", padded, padding),
        _objective_case("one token 100 nats away", extreme, after),
    ]


def _objective_case(what: str, inputs: Batch, why: str) -> Case:
    return Case(what, inputs, value_and_gradient(objective, inputs), why)


def set_and_look(function: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Calls it once a micro-batch; the gradients it leaves, and those it was given, which are not its to change."""
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in inputs["micro_batches"][0]]
    for gradients in inputs["micro_batches"]:
        function(parameters, gradients)
    given = [gradient for gradients in inputs["micro_batches"] for gradient in gradients]
    return {"left in .grad": [p.grad for p in parameters], "given": given}


def gradient_cases(seed: int) -> Sequence[Case]:
    """One, two and three micro-batches of gradients for two parameters."""
    generator = torch.Generator().manual_seed(seed)
    cases = []
    for count, what in ((1, "one micro-batch"), (2, "two micro-batches"), (3, "three micro-batches")):
        given = [[torch.randn(2, 2, generator=generator), torch.randn(3, generator=generator)] for _ in range(count)]
        expected = {
            "left in .grad": [torch.stack(parts).sum(dim=0) for parts in zip(*given, strict=True)],
            "given": [gradient for gradients in given for gradient in gradients],
        }
        why = "All micro-batches count. And what was handed in belongs to the caller: keep a copy, change no original."
        cases.append(Case(what, {"micro_batches": given}, expected, why))
    return cases


class CountingAdamW(torch.optim.AdamW):
    """AdamW that counts its steps."""

    steps = 0

    def step(self, *arguments: Any, **options: Any) -> Any:
        self.steps += 1
        return super().step(*arguments, **options)


def two_updates(function: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Calls `update` once for each batch, on one linear model and one AdamW, whose moments the first one fills."""
    weight = torch.nn.Parameter(inputs["weight"].clone())
    optimizer = CountingAdamW([weight], lr=0.1, weight_decay=0.0)
    norms = []
    for batch in inputs["batches"]:
        micro_batches = [lambda x=x: (x @ weight).sum() for x in batch]
        norms.append(function([weight], optimizer, micro_batches))
    return {"weight": weight.detach(), "norms": norms, "optimizer steps": optimizer.steps}


def update(parameters: list[Any], optimizer: Any, losses: list[Callable[[], Tensor]], max_norm: float = 1.0) -> float:
    """What the broken update was meant to be."""
    optimizer.zero_grad()
    for loss in losses:
        (loss() / len(losses)).backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    if norm.isfinite():
        optimizer.step()
    return float(norm)


def update_cases(seed: int) -> Sequence[Case]:
    """Two usual batches, large gradients, and a batch that is NaN after one that is not."""
    generator = torch.Generator().manual_seed(seed)

    def batch(size: float = 0.3) -> list[Tensor]:
        return [torch.randn(2, 3, generator=generator) * size for _ in range(3)]

    weight, broken = torch.randn(3, generator=generator), batch()
    broken[1] = broken[1] * torch.nan
    why = (
        "An update is one step from the mean of all micro-batches: zero once, add, look at the norm once, step once.",
        "The norm is looked at once, when the whole gradient is there, and returned as it was before clipping.",
        "No step may be made from a gradient that is not finite. Setting it to zero is not enough: AdamW's first "
        "moment moves the weights all the same. And NaN is greater than nothing, so ask whether it is finite.",
    )
    batches = (
        ("two usual batches of three micro-batches", [batch(), batch()], why[0]),
        ("gradients beyond max_norm", [batch(30.0), batch(0.3)], why[1]),
        ("a healthy batch, then one with NaN", [batch(), broken], why[2]),
    )
    given = [(what, {"weight": weight, "batches": both}, reason) for what, both, reason in batches]
    return [Case(what, inputs, two_updates(update, inputs), reason) for what, inputs, reason in given]
