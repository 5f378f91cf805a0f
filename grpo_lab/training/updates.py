"""The updates of a run: AdamW, its coefficients and schedule, and the loss scale."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from grpo_lab.config.schema import Config
from grpo_lab.config.sections import OptimizerConfig
from grpo_lab.core.hooks import Context, Stage, Verdict
from grpo_lab.core.update import Updates
from grpo_lab.errors import ModelError, Sentence
from grpo_lab.events import LinkNote
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.training.interventions import Arrangement, Coefficients, ObjectiveCoefficients, Step
from grpo_lab.training.objectives import resolve
from grpo_lab.training.recorder import trained_parameters
from grpo_lab.training.snapshots import Snapshots, interval

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * min(1.0, done))),
}
"""Learning rate as a factor, from the share of the stage's steps that are over, refused ones too."""


class RecordedUpdates(Updates):
    """The updates of a run, whose moments the recorder notes, and the snapshots that a rollback restores.

    `names` and `parameters` are those of the trained weights. `count`: updates made so far, in the weights as they are.
    """

    def __init__(self, policy: Any, trained: Mapping[str, Tensor], optimizer: Optimizer) -> None:
        super().__init__(policy, optimizer)
        self.names, self.parameters = tuple(trained), tuple(trained.values())
        self.num_parameters = sum(p.numel() for p in self.parameters)
        self.snapshots, self.count, self.healthy = Snapshots(self.parameters, optimizer), 0, True
        self._moved: tuple[tuple[int, int], float | None] = (-1, 0), None

    def take_snapshots(self, every: int, interventions: Arrangement) -> None:
        """Take snapshots so often from now on; 0: as the size of the model and these interventions ask for it."""
        may_roll_back = any(each.may_roll_back for row in interventions.values() for _, each in row)
        self.snapshots.every = interval(every, self.num_parameters, may_roll_back)

    def begin_step(self, index: int) -> None:
        """Take a snapshot if one is due and the weights are healthy."""
        self.committed = 0
        if self.healthy:
            self.snapshots.take(index, self.count)

    def end_step(self, verdict: Verdict, links: Sequence[LinkNote]) -> LinkNote | None:
        """Carry out the step's verdict; return the note of its last weights, None where no update was made.

        Raises RunError for a rollback where no snapshot was taken.
        """
        weights = next((note for note in reversed(links) if note.link == Stage.WEIGHTS), None)
        self.healthy = not weights.broken if weights else self.healthy
        self.optimizer.zero_grad()
        if verdict >= Verdict.ROLL_BACK:
            self.count, self.healthy, self.committed = self.snapshots.restore(), True, 0
        self.count += self.committed
        return weights

    def metrics(self, ctx: Step) -> dict[str, float]:
        """The coefficients as used, the loss scale, and the largest change of a weight, as far as each is known."""
        use, scale, move = ctx.coefficients, self.scale(), ctx.largest_move()
        found = {"learning_rate": use.learning_rate, "beta": use.beta} if use else {}
        if isinstance(use, ObjectiveCoefficients):
            each = {f"beta/{name}": beta for name, beta in use.betas.items()}
            found |= {"beta": statistics.fmean(each.values()), **each}
        found |= {} if scale is None else {"loss_scale": scale}
        return found if move is None else {**found, "weights/max_move": move}

    def begin(self, ctx: Context, update: int) -> None:
        assert isinstance(ctx, Step)
        ctx.grad_norm, ctx.weight_norms = None, None
        super().begin(ctx, update)

    def after(self, ctx: Context) -> None:
        assert isinstance(ctx, Step) and ctx.coefficients is not None
        eps = ctx.coefficients.adam_eps
        ctx.recorder.moments(self.names, self.parameters, self.optimizer, eps, ctx.update)
        super().after(ctx)

    def largest_move(self, index: int) -> float | None:
        """Largest change of any single weight since step `index` began, measured once an update; None if unknown."""
        if self._moved[0] != (index, self.committed):
            self._moved = (index, self.committed), self.snapshots.largest_move(index)
        return self._moved[1]

    def configure(self, settings: OptimizerConfig) -> None:
        """Take over the settings of AdamW that are not coefficients of a step."""
        for group in self.optimizer.param_groups:
            group["betas"] = (settings.adam_beta1, settings.adam_beta2)
            group["weight_decay"] = settings.weight_decay

    def scale(self) -> float | None:
        """The factor of the loss; None where it is not scaled."""
        return None


class ScaledUpdates(RecordedUpdates):
    """Updates by gradients of a scaled loss, for fp16: torch's GradScaler leaves out one with inf gradients."""

    def __init__(self, policy: Any, trained: Mapping[str, Tensor], optimizer: Optimizer, scaler: GradScaler) -> None:
        super().__init__(policy, trained, optimizer)
        self.scaler, self._unscaled = scaler, False

    def before(self, ctx: Context) -> None:
        self.scaler.unscale_(self.optimizer)
        self._unscaled = True
        super().before(ctx)

    def make(self, ctx: Context) -> None:
        self.before(ctx)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self._update_scale()
        if self.scaler.get_scale() < scale:
            reason = Sentence("inf at loss scale {:g}; update left out", scale)
            ctx.act("grad_scaler", Stage.GRADIENTS, Verdict.CHANGED, reason)
            ctx.apply(Stage.WEIGHTS, self.policy)
        else:
            self.after(ctx)

    def end_step(self, verdict: Verdict, links: Sequence[LinkNote]) -> LinkNote | None:
        if self._unscaled:  # a guard refused the update
            self._update_scale()
        return super().end_step(verdict, links)

    def _update_scale(self) -> None:
        self.scaler.update()
        self._unscaled = False

    def scale(self) -> float | None:
        return self.scaler.get_scale()


def adamw(policy: Any, config: Config, interventions: Arrangement) -> RecordedUpdates:
    """The updates of a policy by AdamW, with snapshots. Raises ModelError for a policy without a trainable weight."""
    trained = dict(trained_parameters(policy))
    if not trained:
        raise ModelError(f"model {config.model.name!r} has no weight that requires a gradient: unfreeze some")
    # Settings are those of each update. The fused kernel computes in fp32, which would hide fp16 weights' failures.
    fused = all(p.dtype == torch.float32 for p in trained.values()) or None  # None: as torch chooses
    optimizer = torch.optim.AdamW(trained.values(), fused=fused)
    if PRECISIONS[config.model.precision].scaler:
        updates = ScaledUpdates(policy, trained, optimizer, GradScaler(policy.device.type))
    else:
        updates = RecordedUpdates(policy, trained, optimizer)
    updates.configure(config.optimizer)
    updates.take_snapshots(config.run.snapshot_every, interventions)
    return updates


def usual_coefficients(config: Config, done: int) -> Coefficients:
    """The coefficients of a step as configured and scheduled, before any guard, after `done` steps of its stage."""
    loss, optimizer = config.loss, config.optimizer
    rate = optimizer.learning_rate * SCHEDULES[optimizer.schedule](done / config.run.num_steps)
    usual = Coefficients(rate, loss.beta, loss.epsilon, loss.epsilon_high, optimizer.adam_eps)
    if not config.objectives:
        return usual
    objectives = resolve(config)
    betas = {objective.name: objective.beta for objective in objectives}
    bands = {objective.name: objective.band for objective in objectives if objective.band}
    return ObjectiveCoefficients(**asdict(usual), betas=betas, kl_bands=bands)
