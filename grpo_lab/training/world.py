"""The processes that train one policy together: each has a share of a step's prompts.

Each process, a rank, computes some of the micro-batches. All ranks know the whole batch, so that advantages, token
weights and guards of whole batches are those of one process, on each of them; the ranks share sampling, the passes
without gradient and the backward passes, and add up their gradients. In `replicas` each process has the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.training.interventions import Step

T = TypeVar("T")
Rows = TypeVar("Rows", Sequence[Any], Tensor)


class PeerFailed(RuntimeError):
    """Another process failed; the text says which one, and holds its traceback."""


@dataclass
class Meeting:
    """The results of the ranks' shares of some work: `say` that of this rank, and read `heard` after the block."""

    said: Any = None
    heard: list[Any] = field(default_factory=list)

    def say(self, value: Any) -> None:
        """Tell all ranks a value of numbers, texts, tensors or batches."""
        self.said = value


class World:
    """One process alone. Each method says what several do."""

    rank, size = 0, 1

    def place(self, policy: Any) -> None:
        """Give the policy the first rank's weights."""

    def own(self, batch: Batch, micro_batch_prompts: int) -> Iterator[Batch]:
        """Yield the micro-batches of this rank's share of the prompts; a share without completions has none."""
        yield from batch.split(micro_batch_prompts)

    def share(self, rows: Rows) -> Rows:
        """This rank's part of the rows, or of a tensor's; the ranks' parts follow each other."""
        return rows

    def with_first(self, rows: Sequence[T]) -> Sequence[T]:
        """The rows on the first rank, and none on the others: that is the one that asks judges."""
        return rows

    @contextmanager
    def meeting(self, ctx: Step) -> Iterator[Meeting]:
        """A block in which each rank does its share of a step, and at whose end all hear of each other.

        Then actions, verdict and notes are those of all ranks. Raises Refused on all of them where a guard refused on
        one, and PeerFailed on the others where one failed.
        """
        meeting = Meeting()
        yield meeting
        meeting.heard = [meeting.said]

    def hear(self, make: Callable[[], T]) -> T:
        """The value that the first rank makes, on all ranks; they wait for it as long as the first one lives.

        Raises PeerFailed on the others where it fails.
        """
        return make()

    def add_up(self, parameters: Sequence[Tensor]) -> None:
        """Give each of these parameters the sum of its gradients over all ranks; None where no rank has one."""


ALONE = World()


def moved(value: Any, device: torch.device | str) -> Any:
    """The same nested values with every tensor on this device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Batch):
        return replace(value, **{each.name: moved(getattr(value, each.name), device) for each in fields(value)})
    if isinstance(value, Mapping):
        return {name: moved(each, device) for name, each in value.items()}
    return [moved(each, device) for each in value] if isinstance(value, list) else value
