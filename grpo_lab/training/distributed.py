"""Several processes that train one policy: each has the same weights, and a share of a step's prompts.

Each process, a rank, computes some of the micro-batches. All ranks know the whole batch, so that advantages, token
weights and guards of whole batches are those of one process, on each of them; the ranks share sampling, the passes
without gradient and the backward passes, and add up their gradients. Nothing else in the package knows of ranks.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Action, Context, Refused
from grpo_lab.core.train import Prompts
from grpo_lab.errors import RunError, Sentence
from grpo_lab.tasks.judge_pool import TrainerState
from grpo_lab.tasks.tasks import Problem, Tasks
from grpo_lab.training.batches import in_parts, joined, moved, of_groups
from grpo_lab.training.environment import Answer, Environment, TaskPrompts
from grpo_lab.training.objectives import Objective, Rewards
from grpo_lab.training.recorder import Notes, Recorder
from grpo_lab.training.state import Controls, Model, Training
from grpo_lab.training.variants import ConfiguredTrainer

dist: Any = torch.distributed
T = TypeVar("T")
Rows = TypeVar("Rows", Sequence[Any], Tensor)
BUCKET = 2**22
"""Elements of gradients that are added up at once, so that no second copy of all gradients is made."""
SHORTEST, LONGEST = 0.0002, 0.02
"""Seconds after which a rank that waits for the first one asks again."""


class PeerFailed(RuntimeError):
    """Another process failed; the text says which one, and holds its traceback."""


@dataclass
class Block:
    """The results of the ranks' shares of some work: give `mine` in the block, and read `all` after it."""

    mine: Any = None
    all: list[Any] = field(default_factory=list)


class _Told(NamedTuple):
    """The words of one rank at the end of a block."""

    said: Any
    actions: Sequence[Action]
    notes: Notes
    refused: bool
    failed: str


class Processes:
    """Several processes, connected by a store of `torch.distributed`; `lost` explains why one does not answer.

    Raises RunError where not all of them come within the time.
    """

    def __init__(self, store: Any, rank: int, size: int, minutes: float, lost: Callable[[], str] = str) -> None:
        self.rank, self.size, self._store, self._lost, self._told = rank, size, store, lost, 0
        timeout, deadline = timedelta(minutes=minutes), time.monotonic() + 60 * minutes
        store.set(f"here/{rank}", "")
        for each in range(size):
            try:
                store.wait([f"here/{each}"], timedelta(seconds=max(0.001, deadline - time.monotonic())))
            except RuntimeError as error:
                raise RunError(
                    f"process {each} of {size} did not come within {minutes:g} minutes (run.peer_minutes); "
                    f"{lost() or 'is it started, and does it reach the first one?'}"
                ) from error
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)

    def close(self) -> None:
        """Leave the others."""
        dist.destroy_process_group()

    def place(self, policy: Any) -> None:
        """Give the policy the first rank's weights."""
        for tensor in (*policy.parameters(), *policy.buffers()):
            dist.broadcast(tensor.detach(), src=0)

    def own(self, batch: Batch) -> Batch:
        """This rank's share of the prompts with their completions, of which there may be none."""
        return of_groups(batch, self.share(torch.arange(len(batch.prompt_ids), device=batch.group.device)))

    def share(self, rows: Rows) -> Rows:
        """This rank's part of the rows, or of a tensor's; the ranks' parts follow each other."""
        return rows[self.rank * len(rows) // self.size : (self.rank + 1) * len(rows) // self.size]

    @contextmanager
    def together(self, ctx: Context, recorder: Recorder) -> Iterator[Block]:
        """A block in which each rank does its share of a step, and at whose end all hear of each other.

        Then actions, verdict and notes are those of all ranks. Raises Refused on all of them where a guard refused on
        one, and PeerFailed on the others where one failed.
        """
        block, refused, before, mark = Block(), False, len(ctx.actions), recorder.mark()
        try:
            yield block
        except Refused:
            refused = True
        except Exception as error:
            readable = ctx.policy.device.type == "cpu"  # nothing is, after a device-side assert
            notes = recorder.take(mark) if readable else Notes((), ())
            recorder.put(notes, self.rank)
            self._exchange(_Told(None, (), notes, False, "".join(traceback.format_exception(error))))
            raise
        actions = ctx.actions[before:]
        heard = self._exchange(_Told(moved(block.mine, "cpu"), actions, recorder.take(mark), refused, ""))
        del ctx.actions[before:]
        for rank, each in enumerate(heard):
            for action in each.actions:
                ctx.actions.append(replace(action, reason=Sentence("rank {}: {}", rank, action.reason)))
            recorder.put(each.notes, rank)
        ctx.verdict = max([ctx.verdict, *(action.verdict for action in ctx.actions)])
        for rank, each in enumerate(heard):
            if each.failed:
                raise PeerFailed(named(rank, each.failed))
        if any(each.refused for each in heard):
            raise Refused
        block.all = [moved(each.said, ctx.policy.device) for each in heard]

    def _exchange(self, told: _Told) -> list[_Told]:
        heard: list[Any] = [None] * self.size
        self._with_others(lambda: dist.all_gather_object(heard, told))
        return heard

    def _with_others(self, work: Callable[[], Any]) -> None:
        """Do what needs all ranks. Raises PeerFailed where one of them does not answer."""
        try:
            work()
        except RuntimeError as error:
            raise PeerFailed(f"another process does not answer: {self._lost() or error}") from error

    def hear(self, make: Callable[[], T]) -> T:
        """The value that the first rank makes, on all ranks; they wait for it as long as the first one lives.

        Raises PeerFailed on the others where it fails.
        """
        key, self._told = f"told/{self._told}", self._told + 1
        if self.rank == 0:
            try:
                value = make()
            except BaseException as error:  # an interrupt too: the others must not wait
                self._store.set(key, pickle.dumps((None, "".join(traceback.format_exception(error)))))
                raise
            self._store.set(key, pickle.dumps((value, "")))
            return value
        value, failed = pickle.loads(self._wait(key))
        if self._store.add(f"{key}/read", 1) == self.size - 1:
            self._store.delete_key(key)
            self._store.delete_key(f"{key}/read")
        if failed:
            raise PeerFailed(named(0, failed))
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
        """Give each of these parameters the sum of its gradients over all ranks; None where no rank has one."""
        anywhere = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        self._reduce(anywhere)
        found: list[Tensor] = []
        for parameter, there in zip(parameters, anywhere.tolist(), strict=True):
            if there:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                found.append(parameter.grad)
        for bucket in in_parts(found, BUCKET):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            self._reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def _reduce(self, values: Tensor) -> None:
        """Add up values over all ranks, in place. A NaN on one of them is a NaN in the sum."""
        self._with_others(lambda: dist.all_reduce(values))


def named(rank: int, failed: str) -> str:
    """The traceback of a rank, behind a line that names rank and error."""
    return f"rank {rank}: {failed.strip().splitlines()[-1]}\n{failed}"


def new_store(port: int = 0) -> Any:
    """The store by which the processes of this machine meet: a new one, or the one behind this port."""
    return dist.TCPStore("127.0.0.1", port, is_master=not port, wait_for_workers=False)


def launchers_store() -> tuple[Any, int]:
    """The store of the processes that `torchrun` has started, on any number of machines, and the rank of this one."""
    store, rank, _ = next(dist.rendezvous("env://"))
    return dist.PrefixStore("grpo_lab", store), rank


class Shared(ConfiguredTrainer):
    """A trainer whose rank samples, compares and differentiates its share of the prompts."""

    processes: ClassVar[Processes]
    notes: ClassVar[Recorder]

    def sample(self, ctx: Context, prompts: Prompts) -> Batch:
        assert isinstance(prompts, TaskPrompts)
        count = self.config.run.streams or self.processes.size
        with self.processes.together(ctx, self.notes) as block:
            shares = [prompts.share(number, count) for number in self.processes.share(range(count))]
            block.mine = joined([super(Shared, self).sample(ctx, share) for share in shares])
        return joined(block.all)

    def all_logprobs(self, ctx: Context, batch: Batch, note: str) -> Tensor:
        with self.processes.together(ctx, self.notes) as block:
            own = self.processes.own(batch)
            block.mine = super().all_logprobs(ctx, own, note) if len(own.group) else own.sampling_logprobs
        return torch.cat(block.all)

    def backward(self, ctx: Context, batch: Batch) -> None:
        with self.processes.together(ctx, self.notes):
            own = self.processes.own(batch)
            if len(own.group):
                super().backward(ctx, own)
        self.processes.add_up(self.updates.parameters)


@dataclass
class JudgedByTheFirst(Environment):
    """An environment whose completions the first rank judges for all."""

    processes: Processes = field(kw_only=True)

    def judge(
        self, problems: Sequence[Problem], texts: Sequence[str], ids: Sequence[list[int]], now: TrainerState
    ) -> Answer:
        answer: Any = tuple if self.processes.rank else super().judge(problems, texts, ids, now)
        return lambda: self.processes.hear(answer)  # the first rank knows what


class SharedTraining(Training):
    """A run of several processes."""

    def __init__(
        self,
        processes: Processes,
        config: Config,
        model: Model = None,
        tasks: Tasks | None = None,
        rewards: Rewards = None,
    ) -> None:
        self.processes = processes
        super().__init__(config, model, tasks, rewards)

    def prepared(self, model: Model) -> tuple[Any, Any]:
        policy, tokenizer = super().prepared(model)
        self.processes.place(policy)
        return policy, tokenizer

    def asked(self, index: int, controls: Controls) -> tuple[str, ...]:
        return self.processes.hear(lambda: super(SharedTraining, self).asked(index, controls))

    def environment(self, objective: Objective) -> Environment:
        one = super().environment(objective)
        return JudgedByTheFirst(**vars(one), processes=self.processes)

    def made_of(self, *bases: type[ConfiguredTrainer], **constants: Any) -> type[ConfiguredTrainer]:
        return super().made_of(Shared, *bases, processes=self.processes, notes=self.recorder, **constants)
