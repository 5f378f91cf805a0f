"""Snapshots: the last healthy weights and moments, in memory, for a rollback."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.errors import RunError

SMALL = 10_000_000
"""Parameters below which a snapshot is taken before every step, even if no guard can roll back."""


class Snapshots:
    """The tensors of weights and moments. Learning rate, beta and eps belong to the step: a restore cannot undo them.

    One is taken every `every` steps, the first at once; 0 takes none.
    """

    def __init__(self, parameters: Sequence[Tensor], optimizer: Optimizer, every: int = 0) -> None:
        self._parameters, self._optimizer, self.every = parameters, optimizer, every
        self._weights: list[Tensor] = []
        self._moments: dict[Tensor, dict[str, Tensor]] = {}
        self._step, self._updates = -1, 0

    @torch.no_grad()
    def take(self, step: int, updates: int) -> None:
        """Copy weights and moments before `step`, which hold this many `updates`, if a snapshot is due."""
        if not self.every or (self._weights and step % self.every):
            return
        self._weights = [p.detach().clone() for p in self._parameters]
        self._moments = {p: {k: v.clone() for k, v in state.items()} for p, state in self._optimizer.state.items()}
        self._step, self._updates = step, updates

    @torch.no_grad()
    def restore(self) -> int:
        """Put weights and moments back as they were at the last snapshot; return the number of updates in them.

        Raises RunError where none was taken.
        """
        if not self._weights:
            raise RunError(
                "there is no snapshot to go back to: set run.snapshot_every to 1 or more, and in a guard of your own "
                "that answers ROLL_BACK set may_roll_back = True, so that one is taken by itself"
            )
        torch._foreach_copy_([p.data for p in self._parameters], self._weights)  # type: ignore[attr-defined]
        for parameter, state in self._optimizer.state.items():
            kept = self._moments.get(parameter)
            for name, value in state.items():
                # A parameter first updated after the snapshot had no moments then; moments begin at 0.
                value.copy_(kept[name]) if kept else value.zero_()
        return self._updates

    @torch.no_grad()
    def largest_move(self, step: int) -> float | None:
        """Largest change of any single weight since `step` began, or None where no snapshot was taken there."""
        if step != self._step:
            return None
        moves = torch._foreach_sub([p.data for p in self._parameters], self._weights)  # type: ignore[attr-defined]
        torch._foreach_abs_(moves)  # type: ignore[attr-defined]
        return float(torch.stack(torch._foreach_max(moves)).max())  # type: ignore[attr-defined]
