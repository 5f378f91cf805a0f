"""Where the trained weights of a policy are: whole in each process, or, as `training.shards` has it, a part in each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Whole:
    """All weights are in each process. Each method says what it does where a process has a part of every weight."""

    def give_back(self) -> None:
        """Put the weights into the policy that gave them away, on the first rank."""

    @contextmanager
    def written(self, policy: Any) -> Iterator[Any]:
        """A block in which the first rank has all weights in an ordinary module, to write them."""
        yield policy

    @contextmanager
    def gathered(self, policy: Any) -> Iterator[None]:
        """A block for passes without gradient: all weights are there, and ranks need not make the same passes."""
        yield

    def trained(self, policy: Any) -> list[tuple[str, Tensor]]:
        """Names and tensors that are trained; this rank's parts."""
        return [(name, parameter) for name, parameter in policy.named_parameters() if parameter.requires_grad]

    def total(self, numbers: Tensor) -> Tensor:
        """Numbers (n,) about this rank's parts, added up over all ranks."""
        return numbers

    def largest(self, number: float) -> float:
        """The largest of the ranks' numbers, NaN if one is NaN."""
        return number

    def measured(self, tensors: Sequence[Tensor], norms: Tensor) -> tuple[Tensor, int, float | None]:
        """Of whole tensors their 2-norms (n,), the elements of all, and those not finite if they are counted now.

        Given are this rank's parts and their norms.
        """
        return norms, sum(tensor.numel() for tensor in tensors), None

    def whole(self, trained: Tensor, value: Tensor) -> Tensor:
        """A whole weight, or moment, from the ranks' parts `value` that belong to `trained`; (0,) but on the first."""
        return value

    def part(self, trained: Tensor, value: Tensor) -> Tensor:
        """This rank's part of a whole weight, or moment, that belongs to `trained`."""
        return value

    def shape(self, trained: Tensor) -> Sequence[int]:
        """The shape of the whole weight."""
        return trained.shape

    def exchange(self, trained: Tensor, other: Tensor) -> Tensor:
        """Give a weight the values of another tensor, and return a tensor with its own; whole ones change hands."""
        trained.data, other = other, trained.data
        return other


WHOLE = Whole()


def count_nonfinite(tensors: Sequence[Tensor]) -> int:
    """Number of elements of these tensors, of any shape, that are NaN or inf, counted with one transfer."""
    return int(torch.stack([(~tensor.isfinite()).sum() for tensor in tensors]).sum())


def count_broken(tensors: Sequence[Tensor], norms: Sequence[float]) -> float:
    """Number of elements of these tensors that are not finite; only those are read whose norm is not."""
    suspects = [tensor for tensor, norm in zip(tensors, norms, strict=True) if not math.isfinite(norm)]
    return float(count_nonfinite(suspects)) if suspects else 0.0
