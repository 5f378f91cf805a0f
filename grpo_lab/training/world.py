"""The processes that train one policy together: each has a share of a step's prompts, and the same weights.

A rank is a micro-batch that is computed elsewhere. All ranks know the whole batch, so that advantages, token weights
and guards of whole batches are those of one process, on each of them; the ranks share sampling, the passes without
gradient and the backward passes, and add up their gradients. Nothing else imports `torch.distributed`.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from grpo_lab.algorithm.batch import Batch
from grpo_lab.errors import RunError
from grpo_lab.events import Action
from grpo_lab.training.attempt import Attempt, Refused
from grpo_lab.training.recorder import Notes

T = TypeVar("T")
Rows = TypeVar("Rows", Sequence[Any], Tensor)
BUCKET = 2**22
"""Elements of gradients that are added up at once, so that no second copy of all gradients is made."""
SHORTEST, LONGEST = 0.0002, 0.02
"""Seconds after which a rank that waits for the first one asks again."""


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
    def meeting(self, attempt: Attempt) -> Iterator[Meeting]:
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

    def give(self, tensors: Sequence[Tensor]) -> None:
        """Give all ranks the first one's values of these tensors."""


ALONE = World()


class _Told(NamedTuple):
    """The words of one rank at the end of a block."""

    said: Any
    actions: Sequence[Action]
    notes: Notes
    refused: bool
    failed: str


class Processes(World):
    """Several processes, connected by a store of `torch.distributed`; `lost` explains why one does not answer.

    Raises RunError where not all of them come within the time.
    """

    def __init__(self, store: Any, rank: int, size: int, minutes: float, lost: Callable[[], str] = str) -> None:
        import torch.distributed as dist

        self.rank, self.size, self._store, self._lost, self._told = rank, size, store, lost, 0
        timeout = timedelta(minutes=minutes)
        self._await_all(timeout)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        self._dist = dist

    def _await_all(self, timeout: timedelta) -> None:
        """Wait until every rank has come to the store."""
        deadline = time.monotonic() + timeout.total_seconds()
        self._store.set(f"here/{self.rank}", "")
        for rank in range(self.size):
            try:
                self._store.wait([f"here/{rank}"], timedelta(seconds=max(0.001, deadline - time.monotonic())))
            except RuntimeError as error:
                raise RunError(
                    f"process {rank} of {self.size} did not come within {timeout.total_seconds() / 60:g} minutes "
                    f"(run.peer_minutes); {self._lost() or 'is it started, and does it reach the first one?'}"
                ) from error

    def close(self) -> None:
        """Leave the others."""
        self._dist.destroy_process_group()

    def own(self, batch: Batch, micro_batch_prompts: int) -> Iterator[Batch]:
        part = batch.groups(self.share(torch.arange(len(batch.prompt_ids), device=batch.group.device)))
        if len(part.group):
            yield from part.split(micro_batch_prompts)

    def share(self, rows: Rows) -> Rows:
        begin, end = (rank * len(rows) // self.size for rank in (self.rank, self.rank + 1))
        return rows[begin:end]

    def with_first(self, rows: Sequence[T]) -> Sequence[T]:
        return () if self.rank else rows

    @contextmanager
    def meeting(self, attempt: Attempt) -> Iterator[Meeting]:
        meeting, recorder = Meeting(), attempt.step.recorder
        before, mark, error = len(attempt.actions), recorder.mark(), None
        try:
            yield meeting
        except Exception as raised:
            error = raised
        if error and not isinstance(error, Refused):
            readable = attempt.step.policy.device.type == "cpu"  # nothing is, after a device-side assert
            notes = recorder.take(mark) if readable else Notes((), ())
            self._exchange(_Told(None, (), notes, False, "".join(traceback.format_exception(error))))
            recorder.put(notes, self.rank)
            raise error
        said, refused = moved(meeting.said, "cpu"), error is not None
        heard = self._exchange(_Told(said, attempt.actions[before:], recorder.take(mark), refused, ""))
        del attempt.actions[before:]
        for rank, each in enumerate(heard):
            attempt.actions += [replace(action, reason=f"rank {rank}: {action.reason}") for action in each.actions]
            recorder.put(each.notes, rank)
        attempt.verdict = max([attempt.verdict, *(action.verdict for action in attempt.actions)])
        for rank, each in enumerate(heard):
            if each.failed:
                raise PeerFailed(f"rank {rank}: {each.failed.strip().splitlines()[-1]}\n{each.failed}")
        if any(each.refused for each in heard):
            raise Refused
        meeting.heard = [moved(each.said, attempt.step.policy.device) for each in heard]

    def _exchange(self, told: _Told) -> list[_Told]:
        heard: list[Any] = [None] * self.size
        try:
            self._dist.all_gather_object(heard, told)
        except RuntimeError as error:
            raise PeerFailed(f"another process does not answer: {self._lost() or error}") from error
        return heard

    def hear(self, make: Callable[[], T]) -> T:
        key, self._told = f"told/{self._told}", self._told + 1
        if self.rank == 0:
            return self._tell(key, make)
        value, failed = pickle.loads(self._wait(key))
        if self._store.add(f"{key}/read", 1) == self.size - 1:
            self._store.delete_key(key)
            self._store.delete_key(f"{key}/read")
        if failed:
            raise PeerFailed(f"rank 0: {failed.strip().splitlines()[-1]}\n{failed}")
        return value

    def _tell(self, key: str, make: Callable[[], T]) -> T:
        try:
            value = make()
        except BaseException as error:  # an interrupt too: the others must not wait
            self._store.set(key, pickle.dumps((None, "".join(traceback.format_exception(error)))))
            raise
        self._store.set(key, pickle.dumps((value, "")))
        return value

    def _wait(self, key: str) -> bytes:
        """The value of a key, once it is there. Raises PeerFailed where the store, and so the first rank, is gone."""
        pause = SHORTEST
        try:
            while not self._store.check([key]):
                time.sleep(pause)
                pause = min(2 * pause, LONGEST)
            return self._store.get(key)
        except RuntimeError as error:
            raise PeerFailed(f"rank 0 does not answer: {self._lost() or error}") from error

    @torch.no_grad()
    def add_up(self, parameters: Sequence[Tensor]) -> None:
        anywhere = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        self._reduce(anywhere)
        found: list[Tensor] = []
        for parameter, there in zip(parameters, anywhere.tolist(), strict=True):
            if there:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                found.append(parameter.grad)
        for bucket in _buckets(found):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            self._reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def give(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            self._dist.broadcast(tensor.detach(), src=0)

    def _reduce(self, values: Tensor) -> None:
        """Add up values over all ranks, in place. A NaN on one of them is a NaN in the sum."""
        try:
            self._dist.all_reduce(values)
        except RuntimeError as error:
            raise PeerFailed(f"another process does not answer: {self._lost() or error}") from error


def new_store(port: int = 0) -> Any:
    """The store by which the processes of this machine meet: a new one, or the one behind this port."""
    import torch.distributed

    distributed: Any = torch.distributed
    return distributed.TCPStore("127.0.0.1", port, is_master=not port, wait_for_workers=False)


def launchers_store() -> tuple[Any, int]:
    """The store of the processes that `torchrun` has started, on any number of machines, and the rank of this one."""
    import torch.distributed

    distributed: Any = torch.distributed
    store, rank, _ = next(distributed.rendezvous("env://"))
    return distributed.PrefixStore("grpo_lab", store), rank


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield neighbours of one type that hold BUCKET elements together, or the one that starts with more."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        size = sum(each.numel() for each in bucket)
        if bucket and (size + tensor.numel() > BUCKET or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def moved(value: Any, device: torch.device | str) -> Any:
    """The same nested values with every tensor on this device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Batch):
        return replace(value, **{each.name: moved(getattr(value, each.name), device) for each in fields(value)})
    if isinstance(value, Mapping):
        return {name: moved(each, device) for name, each in value.items()}
    return [moved(each, device) for each in value] if isinstance(value, list) else value
