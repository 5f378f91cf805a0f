"""The updates of a run: AdamW, its coefficients and schedule, and the loss scale."""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from grpo_lab.config.schema import Config
from grpo_lab.config.sections import OptimizerConfig
from grpo_lab.core import update
from grpo_lab.errors import ModelError
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.training.interventions import Coefficients, ObjectiveCoefficients
from grpo_lab.training.objectives import resolve
from grpo_lab.training.recorder import trained_parameters
from grpo_lab.training.snapshots import Snapshots

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * min(1.0, done))),
}
"""Learning rate as a factor, from the share of the stage's steps that are over, refused ones too."""


class AdamWUpdates(update.Updates):
    """The updates of one policy by AdamW.

    Raises ModelError for a policy without a trainable weight.
    """

    snapshots: Snapshots  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, policy: Any, config: Config) -> None:
        trained = trained_parameters(policy)
        if not trained:
            raise ModelError(f"model {config.model.name!r} has no weight that requires a gradient: unfreeze some")
        names, parameters = zip(*trained, strict=True)
        # Settings are those of each update. The fused kernel computes in fp32, which would hide fp16 weights' failures.
        fused = all(p.dtype == torch.float32 for p in parameters) or None  # None: as torch chooses
        optimizer = torch.optim.AdamW(parameters, fused=fused)
        scaler = torch.amp.GradScaler(policy.device.type, enabled=PRECISIONS[config.model.precision].scaler)
        super().__init__(policy, names, parameters, optimizer, scaler, Snapshots(parameters, optimizer))
        self.configure(config.optimizer)

    def configure(self, settings: OptimizerConfig) -> None:
        """Take over the settings of AdamW that are not coefficients of a step."""
        for group in self.optimizer.param_groups:
            group["betas"] = (settings.adam_beta1, settings.adam_beta2)
            group["weight_decay"] = settings.weight_decay


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
