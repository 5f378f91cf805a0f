"""An update as a transaction: guards see gradients before it and weights after it; refused, it leaves no trace."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.events import LinkNote
from grpo_lab.training.interventions import ObjectiveCoefficients, Step, known
from grpo_lab.training.snapshots import Snapshots


class Transaction:
    """Updates of trained weights by one optimizer. `count` are in the weights, `committed` of them by this step."""

    def __init__(
        self, policy: Any, names: Sequence[str], parameters: Sequence[Tensor], optimizer: Optimizer, scaler: Any
    ) -> None:
        self.policy, self.names, self.parameters = policy, names, parameters
        self.optimizer, self.scaler = optimizer, scaler
        self.num_parameters = sum(p.numel() for p in parameters)
        self.snapshots = Snapshots(parameters, optimizer)
        self.count, self.committed, self.healthy, self._unscaled = 0, 0, True, False
        self._moved: tuple[tuple[int, int], float | None] = (-1, 0), None

    def begin_step(self, index: int) -> None:
        """Take a snapshot if one is due and the weights are healthy."""
        self.committed, self._unscaled = 0, False
        if self.healthy:
            self.snapshots.take(index, self.count)

    def make(self, ctx: Step) -> None:
        """Make an update by the gradients that are there, with stage GRADIENTS before it and WEIGHTS after it.

        Raises Refused where a guard refuses it, or the step after it.
        """
        self.before(ctx)
        self.after(ctx, self._apply(ctx))

    def before(self, ctx: Step) -> None:
        """Let guards see the gradients, unscaled. Raises Refused where one refuses the update."""
        self.scaler.unscale_(self.optimizer)
        self._unscaled = True
        ctx.apply(Stage.GRADIENTS, self.policy)

    def after(self, ctx: Step, made: bool = True) -> None:
        """Count an update that was made, and let guards see the weights. Raises Refused where one refuses the step."""
        self._unscaled = False
        if made:
            self.committed += 1
            self._note_moments(ctx)
        ctx.apply(Stage.WEIGHTS, self.policy)

    def _apply(self, ctx: Step) -> bool:
        """Make an update, and say whether it was made: GradScaler (fp16) leaves out one with inf gradients."""
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        made = not self.scaler.get_scale() < scale
        if not made:
            reason = f"inf at loss scale {scale:g}; update left out"
            ctx.act("grad_scaler", Stage.GRADIENTS, Verdict.CHANGED, reason)
        return made

    def _note_moments(self, ctx: Step) -> None:
        """Note the moments of AdamW; another optimizer has none."""
        eps = known(ctx.coefficients, "coefficients").adam_eps
        facts = {"adam_eps": eps, "adam_eps_in_weights_dtype": float(torch.tensor(eps, dtype=self.parameters[0].dtype))}
        states = [(name, self.optimizer.state.get(p, {})) for name, p in zip(self.names, self.parameters, strict=True)]
        held = [(name, state[of]) for of in ("exp_avg", "exp_avg_sq") for name, state in states if of in state]
        if held:  # a weight without a gradient has no moments
            names, moments = zip(*held, strict=True)
            ctx.recorder.parameters("moments", names, moments, ctx.update, facts)

    def end_step(self, verdict: Verdict, weights: LinkNote | None) -> None:
        """Carry out the step's verdict; `weights` is the note of its last weights, if it had any.

        Raises RunError for a rollback where no snapshot was taken.
        """
        self.healthy = not weights.broken if weights else self.healthy
        self.optimizer.zero_grad()
        if self._unscaled:
            self.scaler.update()
        if verdict >= Verdict.ROLL_BACK:
            self.count = self.snapshots.restore()
            self.healthy, self.committed = True, 0
        self.count += self.committed

    def largest_move(self, index: int) -> float | None:
        """Largest change of any single weight since step `index` began, measured once an update; None if unknown."""
        if self._moved[0] != (index, self.committed):
            self._moved = (index, self.committed), self.snapshots.largest_move(index)
        return self._moved[1]

    def metrics(self, step: Step) -> dict[str, float]:
        """The coefficients as used, the loss scale, and the largest change of a weight, as far as each is known."""
        use, move = step.coefficients, step.largest_move()
        found = {"learning_rate": use.learning_rate, "beta": use.beta} if use else {}
        if isinstance(use, ObjectiveCoefficients):
            each = {f"beta/{name}": beta for name, beta in use.betas.items()}
            found |= {"beta": statistics.fmean(each.values()), **each}
        found |= {"loss_scale": self.scaler.get_scale()} if self.scaler.is_enabled() else {}
        return found if move is None else {**found, "weights/max_move": move}


def last_weights(links: Sequence[LinkNote]) -> LinkNote | None:
    """The note of the weights after the last update of a step; None where it had none."""
    return next((note for note in reversed(links) if note.link == Stage.WEIGHTS), None)
