"""Probes: interventions that only look, after the faults and before the guards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_lab.interventions import Intervention, Outcome, Stage, Step
from grpo_lab.recorder import named_gradients


@dataclass(frozen=True)
class MeasureLogRatio(Intervention):
    """Notes the largest log-ratio before any clamp."""

    name = "measure_log_ratio"
    stage = Stage.LOG_RATIO

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        seen = value.detach()
        step.recorder.metric("log_ratio/max", seen.abs().amax(), step.update)
        step.recorder.metric("ratio/max", seen.amax().exp(), step.update)
        return Outcome(value)


@dataclass(frozen=True)
class MeasureGradients(Intervention):
    """Notes the gradients and their norm before any guard touches them: one synchronisation an update."""

    name = "measure_gradients"
    stage = Stage.GRADIENTS

    def __call__(self, value: Any, step: Step) -> Outcome:
        names, gradients = named_gradients(value)
        facts = {"largest_representable": min((torch.finfo(g.dtype).max for g in gradients), default=torch.inf)}
        norm = step.recorder.parameters("gradients", names, gradients, step.update, facts).norm()
        step.recorder.count_now()
        step.recorder.metric("grad_norm", norm, step.update)
        step.grad_norm = float(norm)
        return Outcome(value)


@dataclass(frozen=True)
class MeasureWeights(Intervention):
    """Notes the weights after the update."""

    name = "measure_weights"
    stage = Stage.WEIGHTS

    def __call__(self, value: Any, step: Step) -> Outcome:
        names, weights = zip(*value.named_parameters(), strict=True)
        step.weight_norms = step.recorder.parameters("weights", names, weights, step.update)
        return Outcome(value)


PROBES = (MeasureLogRatio, MeasureGradients, MeasureWeights)
