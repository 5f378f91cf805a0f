"""The checks of lab 8's repairs: an objective, an accumulation and an update."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab.algorithm import kl, losses
from grpo_lab.course import pages
from grpo_lab.course.exercises import Case, Function, cases_by
from grpo_lab.course.labs.lab_08_mystery_runs import mistakes
from grpo_lab.course.probes import gradients_left, updates_in_turn, value_and_gradient
from grpo_lab.course.relations import changed, padded, permuted, reordered, scaled, shifted

TEXTS = pages.case_texts("08_mystery_runs")


class Batch(dict[str, Any]):
    """The inputs of `objective`: B completions of T tokens."""

    @staticmethod
    def draw(generator: torch.Generator, rows: int = 3, length: int = 4, drift: float = 0.3) -> Batch:
        """Log-probabilities (B, T) of a policy about `drift` nats from the one that sampled, and of its reference."""
        old = -torch.rand(rows, length, generator=generator) * 3 - 0.1
        near = (old + torch.randn(rows, length, generator=generator) * drift for _ in range(2))
        advantages = torch.randn(rows, generator=generator)
        mask = torch.ones(rows, length)
        mask[0, -1] = mask[1, -2:] = 0.0
        logprobs, reference = near
        parts = {"logprobs": logprobs, "old_logprobs": old, "ref_logprobs": reference}
        return Batch(**parts, advantages=advantages, mask=mask)


def objective(logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The repaired objective, a number: epsilon 0.2, beta 0.05, the mean over trained tokens.

    Log-probabilities and mask are (B, T), advantages (B,).
    """
    inside = mask.bool()
    log_ratio = (logprobs - old_logprobs).masked_fill(~inside, 0.0).clamp(-5, 5)
    delta = (ref_logprobs - logprobs).masked_fill(~inside, 0.0).clamp(-10, 10)
    per_token = losses.clipped_surrogate(log_ratio, advantages, 0.2) + 0.05 * kl.k3(delta)
    return losses.aggregate(per_token, inside)


def objective_cases(seed: int) -> Sequence[Case]:
    """A usual batch, a distant reference, padding with -inf and NaN, a token 100 nats away, and clamped tokens."""
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
    batches = {"usual": usual, "far": far, "padded": padded, "extreme": extreme, "beyond": beyond}
    rows = [(TEXTS[key][0], batch, TEXTS[key][1]) for key, batch in batches.items()]
    return cases_by(objective, rows, value_and_gradient)


def _batch_twice(case: Case, draw: random.Random) -> Case:
    """Repeat every completion: the mean stays, and each completion's share of it halves."""
    inputs = {name: torch.cat([value] * 2) for name, value in case.inputs.items()}
    expected = {**case.expected, "gradient": torch.cat([case.expected["gradient"] / 2] * 2)}
    return changed(case, "every completion twice", expected, **inputs)


def gradient_cases(seed: int) -> Sequence[Case]:
    """One, two and three micro-batches of gradients (2, 2) and (3,) for two parameters."""
    generator = torch.Generator().manual_seed(seed)
    cases = list[Case]()
    for count, what in ((1, "one micro-batch"), (2, "two micro-batches"), (3, "three micro-batches")):
        given = [[torch.randn(2, 2, generator=generator), torch.randn(3, generator=generator)] for _ in range(count)]
        expected = {
            "left in .grad": [torch.stack(parts).sum(dim=0) for parts in zip(*given, strict=True)],
            "given": [gradient for gradients in given for gradient in gradients],
        }
        why = "Expected in .grad is the sum of all micro-batches; the given gradients stay as they were."
        cases.append(Case(what, {"micro_batches": given}, expected, why))
    return cases


def _reversed(case: Case, draw: random.Random) -> Case:
    """Reverse the micro-batches, which must not change the sum."""
    order = case.inputs["micro_batches"][::-1]
    given = [gradient for gradients in order for gradient in gradients]
    return changed(case, "the last one first", {**case.expected, "given": given}, micro_batches=order)


def update(parameters: list[Any], optimizer: Any, losses: list[Callable[[], Tensor]], max_norm: float = 1.0) -> float:
    """The repaired update; returns the norm before clipping."""
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
    rows = [
        ([batch(), batch()], *TEXTS["two_usual"]),
        ([batch(30.0), batch(0.3)], *TEXTS["large"]),
        ([batch(), broken], *TEXTS["then_broken"]),
    ]
    given = [(what, {"weight": weight, "batches": both}, why) for both, what, why in rows]
    return cases_by(update, given, updates_in_turn)


def _micro_batches_moved(case: Case, draw: random.Random) -> Case:
    """Reorder the micro-batches, which must not change the update."""
    batches = [[batch[place] for place in reordered(len(batch), draw)] for batch in case.inputs["batches"]]
    return changed(case, "micro-batches in another order", case.expected, batches=batches)


def _split(case: Case, draw: random.Random) -> Case:
    """Split every micro-batch in two: each has half of the rows and twice the loss, so that the mean stays."""
    batches = [[2 * half for x in batch for half in x.split(1)] for batch in case.inputs["batches"]]
    return changed(case, "each micro-batch in two", case.expected, batches=batches)


def _weights_moved(case: Case, draw: random.Random) -> Case:
    """Reorder the weights, and the columns that they are multiplied by."""
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
    mistakes.OBJECTIVE,
)
SET_GRADIENTS = Function(
    "set_gradients",
    gradient_cases,
    gradients_left,
    (_reversed, scaled("micro_batches", power=1)),
    mistakes.GRADIENTS,
)
UPDATE = Function(
    "update",
    update_cases,
    updates_in_turn,
    (_micro_batches_moved, _split, _weights_moved),
    mistakes.UPDATE,
)
