"""What the repairs of lab 8 are asked: an objective, an accumulation and an update, each as it was meant to be."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab.algorithm import kl, losses
from grpo_lab.course.exercises import Case, Function
from grpo_lab.course.probes import gradients_left, updates_in_turn, value_and_gradient
from grpo_lab.course.relations import changed, padded, permuted, reordered, scaled, shifted


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


def objective_cases(seed: int) -> Sequence[Case]:
    """A usual batch, one whose reference is far away, padding that holds anything, and a token 100 nats away."""
    generator = torch.Generator().manual_seed(seed)
    usual, far, padded, extreme, beyond = (Batch.draw(generator) for _ in range(5))
    far["ref_logprobs"] = far["ref_logprobs"] - 1.5
    padded["logprobs"][1, -1], padded["old_logprobs"][0, -1] = -torch.inf, torch.nan
    padded["ref_logprobs"][1, -2] = torch.nan
    extreme["logprobs"][2, 0], extreme["old_logprobs"][2, 0] = -0.1, -100.0
    extreme["ref_logprobs"][2, 1] = 60.0 + extreme["logprobs"][2, 1]
    extreme["advantages"][2] = 1.0
    beyond["advantages"][0], beyond["advantages"][2] = -1.0, 1.0
    beyond["old_logprobs"][0, 0] = beyond["logprobs"][0, 0] - 5.5
    beyond["old_logprobs"][2, 0] = beyond["logprobs"][2, 0] + 5.5
    beyond["ref_logprobs"][2, 1] = beyond["logprobs"][2, 1] + 10.5
    beyond["ref_logprobs"][2, 2] = beyond["logprobs"][2, 2] - 10.5
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
        _objective_case("tokens half a nat beyond the limits", beyond, "Beyond 5 and 10 nats nothing pulls any more."),
    ]


def _objective_case(what: str, inputs: Batch, why: str) -> Case:
    return Case(what, dict(inputs), value_and_gradient(objective, inputs), why)


def _batch_twice(case: Case, draw: random.Random) -> Case:
    """Every completion twice: the same mean, of which each completion is half as large a part."""
    inputs = {name: torch.cat([value] * 2) for name, value in case.inputs.items()}
    expected = {**case.expected, "gradient": torch.cat([case.expected["gradient"] / 2] * 2)}
    return changed(case, "every completion twice", expected, **inputs)


def gradient_cases(seed: int) -> Sequence[Case]:
    """One, two and three micro-batches of gradients for two parameters."""
    generator = torch.Generator().manual_seed(seed)
    cases = list[Case]()
    for count, what in ((1, "one micro-batch"), (2, "two micro-batches"), (3, "three micro-batches")):
        given = [[torch.randn(2, 2, generator=generator), torch.randn(3, generator=generator)] for _ in range(count)]
        expected = {
            "left in .grad": [torch.stack(parts).sum(dim=0) for parts in zip(*given, strict=True)],
            "given": [gradient for gradients in given for gradient in gradients],
        }
        why = "All micro-batches count. And what was handed in belongs to the caller: keep a copy, change no original."
        cases.append(Case(what, {"micro_batches": given}, expected, why))
    return cases


def _reversed(case: Case, draw: random.Random) -> Case:
    """The last micro-batch first: the sum is the same."""
    order = case.inputs["micro_batches"][::-1]
    given = [gradient for gradients in order for gradient in gradients]
    return changed(case, "the last one first", {**case.expected, "given": given}, micro_batches=order)


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
    return [Case(what, inputs, updates_in_turn(update, inputs), reason) for what, inputs, reason in given]


def _micro_batches_moved(case: Case, draw: random.Random) -> Case:
    """Which micro-batch comes first makes no difference."""
    batches = [[batch[place] for place in reordered(len(batch), draw)] for batch in case.inputs["batches"]]
    return changed(case, "micro-batches in another order", case.expected, batches=batches)


def _split(case: Case, draw: random.Random) -> Case:
    """Every micro-batch in two: each has half of the rows, and twice the loss, so that the mean stays."""
    batches = [[2 * half for x in batch for half in x.split(1)] for batch in case.inputs["batches"]]
    return changed(case, "each micro-batch in two", case.expected, batches=batches)


def _weights_moved(case: Case, draw: random.Random) -> Case:
    """The weights in another order, and the inputs that they are multiplied by."""
    order = reordered(len(case.inputs["weight"]), draw)
    batches = [[x[:, order] for x in batch] for batch in case.inputs["batches"]]
    expected = {**case.expected, "weight": case.expected["weight"][order]}
    return changed(case, "weights in another order", expected, weight=case.inputs["weight"][order], batches=batches)


_FIELDS = ("logprobs", "old_logprobs", "ref_logprobs")
OBJECTIVE = Function(
    "objective",
    objective_cases,
    value_and_gradient,
    (
        permuted(*_FIELDS, "advantages", "mask"),
        permuted(*_FIELDS, "mask", dim=1),
        padded(mask="mask", logprobs=math.nan, old_logprobs=-math.inf, ref_logprobs=-1.0),
        shifted(*_FIELDS),
        _batch_twice,
    ),
)
SET_GRADIENTS = Function("set_gradients", gradient_cases, gradients_left, (_reversed, scaled("micro_batches", power=1)))
UPDATE = Function("update", update_cases, updates_in_turn, (_micro_batches_moved, _split, _weights_moved))
