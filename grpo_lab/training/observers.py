"""Probes: interventions that only look, after the faults and before the guards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grpo_lab.algorithm.kl import exact as kl_divergence
from grpo_lab.events import Stage
from grpo_lab.training.interventions import Intervention, Outcome, Step
from grpo_lab.training.recorder import named_gradients


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


@dataclass(frozen=True)
class MeasureExactKL(Intervention):
    """Notes KL(policy || reference) at the first update, summed over the vocabulary instead of estimated.

    It keeps the reference's (b, T, V) logits of the step, in the order of its micro-batches.
    """

    name = "measure_exact_kl"
    stage = Stage.LOGITS
    reference: list[Tensor] = field(default_factory=list, init=False, compare=False)

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        if step.note == "sampling":
            self.reference.clear()
        elif step.note == "reference":
            self.reference.append(value.detach())
        elif step.note == "current" and step.update == 0 and self.reference:
            self._measure(value.detach(), self.reference.pop(0), step)
        return Outcome(value)

    def _measure(self, policy: Tensor, reference: Tensor, step: Step) -> None:
        assert step.completion_mask is not None and step.num_tokens is not None
        if len(policy) != len(reference):
            return  # a guard took rows out of the batch in between
        temperature = step.config.sampling.temperature
        log_p, log_q = ((logits.float() / temperature).log_softmax(dim=-1) for logits in (policy, reference))
        kl = kl_divergence(log_p, log_q).masked_fill(~step.completion_mask, 0.0)
        step.recorder.metric("kl/exact", kl.sum() / step.num_tokens, step.update)


PROBES = (MeasureLogRatio, MeasureGradients, MeasureWeights)
