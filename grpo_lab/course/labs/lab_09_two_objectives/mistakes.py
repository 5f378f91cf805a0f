"""Known mistakes of lab 9: wrong formulas, each with the reason for an answer that gives its results."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.exercises import Mistake

# The sum of gradient vectors -----------------------------------------------------------------------------------------

Parts = Callable[[Sequence[Any], Tensor], Sequence[Tensor]]


def _split(parameters: Sequence[Any], vector: Tensor) -> list[Tensor]:
    parts = vector.split([p.numel() for p in parameters])
    return [part.reshape(p.shape) for p, part in zip(parameters, parts, strict=True)]


def _set(
    added: Callable[[Tensor, Tensor, float], Tensor] = lambda old, new, weight: old + new,
    weighted: Callable[[Tensor, float], Tensor] = lambda vector, weight: weight * vector,
    parts: Parts = _split,
    first: Callable[[Tensor], Tensor] = torch.clone,
) -> Callable[..., None]:
    """The function of lab 9 with one of its parts replaced; the defaults give the right one."""

    def function(parameters: Sequence[Any], vector: Tensor, weight: float) -> None:
        for p, part in zip(parameters, parts(parameters, weighted(vector, weight)), strict=True):
            p.grad = first(part) if p.grad is None else added(p.grad, part, weight)

    return function


def _beginnings(parameters: Sequence[Any], vector: Tensor) -> list[Tensor]:
    return [vector[: p.numel()].reshape(p.shape) for p in parameters]


def _from_the_end(parameters: Sequence[Any], vector: Tensor) -> list[Tensor]:
    return _split(parameters[::-1], vector)[::-1]


def _by_columns(parameters: Sequence[Any], vector: Tensor) -> list[Tensor]:
    return [
        part.reshape(part.shape[::-1]).permute(tuple(range(part.dim()))[::-1]) for part in _split(parameters, vector)
    ]


def _in_place(vector: Tensor, weight: float) -> Tensor:
    return vector.mul_(weight)


_CHANGED = "The gradients are right, and a given vector was changed: its weight multiplied it in place."
SET_GRADS = (
    Mistake(_CHANGED, _set(weighted=_in_place)),
    # .grad is a view of the vector then, and later calls add to the vector too.
    Mistake(_CHANGED, _set(lambda old, new, _: old.add_(new), _in_place, first=lambda part: part)),
    Mistake("Only the last vector is left: each call overwrites .grad.", _set(lambda old, new, _: new.clone())),
    Mistake("Only the first vector is left: later calls add nothing.", _set(lambda old, new, _: old)),
    Mistake("The weight is not used here.", _set(weighted=lambda vector, _: 1.0 * vector)),
    Mistake(
        "The weight multiplies the gradients that are there already; it belongs to its own vector.",
        _set(lambda old, new, weight: (old + new / weight) * weight if weight else 0 * old),
    ),
    Mistake("The weight multiplies twice after the first call.", _set(lambda old, new, weight: old + weight * new)),
    Mistake("Every parameter gets the beginning of the vector here.", _set(parts=_beginnings)),
    Mistake("The parameters take their parts in the reverse order here.", _set(parts=_from_the_end)),
    Mistake("A part is filled in by columns here; view and reshape fill in by rows.", _set(parts=_by_columns)),
    Mistake("The sum is halved with each call here.", _set(lambda old, new, _: (old + new) / 2)),
    Mistake("The later vectors are subtracted here.", _set(lambda old, new, _: old - new)),
    Mistake("The gradients are 0 here.", _set(weighted=lambda vector, _: 0 * vector)),
)
