"""Known mistakes of lab 7: wrong formulas, each with the reason for an answer that gives its results."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.course.exercises import Mistake

# The largest log-ratio -----------------------------------------------------------------------------------------------


def _largest(dtype: str) -> float:
    return torch.finfo(getattr(torch, dtype)).max


LARGEST = (
    Mistake("This is the largest number of the dtype, and not its logarithm.", _largest),
    Mistake("This is the logarithm to base 10; exp has the base e.", lambda dtype: math.log10(_largest(dtype))),
    Mistake("This is the logarithm to base 2; exp has the base e.", lambda dtype: math.log2(_largest(dtype))),
    Mistake("The size is right and the sign is not.", lambda dtype: -math.log(_largest(dtype))),
    Mistake("Every dtype is taken for float32 here.", lambda dtype: math.log(_largest("float32"))),
)

# Loss scaling --------------------------------------------------------------------------------------------------------


def _scales(
    grown: float = 2.0, shrunk: float = 0.5, late: int = 0, reset: bool = True, before: bool = False
) -> Callable[[str, float, int], list[float]]:
    """The scales of lab 7 with one of the rules replaced; the defaults give the right ones."""

    def function(overflowed: str, scale: float, interval: int) -> list[float]:
        found, good = [scale], 0
        for mark in overflowed:
            scale, good = (scale * shrunk, 0 if reset else good) if mark == "x" else (scale, good + 1)
            if good == max(1, interval + late):
                scale, good = scale * grown, 0
            found.append(scale)
        return found[:-1] if before else found[1:]

    return function


SCALES = (
    Mistake("The scale never grows here.", _scales(grown=1.0)),
    Mistake("An overflow does not shrink the scale here.", _scales(shrunk=1.0)),
    Mistake("An overflow divides the scale by 4 here.", _scales(shrunk=0.25)),
    Mistake("The scale grows by half here; it doubles.", _scales(grown=1.5)),
    Mistake("An overflow does not begin the count again here: good updates must be consecutive.", _scales(reset=False)),
    Mistake("The scale grows one update late here.", _scales(late=1)),
    Mistake("The scale grows one update early here.", _scales(late=-1)),
    Mistake("These are the scales before each update; those after it are wanted.", _scales(before=True)),
)

# A log-ratio without NaN ---------------------------------------------------------------------------------------------

Fill = Callable[[Tensor, Tensor], Tensor]
"""(a difference (B, T), mask (B, T)) -> the log-ratio."""


def _log_ratio(fill: Fill) -> Callable[[Tensor, Batch], Tensor]:
    def function(logprobs: Tensor, batch: Batch) -> Tensor:
        assert batch.old_logprobs is not None
        return fill(logprobs - batch.old_logprobs, batch.completion_mask)

    return function


def _kept(keep: Fill) -> Callable[[Tensor, Batch], Tensor]:
    return _log_ratio(lambda gap, mask: gap.masked_fill(~keep(gap, mask), 0.0))


def _right(gap: Tensor, mask: Tensor) -> Tensor:
    return gap.masked_fill(~(gap.isfinite() & mask), 0.0)


def _of_the_policy(logprobs: Tensor, batch: Batch) -> Tensor:
    assert batch.old_logprobs is not None
    return (logprobs - batch.old_logprobs).masked_fill(~(logprobs.isfinite() & batch.completion_mask), 0.0)


def _of_the_sampler(logprobs: Tensor, batch: Batch) -> Tensor:
    assert batch.old_logprobs is not None
    return (logprobs - batch.old_logprobs).masked_fill(~(batch.old_logprobs.isfinite() & batch.completion_mask), 0.0)


MASKED = (
    Mistake("Nothing is replaced here: -inf - (-inf) is NaN.", _log_ratio(lambda gap, _: gap)),
    Mistake(
        "The mask is multiplied here: NaN * 0 is NaN, and so is inf * 0. Replace these numbers.",
        _log_ratio(lambda gap, mask: gap * (gap.isfinite() & mask)),
    ),
    Mistake("Numbers that are not finite stay here: only padding is replaced.", _kept(lambda gap, mask: mask)),
    Mistake("Padding stays here: only numbers that are not finite are replaced.", _kept(lambda gap, _: gap.isfinite())),
    Mistake(
        "Padding stays here: only numbers that are not finite are replaced.",
        _log_ratio(lambda gap, _: gap.nan_to_num(0.0, 0.0, 0.0)),
    ),
    Mistake("inf and -inf stay here: only NaN and padding are replaced.", _kept(lambda gap, mask: ~gap.isnan() & mask)),
    Mistake(
        "nan_to_num puts the largest number of the dtype in place of inf, and padding stays.",
        _log_ratio(lambda gap, _: gap.nan_to_num()),
    ),
    Mistake("Tokens that only the old pass filtered stay here.", _of_the_policy),
    Mistake("Tokens that only the current pass filtered stay here.", _of_the_sampler),
    Mistake(
        "A whole row is replaced here; one token of it was filtered.",
        _kept(lambda gap, mask: gap.isfinite().all(dim=1, keepdim=True) & mask),
    ),
    Mistake(
        "The values are right and have no gradient: something was detached.",
        _log_ratio(lambda gap, mask: _right(gap, mask).detach()),
    ),
    Mistake("The size is right and the sign is not.", _log_ratio(lambda gap, mask: -_right(gap, mask))),
    Mistake("This is the ratio, and not its logarithm.", _log_ratio(lambda gap, mask: _right(gap, mask).exp())),
    Mistake(
        "1 is put in place of numbers to replace here; it must be 0.",
        _log_ratio(lambda gap, mask: gap.masked_fill(~(gap.isfinite() & mask), 1.0)),
    ),
)
