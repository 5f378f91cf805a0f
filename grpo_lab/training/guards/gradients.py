"""Guards of the gradients: the last stage at which an update can be refused before it changes the weights."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from grpo_lab.config.fields import AtLeast, Between
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.training.interventions import Intervention, Outcome, Step, exceeds, known


@dataclass(frozen=True)
class SkipNonfinite(Intervention):
    """Skips the update when the gradient norm is NaN or inf.

    Stops: NaN in the weights, for every cause of a NaN gradient. Costs: the batch. Hides: a lasting cause; a run that
    skips every step learns nothing, so after its patience the guard asks for a rollback.
    """

    name = "skip_nonfinite"
    stage = Stage.GRADIENTS
    may_roll_back = True

    patience: Annotated[int, AtLeast(0)] = 5
    """Skipped steps in a row before it asks for a rollback."""

    def __call__(self, value: Any, step: Step) -> Outcome:
        norm = known(step.grad_norm, "grad_norm")
        if math.isfinite(norm):
            return Outcome(value)
        reason = f"grad norm {norm} is not finite"
        return self.refuse(value, step, reason, Verdict.SKIP_STEP, self.patience, Verdict.ROLL_BACK)


@dataclass(frozen=True)
class SkipSpikes(Intervention):
    """Skips the update when the gradient norm, before clipping, is above a threshold.

    Stops: a finite explosion, whose direction clipping would keep. Costs: the batch.
    Hides: norms that are always above the threshold; such a run learns nothing, so after its patience the guard asks
    for a rollback. The reports wrote `if norm > 10: skip`, which makes the step at NaN because `nan > 10` is False;
    `nan_passes` does the same.
    """

    name = "skip_spikes"
    stage = Stage.GRADIENTS
    may_roll_back = True

    threshold: Annotated[float, Between(0)] = 10.0
    """Largest gradient norm that is accepted."""
    patience: Annotated[int, AtLeast(0)] = 20
    """Skipped steps in a row before it asks for a rollback."""
    nan_passes: bool = False
    """Compare as the reports do, so that NaN counts as small."""

    def __call__(self, value: Any, step: Step) -> Outcome:
        norm = known(step.grad_norm, "grad_norm")
        if norm <= self.threshold or (self.nan_passes and math.isnan(norm)):
            return Outcome(value)
        reason = exceeds("grad norm", norm, self.threshold)
        return self.refuse(value, step, reason, Verdict.SKIP_STEP, self.patience, Verdict.ROLL_BACK)


@dataclass(frozen=True)
class ClipGradients(Intervention):
    """Scales all gradients so that their norm is at most max_norm (torch's clip_grad_norm_).

    Stops: large steps of plain SGD, and a spike that would raise Adam's second moment for thousands of steps.
    It does not stop a step in the direction of a finite explosion, nor NaN: one NaN gradient makes all of them NaN.
    Costs: nothing below max_norm. Hides: how large the norm was, unless it is logged before clipping.
    """

    name = "clip_gradients"
    stage = Stage.GRADIENTS
    changes_healthy_runs = "it scales gradients whose norm is above max_norm; a limit above every norm changes nothing"

    max_norm: Annotated[float, Between(0)] = 1.0
    """Largest norm of all gradients together."""

    def __call__(self, value: Any, step: Step) -> Outcome:
        norm = known(step.grad_norm, "grad_norm")
        if norm <= self.max_norm:
            return Outcome(value)
        torch.nn.utils.clip_grads_with_norm_(
            step.recorder.named_parameters(value)[1], self.max_norm, torch.tensor(norm)
        )
        step.recorder.parameters("clipped_gradients", *step.recorder.named_gradients(value), step.update)
        step.recorder.count_now()
        return Outcome(value, Verdict.CHANGED, exceeds("grad norm", norm, self.max_norm))
