"""The updates of a run: AdamW, its coefficients and schedule, the loss scale, and gradients of several objectives."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from grpo_lab.algorithm.combinations import Gradients, cosine
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import OptimizerConfig
from grpo_lab.core import update
from grpo_lab.errors import ModelError
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.training.interventions import Coefficients, ObjectiveCoefficients, Step
from grpo_lab.training.objectives import resolve
from grpo_lab.training.recorder import trained_parameters
from grpo_lab.training.snapshots import Snapshots
from grpo_lab.training.world import ALONE, World

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * min(1.0, done))),
}
"""Learning rate as a factor, from the share of the stage's steps that are over, refused ones too."""


class Updates(update.Updates):
    """The updates of one policy by AdamW, with the gradients of each objective combined.

    Raises ModelError for a policy without a trainable weight.
    """

    snapshots: Snapshots  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, policy: Any, config: Config, world: World = ALONE) -> None:
        trained = trained_parameters(policy)
        if not trained:
            raise ModelError(f"model {config.model.name!r} has no weight that requires a gradient: unfreeze some")
        names, parameters = zip(*trained, strict=True)
        # Settings are those of each update. The fused kernel computes in fp32, which would hide fp16 weights' failures.
        fused = all(p.dtype == torch.float32 for p in parameters) or None  # None: as torch chooses
        optimizer = torch.optim.AdamW(parameters, fused=fused)
        scaler = torch.amp.GradScaler(policy.device.type, enabled=PRECISIONS[config.model.precision].scaler)
        super().__init__(policy, names, parameters, optimizer, scaler, Snapshots(parameters, optimizer))
        self._set_aside: list[Gradients] = []
        self._world = world
        self.configure(config.optimizer)

    def coefficients(self, step: Step) -> Coefficients:
        """The step's coefficients as configured and scheduled, before any guard."""
        config, loss, optimizer = step.config, step.config.loss, step.config.optimizer
        share = (step.index - step.stage_began) / config.run.num_steps
        rate = optimizer.learning_rate * SCHEDULES[optimizer.schedule](share)
        named = [objective for objective in resolve(config) if objective.name]
        betas = {objective.name: objective.beta for objective in named}
        bands = {objective.name: objective.band for objective in named if objective.band}
        general = (rate, loss.beta, loss.epsilon, loss.epsilon_high, optimizer.adam_eps)
        return ObjectiveCoefficients(*general, betas=betas, kl_bands=bands) if named else Coefficients(*general)

    def configure(self, settings: OptimizerConfig) -> None:
        """Take over the settings of AdamW that are not coefficients of a step."""
        for group in self.optimizer.param_groups:
            group["betas"] = (settings.adam_beta1, settings.adam_beta2)
            group["weight_decay"] = settings.weight_decay

    def begin_step(self, index: int) -> None:
        """Take a snapshot if one is due, and forget gradients that a refused step has left."""
        super().begin_step(index)
        self._set_aside = []

    def set_aside(self) -> None:
        """Take one objective's gradients, of all ranks, out of the policy; those of the next one start at zero."""
        self._world.add_up(self.parameters)
        self._set_aside.append([p.grad for p in self.parameters])
        self.optimizer.zero_grad()

    def commit(self, ctx: Step, way: Callable[[Sequence[Gradients]], Gradients]) -> None:
        """Make an update by the combined gradients."""
        self._combine(ctx, way)
        self.make(ctx)

    def _combine(self, ctx: Step, way: Callable[[Sequence[Gradients]], Gradients]) -> None:
        """Give the policy the combined gradients, and note the smallest cosine between two objectives' gradients."""
        ctx.begin_objective(None)
        if pairs := list(itertools.combinations(self._set_aside, 2)):
            smallest = functools.reduce(torch.minimum, [cosine(*pair) for pair in pairs])
            ctx.recorder.metric("gradients/cosine", smallest, ctx.update)
        for parameter, gradient in zip(self.parameters, way(self._set_aside), strict=True):
            parameter.grad = gradient
        self._set_aside = []
