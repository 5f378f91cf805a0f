"""Snapshots: the last healthy weights and moments, in memory, for a rollback."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.errors import RunError
from grpo_lab.training.batches import in_parts

SMALL = 10_000_000
"""Parameters below which a run takes one thread, and a snapshot before every step, even if no guard can roll back."""


def interval(configured: int, num_parameters: int, may_roll_back: bool) -> int:
    """Steps between snapshots, 0 for none: as configured, or by the size of the copy and the need for one.

    >>> interval(0, SMALL - 1, False), interval(0, SMALL, True), interval(0, SMALL, False), interval(3, SMALL, True)
    (1, 10, 0, 3)
    """
    return configured or (1 if num_parameters < SMALL else 10 if may_roll_back else 0)


class Snapshots:
    """The tensors of weights and moments. Learning rate, beta and eps belong to the step: a restore cannot undo them.

    One is taken every `every` steps, the first at once; 0 takes none.
    """

    def __init__(self, parameters: Sequence[Tensor], optimizer: Optimizer, every: int = 0) -> None:
        self._parameters, self._optimizer, self.every = parameters, optimizer, every
        self._kept: dict[tuple[Tensor, str], Tensor] = {}
        self._large = sum(p.numel() for p in parameters) >= SMALL
        self._step, self._updates = -1, 0

    def _state(self) -> dict[tuple[Tensor, str], Tensor]:
        """Weights and moments as they are now, each by its parameter and name."""
        states = self._optimizer.state.items()  # other optimizers keep other values than tensors, too
        moments = {(p, name): value for p, state in states for name, value in state.items()}
        kept = {key: value for key, value in moments.items() if isinstance(value, Tensor)}
        return {(parameter, "weight"): parameter for parameter in self._parameters} | kept

    def due(self, step: int) -> bool:
        """Whether a snapshot is taken before `step`, or none are taken at all."""
        return not (self.every and self._kept and step % self.every)

    @torch.no_grad()
    def take(self, step: int, updates: int) -> None:
        """Copy weights and moments before `step`, which hold this many `updates`, if a snapshot is due."""
        if not self.every or not self.due(step):
            return
        state = self._state()
        self._kept |= {key: self._room(value) for key, value in state.items() if key not in self._kept}
        _copy([self._kept[key] for key in state], list(state.values()))
        self._step, self._updates = step, updates

    def state_dict(self) -> dict[str, Any]:
        """The snapshot that is kept, with tensors by place of their parameter and name; they are shared."""
        places = {parameter: place for place, parameter in enumerate(self._parameters)}
        kept = {f"{places[parameter]}/{name}": value for (parameter, name), value in self._kept.items()}
        return {"step": self._step, "updates": self._updates, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the snapshot of a `state_dict`, if it has one."""
        for key, value in state.get("kept", {}).items():
            place, _, name = key.partition("/")
            kept = self._kept[self._parameters[int(place)], name] = self._room(value)
            kept.copy_(value)
        self._step, self._updates = state.get("step", -1), state.get("updates", 0)

    @torch.no_grad()
    def restore(self) -> int:
        """Put weights and moments back as they were at the last snapshot; return the number of updates in them.

        Raises RunError where none was taken.
        """
        if not self._kept:
            raise RunError(
                "there is no snapshot to go back to: set run.snapshot_every to 1 or more, and in a guard of your own "
                "that answers ROLL_BACK set may_roll_back = True, so that one is taken by itself"
            )
        state = self._state()
        _copy([state[key] for key in self._kept], list(self._kept.values()))
        for key in state.keys() - self._kept.keys():
            state[key].zero_()  # a parameter first updated after the snapshot had no moments then; moments begin at 0
        return self._updates

    @torch.no_grad()
    def largest_move(self, step: int) -> float | None:
        """Largest change of any single weight since `step` began, or None where no snapshot was taken there."""
        if step != self._step:
            return None
        largest: list[Tensor] = []
        for some in in_parts(self._parameters, SMALL):
            before = [self._kept[p, "weight"].to(p.device, non_blocking=True) for p in some]
            moves = torch._foreach_sub(some, before)  # type: ignore[attr-defined]
            torch._foreach_abs_(moves)  # type: ignore[attr-defined]
            largest += torch._foreach_max(moves)  # type: ignore[attr-defined]
        return float(torch.stack(largest).max())

    def _room(self, value: Tensor) -> Tensor:
        """Memory for a copy of a tensor: that of the host for a large model on a GPU, pinned, so that no copy waits."""
        pinned = value.is_cuda and self._large
        return torch.empty_like(value, device="cpu", pin_memory=True) if pinned else torch.empty_like(value)


def _copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors into others of the same shapes: without new memory, and in few kernels."""
    alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}  # one kernel takes tensors of one device and type
    for pair in zip(into, values, strict=True):
        alike.setdefault((pair[0].device, pair[1].device, pair[1].dtype), []).append(pair)
    for pairs in alike.values():
        torch._foreach_copy_(*map(list, zip(*pairs, strict=True)), non_blocking=True)  # type: ignore[attr-defined]
