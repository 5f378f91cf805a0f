"""Processes of which each has a part of every weight: PyTorch's FSDP2, `fully_shard` (https://arxiv.org/abs/2304.11277).

Each rank keeps its rows of weights, gradients, moments, snapshot and reference. A layer's weights are gathered for its
passes with gradient; all of them are gathered for sampling and for passes without gradient, because ranks end those at
different times. Optimizer, guards and snapshots see the parts as ordinary tensors; norms and counts are added up.
"""

from __future__ import annotations

import copy
import ctypes
import math
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.algorithm.batch import Batch
from grpo_lab.training.attempt import Attempt
from grpo_lab.training.parts import Whole, count_broken
from grpo_lab.training.recorder import Notes
from grpo_lab.training.replicas import Processes, named
from grpo_lab.training.world import Meeting, PeerFailed


class Sharded(Processes):
    """Several processes with a part of every weight each.

    In passes with gradient each rank needs the others. So all make as many of them, and before each backward pass they
    agree that none refused it. A rank that fails says why in the store, and the others read it when its passes end.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._shards = Shards(self._with_others, self._dist.new_group(timeout=self._timeout))
        self.parts = self._shards

    def place(self, policy: Any) -> Any:
        return self._shards.sharded(super().place(policy))

    def in_step(self, batch: Batch, micro_batch_prompts: int) -> Iterator[Batch]:
        of_ranks = [list(self._of(rank, batch, micro_batch_prompts)) for rank in range(self.size)]
        yield from of_ranks[self.rank]
        for _ in range(max(map(len, of_ranks)) - len(of_ranks[self.rank])):
            yield _without_tokens(batch)

    def agree(self, attempt: Attempt) -> None:
        self._hear_all(attempt)

    @contextmanager
    def meeting(self, attempt: Attempt) -> Iterator[Meeting]:
        try:
            with super().meeting(attempt) as meeting:
                yield meeting
        except PeerFailed:
            for rank, (_, notes) in self._failed().items():
                attempt.step.recorder.put(notes, rank)
            raise

    def add_up(self, parameters: Sequence[Tensor]) -> None:
        self._shards.take_gradients()  # the backward passes have added them up

    def _report(self, failed: str, notes: Notes, error: Exception) -> None:
        if isinstance(error, RuntimeError) and (why := self._why()):
            raise PeerFailed(why) from error
        self._store.set(f"failed/{self.rank}", pickle.dumps((failed, notes)))

    def _why(self) -> str:
        for rank, (failed, _) in self._failed().items():
            return named(rank, failed)
        return super()._why()

    def _failed(self) -> dict[int, tuple[str, Notes]]:
        """The tracebacks and notes of other ranks that failed."""
        with suppress(RuntimeError):  # the first rank, which keeps the store, is gone
            keys = {rank: f"failed/{rank}" for rank in range(self.size) if rank != self.rank}
            return {rank: pickle.loads(self._store.get(key)) for rank, key in keys.items() if self._store.check([key])}
        return {}


class Shards(Whole):
    """The parts of a policy's weights that one rank has. `attend` does what needs all ranks."""

    def __init__(self, attend: Callable[[Callable[[], Any]], None], group: Any) -> None:
        import torch.distributed as dist

        self._attend, self._group, self._dist = attend, group, dist
        self._rank, self._size = group.rank(), group.size()
        self._given: Any = None
        self._all: list[Any] = []
        self._modules: list[Any] = []
        self._mine: dict[str, torch.nn.Parameter] = {}
        self._of: dict[Tensor, Any] = {}
        """The whole weight, a DTensor, by this rank's part of it."""

    def sharded(self, policy: Any) -> Any:
        """A copy of the policy with this rank's part of each weight; the policy gives its weights away."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        mesh = DeviceMesh.from_group(self._group, policy.device.type)
        _return_freed_memory()
        made, self._given = copy.deepcopy(policy), policy
        self._empty()
        lists = [module for module in made.modules() if isinstance(module, torch.nn.ModuleList)]
        for layer in max(lists, key=len, default=()):
            fully_shard(layer, mesh=mesh)
        fully_shard(made, mesh=mesh)
        self._modules = [module for module in made.modules() if isinstance(module, FSDPModule)]
        for module in self._modules:
            module.set_gradient_divide_factor(1.0)  # gradients are added up, as those of micro-batches are
            module.set_force_sum_reduction_for_comms(True)
        for name, whole in made.named_parameters():
            if whole.requires_grad:
                self._mine[name] = torch.nn.Parameter(whole.detach().to_local())
                self._of[self._mine[name]] = whole
        self._all = list(made.parameters())
        return made

    @contextmanager
    def gathered(self, policy: Any) -> Iterator[None]:
        self._attend(self._gather)
        try:
            yield
        finally:
            for module in self._modules:
                module.reshard()
                module.set_reshard_after_forward(module is not policy, recurse=False)

    def _gather(self) -> None:
        for module in self._modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()

    @contextmanager
    def written(self, policy: Any) -> Iterator[Any]:
        self.give_back()
        try:
            yield self._given
        finally:
            self._empty()

    def give_back(self) -> None:
        for mine, theirs in zip(self._all, self._given.parameters(), strict=True):
            theirs.data = self._whole(mine)

    def _empty(self) -> None:
        """Free the memory of the weights of the policy that was given."""
        for parameter in self._given.parameters():
            parameter.data = parameter.data.new_empty(0)

    def trained(self, policy: Any) -> list[tuple[str, Tensor]]:
        return list(self._mine.items())

    def take_gradients(self) -> None:
        """Give this rank's parts the gradients of the backward passes since the last call."""
        for mine, whole in self._of.items():
            mine.grad = None if whole.grad is None else whole.grad.to_local()
            whole.grad = None

    def total(self, numbers: Tensor) -> Tensor:
        total = numbers.double()
        self._attend(lambda: self._dist.all_reduce(total))
        return total

    def largest(self, number: float) -> float:
        each = torch.zeros(self._size, dtype=torch.float64)
        each[self._rank] = number  # added up, because the largest of numbers may drop a NaN
        return float(self.total(each).max())

    def measured(self, tensors: Sequence[Tensor], norms: Tensor) -> tuple[Tensor, int, float | None]:
        sizes = torch.tensor([float(sum(tensor.numel() for tensor in tensors))], dtype=torch.float64)
        *squares, numel = self.total(torch.cat([norms.double() ** 2, sizes.to(norms.device)]))
        whole = torch.stack(squares).sqrt()
        broken = 0.0
        if not whole.isfinite().all():
            broken = float(self.total(torch.tensor([count_broken(tensors, norms.tolist())], device=norms.device)))
        return whole.to(norms.dtype), int(numel), broken

    def whole(self, trained: Tensor, value: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        like = self._of[trained]
        spread = (like.device_mesh, like.placements)
        return self._whole(DTensor.from_local(value.detach(), *spread, shape=like.shape, stride=like.stride()))

    def _whole(self, value: Any) -> Tensor:
        """All of a DTensor on the first rank, and an empty tensor on the others."""
        found: list[Tensor] = []
        self._attend(lambda: found.append(value.detach().full_tensor()))
        return found[0] if self._rank == 0 else found[0].new_empty(0)

    def part(self, trained: Tensor, value: Tensor) -> Tensor:
        begin = self._rank * math.ceil(len(value) / self._size)
        return value[begin : begin + len(trained)]

    def shape(self, trained: Tensor) -> Sequence[int]:
        return self._of[trained].shape

    def exchange(self, trained: Tensor, other: Tensor) -> Tensor:
        kept = trained.detach().clone()
        with torch.no_grad():
            trained.copy_(other)
            return other.copy_(kept)


def _return_freed_memory() -> None:
    """Let glibc return every freed weight to the system: it would keep more and more of those that layers gather."""
    mmap_threshold, large = -3, 2**17
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(mmap_threshold, large)


def _without_tokens(batch: Batch) -> Batch:
    """A micro-batch of which no token is trained."""
    some = batch.groups(batch.group[:1])
    assert some.weights is not None
    nothing = {"completion_mask": torch.zeros_like(some.completion_mask), "weights": torch.zeros_like(some.weights)}
    return replace(some, **nothing)
