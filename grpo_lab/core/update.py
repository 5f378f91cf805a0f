"""An update of the weights, between two stages: guards see the gradients before it and the weights after it.

Clipping is a guard, too (training/guards.py). Where a guard refuses before `optimizer.step()`, weights and
moments stay as they were. After it, SKIP_STEP keeps the update; ROLL_BACK and STOP restore the last snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.core.hooks import Context, Stage, Verdict


class Snapshots(Protocol):
    """Weights and moments to go back to, each with the number of updates that it holds."""

    def take(self, step: int, updates: int) -> None: ...

    def restore(self) -> int: ...

    def largest_move(self, step: int) -> float | None: ...


class Updates:
    """Updates of trained weights by one optimizer. `count`: updates made so far. `committed`: those of this step.

    `scaler` is torch's GradScaler, which does nothing where it is not enabled.
    """

    def __init__(
        self,
        policy: Any,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        optimizer: Optimizer,
        scaler: Any,
        snapshots: Snapshots,
    ) -> None:
        self.policy, self.names, self.parameters = policy, names, parameters
        self.optimizer, self.scaler, self.snapshots = optimizer, scaler, snapshots
        self.num_parameters = sum(p.numel() for p in parameters)
        self.count, self.committed, self.healthy, self._unscaled = 0, 0, True, False
        self._moved: tuple[tuple[int, int], float | None] = (-1, 0), None

    def begin_step(self, index: int) -> None:
        """Take a snapshot if one is due and the weights are healthy."""
        self.committed, self._unscaled = 0, False
        if self.healthy:
            self.snapshots.take(index, self.count)

    def begin(self, ctx: Context, update: int) -> None:
        """Begin an update: no gradient yet, and the step's coefficients in the optimizer."""
        assert ctx.coefficients is not None
        ctx.update, ctx.grad_norm, ctx.weight_norms = update, None, None
        self.optimizer.zero_grad()
        for group in self.optimizer.param_groups:
            group["lr"], group["eps"] = ctx.coefficients.learning_rate, ctx.coefficients.adam_eps

    def make(self, ctx: Context) -> None:
        """Make an update by the gradients that are there. Raises Refused where a guard refuses it, or the step."""
        self.before(ctx)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        made = not self.scaler.get_scale() < scale
        if not made:  # GradScaler (fp16) leaves out an update with inf gradients
            reason = f"inf at loss scale {scale:g}; update left out"
            ctx.act("grad_scaler", Stage.GRADIENTS, Verdict.CHANGED, reason)
        self.after(ctx, made)

    def before(self, ctx: Context) -> None:
        """Let guards see the gradients, unscaled. Raises Refused where one refuses the update."""
        self.scaler.unscale_(self.optimizer)
        self._unscaled = True
        ctx.apply(Stage.GRADIENTS, self.policy)

    def after(self, ctx: Context, made: bool = True) -> None:
        """Count an update that was made, and let guards see the weights. Raises Refused where one refuses the step."""
        self._unscaled = False
        if made:
            self.committed += 1
            assert ctx.coefficients is not None
            eps = ctx.coefficients.adam_eps
            ctx.recorder.moments(self.names, self.parameters, self.optimizer, eps, ctx.update)
        ctx.apply(Stage.WEIGHTS, self.policy)

    def end_step(self, verdict: Verdict, healthy: bool) -> None:
        """Carry out the step's verdict; `healthy` says whether its last weights are finite.

        Raises RunError for a rollback where no snapshot was taken.
        """
        self.healthy = healthy
        self.optimizer.zero_grad()
        if self._unscaled:
            self.scaler.update()
        if verdict >= Verdict.ROLL_BACK:
            self.count, self.healthy, self.committed = self.snapshots.restore(), True, 0
        self.count += self.committed

    def largest_move(self, index: int) -> float | None:
        """Largest change of any single weight since step `index` began, measured once an update; None if unknown."""
        if self._moved[0] != (index, self.committed):
            self._moved = (index, self.committed), self.snapshots.largest_move(index)
        return self._moved[1]
