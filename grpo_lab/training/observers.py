"""Observers: interventions that only measure, after the faults and before the guards."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grpo_lab.algorithm.kl import exact as kl_divergence
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.training.interventions import Intervention, Outcome, Step, known


@dataclass(frozen=True)
class MeasureLogRatio(Intervention):
    """Notes the largest log-ratio before any clamp, and begins the token notes."""

    name = "measure_log_ratio"
    stage = Stage.LOG_RATIO

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        seen, use, recorder = value.detach(), step.coefficients, step.recorder
        if step.batch is not None and use is not None:  # a loop that is not this project's has neither
            ends = 1 - use.epsilon, 1 + (use.epsilon if use.epsilon_high is None else use.epsilon_high)
            clip = ends if step.config.loss.surrogate == "clip" else None
            recorder.completions.begin(step.batch, recorder.objective, step.update, seen, clip)
        step.recorder.metric("log_ratio/max", seen.abs().amax(), step.update)
        step.recorder.metric("ratio/max", seen.amax().exp(), step.update)
        return Outcome(value)


@dataclass(frozen=True)
class MeasureGradients(Intervention):
    """Notes the gradients and their norm before any guard touches them: one synchronisation an update."""

    name = "measure_gradients"
    stage = Stage.GRADIENTS

    def __call__(self, value: Any, step: Step) -> Outcome:
        names, gradients = step.recorder.named_gradients(value)
        largest = min((torch.finfo(d).max for d in {g.dtype for g in gradients}), default=torch.inf)
        norms = step.recorder.parameters("gradients", names, gradients, step.update, {"largest_representable": largest})
        step.recorder.metric("grad_norm", norms.norm(), step.update)
        return Outcome(value, replace={"grad_norm": step.recorder.count_now()})


@dataclass(frozen=True)
class MeasureWeights(Intervention):
    """Notes the weights after the update."""

    name = "measure_weights"
    stage = Stage.WEIGHTS

    def __call__(self, value: Any, step: Step) -> Outcome:
        norms = step.recorder.parameters("weights", *step.recorder.named_parameters(value), step.update)
        return Outcome(value, replace={"weight_norms": norms})


Row = tuple[tuple[int, ...], tuple[int, ...]]
"""A completion as its tokens: those of its prompt, -1 where it is padded, and its own."""


def rows_of(batch: Batch) -> list[Row]:
    """Keys of the completions of a batch: rows of the same tokens have the same logits."""
    prompts = batch.prompt_ids.masked_fill(batch.prompt_mask == 0, -1)[batch.group]
    rows, width = torch.cat([prompts, batch.completions], dim=1).tolist(), prompts.shape[1]
    return [(tuple(row[:width]), tuple(row[width:])) for row in rows]


@dataclass(frozen=True)
class MeasureExactKL(Intervention):
    """Notes KL(policy || reference) at the first update, summed over the vocabulary instead of estimated.

    It keeps the reference's (T, V) logits of every completion of the step, and finds them by tokens: a guard or fault
    of the batch may change its rows in between. A batch with a completion that the reference has not seen gets no
    number: the mean over the others would be another one.
    """

    name = "measure_exact_kl"
    stage = Stage.LOGITS
    reference: dict[Row, Tensor] = field(default_factory=dict, init=False, compare=False)
    parts: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False, compare=False)
    """Of each micro-batch its part of the mean, and its trained tokens."""

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        if step.note == "sampling":
            self.reference.clear()
            self.parts.clear()
        elif step.note == "reference":
            self.reference.update(zip(rows_of(known(step.batch, "batch")), value.detach(), strict=True))
        elif step.note == "current" and step.update == 0 and self.reference:
            self._measure(value.detach(), step)
        return Outcome(value)

    def _measure(self, policy: Tensor, step: Step) -> None:
        batch, num_tokens = known(step.batch, "batch"), known(step.num_tokens, "num_tokens")
        seen = [self.reference[row] for row in rows_of(batch) if row in self.reference]
        if len(seen) < len(policy):
            return
        temperature, rows = step.sampling.temperature, []
        for pair in zip(policy, seen, strict=True):  # one by one, so that no second (B, T, V) in fp32 is made
            log_p, log_q = ((logits.float() / temperature).log_softmax(dim=-1) for logits in pair)
            rows.append(kl_divergence(log_p, log_q))
        kl = torch.stack(rows).masked_fill(~batch.completion_mask, 0.0)
        self.parts.append((kl.sum() / num_tokens, batch.completion_mask.sum()))
        if sum(int(tokens) for _, tokens in self.parts) == int(num_tokens):
            for part, _ in self.parts:
                step.recorder.metric("kl/exact", part, step.update)
            self.parts.clear()


OBSERVERS = (MeasureLogRatio, MeasureGradients, MeasureWeights)
