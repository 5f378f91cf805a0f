"""Known mistakes of lab 6: wrong updates and distances, each with the reason for an answer that gives its results."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.course.exercises import Mistake

# One update from many micro-batches ----------------------------------------------------------------------------------

Share = Callable[[Tensor, Any, Sequence[Any]], Tensor]
"""(losses (b, T) of a part, the part, all parts) -> the loss () that is differentiated."""


def _tokens(parts: Sequence[Any]) -> Tensor:
    return torch.cat([part.mask for part in parts]).sum()


def _right(losses: Tensor, part: Any, parts: Sequence[Any]) -> Tensor:
    return (losses * part.mask).sum() / _tokens(parts)


def _update(share: Share = _right, inside: str = "", cleared: bool = True, steps: int = 1) -> Callable[..., None]:
    """The update of lab 6 with one of its parts replaced; `inside` names the optimizer's calls after each backward."""

    def function(parts: Sequence[Any], loss_of: Callable[[Any], Tensor], optimizer: Optimizer) -> None:
        if cleared:
            optimizer.zero_grad()
        for part in parts:
            if inside == "clear_before":
                optimizer.zero_grad()
            share(loss_of(part), part, parts).backward()
            if "step" in inside:
                optimizer.step()
            if "clear_after" in inside:
                optimizer.zero_grad(set_to_none=False)
        for _ in range(steps):
            optimizer.step()

    return function


_IN_THE_LOOP = "optimizer.step() is in the loop here: it makes an update for every micro-batch."
ONE_UPDATE = (
    Mistake(
        "The gradient of an earlier update was still in .grad: zero_grad() is missing before the loop.",
        _update(cleared=False),
    ),
    Mistake(
        "Only the last micro-batch is in the gradient: the others were cleared before the step, or left out.",
        _update(inside="clear_before"),
    ),
    Mistake("The optimizer steps with a gradient of 0 here.", _update(inside="clear_after")),
    Mistake(_IN_THE_LOOP, _update(inside="step", steps=0)),
    Mistake(_IN_THE_LOOP, _update(inside="step", steps=0, cleared=False)),
    Mistake(_IN_THE_LOOP, _update(inside="step_and_clear_after", steps=0)),
    Mistake(_IN_THE_LOOP, _update(inside="step_and_clear_after")),
    Mistake("optimizer.step() is called twice here.", _update(steps=2)),
    Mistake("optimizer.step() is not called here.", _update(steps=0)),
    Mistake(
        "Padding counts in the sum here: the mask is not applied to the losses.",
        _update(lambda losses, part, parts: losses.sum() / _tokens(parts)),
    ),
    Mistake(
        "Padding counts here, in the sum and in its divisor: the mask is not used.",
        _update(lambda losses, part, parts: losses.sum() / sum(part.mask.numel() for part in parts)),
    ),
    Mistake(
        "The divisor counts padding too here: only trained tokens count.",
        _update(lambda losses, part, parts: (losses * part.mask).sum() / sum(part.mask.numel() for part in parts)),
    ),
    Mistake(
        "This is the gradient of the sum of all losses: nothing divides it.",
        _update(lambda losses, part, parts: (losses * part.mask).sum()),
    ),
    Mistake(
        "The means of the micro-batches are added here; the mean over all trained tokens is wanted.",
        _update(lambda losses, part, parts: losses[part.mask].mean()),
    ),
    Mistake(
        "Each micro-batch counts the same here, however few tokens it has: this is the mean of their means.",
        _update(lambda losses, part, parts: losses[part.mask].mean() / len(parts)),
    ),
    Mistake("The size is right and the sign is not.", _update(lambda *given: -_right(*given))),
)

# The mask ------------------------------------------------------------------------------------------------------------


def _before(tokens: Tensor, end: int) -> Tensor:
    """(B, T) number of end tokens before each token."""
    ends = (tokens == end).int()
    return ends.cumsum(dim=1) - ends


def _up_to_the_last(tokens: Tensor, end: int) -> Tensor:
    ends = tokens == end
    return (ends.flip(1).cumsum(dim=1).flip(1) > 0) | ~ends.any(dim=1, keepdim=True)


MASK = (
    Mistake("Every token is trained here, padding among them.", lambda tokens, end: torch.ones_like(tokens).bool()),
    Mistake("Every end token is left out here; the first one was sampled.", lambda tokens, end: tokens != end),
    Mistake(
        "The first end token is left out here; it was sampled, and from it the model learns to stop.",
        lambda tokens, end: (tokens == end).cumsum(dim=1) == 0,
    ),
    Mistake(
        "One token too many is trained here, the one after the end.", lambda tokens, end: _before(tokens, end) <= 1
    ),
    Mistake("Tokens up to the last end token are trained here; the first one ends the completion.", _up_to_the_last),
    Mistake("True and False are the other way round here.", lambda tokens, end: _before(tokens, end) != 0),
)

# The sampler mismatch ------------------------------------------------------------------------------------------------


def _mismatch(
    gaps: Callable[[Tensor, Tensor], Tensor] = lambda old, sampled: (old - sampled).abs(),
    mean: Callable[[Tensor, Tensor], Tensor] = lambda gaps, mask: gaps[mask].mean(),
    largest: Callable[[Tensor, Tensor], Tensor] = lambda gaps, mask: gaps[mask].max(),
) -> Callable[[Tensor, Tensor, Tensor], tuple[float, float]]:
    """The two numbers of lab 6 with one of their parts replaced; the defaults give the right ones."""

    def function(old_logprobs: Tensor, sampling_logprobs: Tensor, mask: Tensor) -> tuple[float, float]:
        found = gaps(old_logprobs, sampling_logprobs)
        return float(mean(found, mask)), float(largest(found, mask))

    return function


def _of_rows(gaps: Tensor, mask: Tensor) -> Tensor:
    return ((gaps * mask).sum(dim=1) / mask.sum(dim=1)).mean()


def _swapped(old_logprobs: Tensor, sampling_logprobs: Tensor, mask: Tensor) -> tuple[float, float]:
    mean, largest = _mismatch()(old_logprobs, sampling_logprobs, mask)
    return largest, mean


def _signed(old: Tensor, sampled: Tensor) -> Tensor:
    return old - sampled


MISMATCH = (
    Mistake(
        "Differences in both directions cancel here: take their magnitude before the mean.", _mismatch(gaps=_signed)
    ),
    Mistake(
        "Differences in both directions cancel here: take their magnitude before the mean.",
        _mismatch(
            gaps=_signed,
            mean=lambda gaps, mask: gaps[mask].mean().abs(),
            largest=lambda gaps, mask: gaps[mask].abs().max(),
        ),
    ),
    Mistake(
        "These are ratios: exp was taken of the differences.",
        _mismatch(gaps=lambda old, sampled: (old - sampled).exp()),
    ),
    Mistake(
        "These are differences of probabilities, and not of log-probabilities.",
        _mismatch(gaps=lambda old, sampled: (old.exp() - sampled.exp()).abs()),
    ),
    Mistake("These are squares of the differences.", _mismatch(gaps=lambda old, sampled: (old - sampled).square())),
    Mistake("The size is right and the sign is not.", _mismatch(gaps=lambda old, sampled: -(old - sampled).abs())),
    Mistake(
        "Padding counts here: the mask is not used.",
        _mismatch(mean=lambda gaps, _: gaps.mean(), largest=lambda gaps, _: gaps.max()),
    ),
    Mistake(
        "The mean is divided by all places here, padding among them.",
        _mismatch(mean=lambda gaps, mask: (gaps * mask).mean()),
    ),
    Mistake("Padding counts in the largest difference here.", _mismatch(largest=lambda gaps, _: gaps.max())),
    Mistake(
        "The mean is that of the completions' means here; every trained token counts the same.",
        _mismatch(mean=_of_rows),
    ),
    Mistake("The median is taken for the mean here.", _mismatch(mean=lambda gaps, mask: gaps[mask].median())),
    Mistake("The two numbers are in the other order here.", _swapped),
)
