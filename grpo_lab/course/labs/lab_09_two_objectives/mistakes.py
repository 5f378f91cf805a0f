"""Known mistakes of lab 9: wrong formulas, each with the reason for an answer that gives its results."""

import math
from collections.abc import Callable, Mapping, Sequence
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

# The angle of two gradients ------------------------------------------------------------------------------------------

Gradients = Sequence[Tensor | None]


def _pairs(first: Gradients, second: Gradients) -> list[tuple[Tensor, Tensor]]:
    return [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]


def _product(first: Gradients, second: Gradients) -> float:
    return sum(float((a.double() * b.double()).sum()) for a, b in _pairs(first, second))


def _length(gradients: Gradients) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients if g is not None))


def _cosine(
    of: Callable[[float, float], float] = lambda product, size: product / size,
    divisor: Callable[[float, float], float] = lambda one, two: one * two,
) -> Callable[[Gradients, Gradients], float]:
    """The cosine of lab 9 with one of its parts replaced; 0 where a gradient is 0."""

    def function(first: Gradients, second: Gradients) -> float:
        lengths = _length(first), _length(second)
        return 0.0 if 0.0 in lengths else of(_product(first, second), divisor(*lengths))

    return function


def _each_parameter(first: Gradients, second: Gradients) -> float:
    found = [_cosine()([a], [b]) for a, b in _pairs(first, second)]
    return sum(found) / len(found)


def _in_common(first: Gradients, second: Gradients) -> float:
    return _cosine()(*zip(*_pairs(first, second), strict=True))


COSINE = (
    Mistake("The inner product is not divided here.", _cosine(divisor=lambda one, two: 1.0)),
    Mistake(
        "The squares of the lengths divide here; a square root is missing.",
        _cosine(divisor=lambda one, two: (one * two) ** 2),
    ),
    Mistake(
        "This is the mean of one cosine for each parameter; the angle is that of the whole gradients.", _each_parameter
    ),
    Mistake(
        "The lengths are those of the parameters that both have; a gradient keeps its length where the other one "
        "has None.",
        _in_common,
    ),
    Mistake(
        "A constant of 1e-8 is added to the denominator here, which is not small next to a product of tiny lengths.",
        _cosine(divisor=lambda one, two: one * two + 1e-8),
    ),
    Mistake("The size is right and the sign is not.", _cosine(lambda product, size: abs(product / size))),
    Mistake("The size is right and the sign is not.", _cosine(lambda product, size: -product / size)),
    Mistake(
        "This is NaN where a gradient is 0, as 0 / 0 is. The number to return is in the task.",
        lambda first, second: _cosine()(first, second) if _length(first) * _length(second) else math.nan,
    ),
)

# PCGrad --------------------------------------------------------------------------------------------------------------

Share = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(a gradient (D,), the other one, their inner product) -> the part that the gradient loses."""


def _part(mine: Tensor, other: Tensor, product: Tensor) -> Tensor:
    return product / other.square().sum() * other


def _projected(
    part: Share = _part,
    of_f: float = 1.0,
    of_h: float = 1.0,
    conflict: Callable[[Tensor], Tensor] = lambda product: product < 0,
    factor: float = 1.0,
) -> Callable[[Tensor, Tensor], Tensor]:
    """The sum of lab 9 with one of its parts replaced; `of_f` and `of_h` are the shares that are taken away."""

    def function(f: Tensor, h: Tensor) -> Tensor:
        product = f @ h
        if not conflict(product):
            return factor * (f + h)
        return factor * (f - of_f * part(f, h, product) + h - of_h * part(h, f, product))

    return function


def _one_after_the_other(f: Tensor, h: Tensor) -> Tensor:
    if f @ h < 0:
        f = f - _part(f, h, f @ h)
        h = h - _part(h, f, f @ h) if f.any() else h
    return f + h


WITHOUT_CONFLICT = (
    Mistake(
        "This is the plain sum everywhere; above 90 degrees each gradient loses a part.", _projected(of_f=0.0, of_h=0.0)
    ),
    Mistake("Only F loses its part along H here; H loses its part along F too.", _projected(of_h=0.0)),
    Mistake("Only H loses its part along F here; F loses its part along H too.", _projected(of_f=0.0)),
    Mistake("The parts are added here, and not taken away.", _projected(of_f=-1.0, of_h=-1.0)),
    Mistake(
        "The gradients lose their parts where they agree here, and not where they conflict.",
        _projected(conflict=lambda product: product > 0),
    ),
    Mistake(
        "The inner product is divided by the length of the other gradient here; a power is missing.",
        _projected(lambda mine, other, product: product / other.norm() * other),
    ),
    Mistake(
        "The inner product is divided by both lengths here; the share depends on the other gradient alone.",
        _projected(lambda mine, other, product: product / (mine.norm() * other.norm()) * other),
    ),
    Mistake("The inner product is not divided here.", _projected(lambda mine, other, product: product * other)),
    Mistake("This is the mean of the two, and not their sum.", _projected(factor=0.5)),
)

# A beta for each objective -------------------------------------------------------------------------------------------


def _middle(low: float, high: float) -> float:
    return math.sqrt(low * high)


def _betas(
    target: Callable[[float, float], float] = _middle,
    bounded: Callable[[float], float] = lambda error: max(-0.2, min(0.2, error)),
    limits: tuple[float, float] = (0.002, 4.0),
    gain: float = 0.1,
    absent: float = math.nan,
    kept: Callable[[float], bool] = lambda kl: not math.isfinite(kl),
) -> Callable[..., dict[str, float]]:
    """The next betas of lab 9 with one of their parts replaced; the defaults give the right ones."""

    def function(
        betas: Mapping[str, float], kls: Mapping[str, float], bands: Mapping[str, tuple[float, float]]
    ) -> dict[str, float]:
        moved = dict(betas)
        for name, beta in betas.items():
            kl = kls.get(name, absent)
            if not kept(kl):
                error = bounded(kl / target(*bands[name]) - 1)
                moved[name] = max(limits[0], min(limits[1], beta * (1 + gain * error)))
        return moved

    return function


NEXT_BETAS = (
    Mistake(
        "The target is the arithmetic middle of the band here; the geometric one is wanted.",
        _betas(lambda low, high: (low + high) / 2),
    ),
    Mistake("The target is the lower end of the band here.", _betas(lambda low, high: low)),
    Mistake("The target is the upper end of the band here.", _betas(lambda low, high: high)),
    Mistake("The error has no bound here.", _betas(bounded=lambda error: error)),
    Mistake("The error has no lower bound here.", _betas(bounded=lambda error: min(0.2, error))),
    Mistake("The error has no upper bound here.", _betas(bounded=lambda error: max(-0.2, error))),
    Mistake("The betas leave both of their limits here.", _betas(limits=(0.0, math.inf))),
    Mistake("A beta rises above its upper limit of 4 here.", _betas(limits=(0.002, math.inf))),
    Mistake("A beta falls below its lower limit of 0.002 here.", _betas(limits=(0.0, 4.0))),
    Mistake("The sign is the other way round: a beta rises where its KL is above the band.", _betas(gain=-0.1)),
    Mistake("The factor 0.1 of the error is missing.", _betas(gain=1.0)),
    Mistake("A KL that is absent moves its beta here: nothing was measured, so that beta stays.", _betas(absent=0.0)),
    Mistake("An infinite KL moves its beta here; it says nothing about the distance.", _betas(kept=math.isnan)),
)
