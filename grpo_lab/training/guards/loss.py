"""Guards of the values in the loss: advantages, logits, log-ratios, KL."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from grpo_lab.config.fields import Between
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.training.interventions import Intervention, Outcome, Step, exceeds


@dataclass(frozen=True)
class _Clamp(Intervention):
    """Clamps a value to ±limit where it is larger. NaN passes through; inf is clamped like any large value."""

    limit: Annotated[float, Between(0)] = 10.0
    """Largest magnitude."""

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        largest = float(value.detach().abs().amax())
        if largest <= self.limit:
            return Outcome(value)
        reason = exceeds(self.stage.replace("_", "-"), largest, self.limit)
        return Outcome(value.clamp(-self.limit, self.limit), Verdict.CHANGED, reason)


@dataclass(frozen=True)
class ClampAdvantages(_Clamp):
    """Clamps advantages to ±limit, as the reports do.

    Stops: nothing in groups of up to 101, since |A| <= (G - 1) / sqrt(G); without scaling, the effect of a
    reward of a thousand. NaN passes through. Costs: nothing. Hides: rewards on a wild scale.
    """

    name = "clamp_advantages"
    stage = Stage.ADVANTAGES


@dataclass(frozen=True)
class ClampLogits(_Clamp):
    """Clamps logits to ±limit in every pass, as the reports do.

    Stops: hardly anything, because log_softmax already subtracts the largest logit; NaN passes through.
    Costs: the gradient of clamped logits, and a changed distribution (GPT-2's own logits pass 100).
    Hides: logits that grow without bound.
    """

    name = "clamp_logits"
    stage = Stage.LOGITS
    limit: Annotated[float, Between(0)] = 100.0
    """Largest magnitude of a logit."""


@dataclass(frozen=True)
class DropNonfiniteSamples(Intervention):
    """Takes completions with a NaN or inf in their advantage or log-probabilities out of the batch.

    It must happen before the differentiable pass: a row masked later still gives NaN gradients in nearly every weight.
    Stops: one corrupt sample. Costs: the sample. Hides: a failing source of samples; read the reasons.
    """

    name = "drop_nonfinite_samples"
    stage = Stage.BATCH

    def __call__(self, value: Batch, step: Step) -> Outcome:
        healthy = finite_rows(value)
        dropped = len(healthy) - int(healthy.sum())
        if not dropped:
            return Outcome(value)
        reason = f"{dropped} of {len(healthy)} completions were not finite"
        verdict = Verdict.CHANGED if dropped < len(healthy) else Verdict.SKIP_STEP
        return Outcome(value.rows(healthy.nonzero()[:, 0]), verdict, reason)


@dataclass(frozen=True)
class ClampLogRatio(_Clamp):
    """Clamps the log-ratio before `exp`, so that the ratio stays finite and its backward is not 0 * inf.

    Stops: the overflow of the ratio; at 5 it is at most 148. At 20 (verl, OpenRLHF) it stops the overflow in fp32 but
    still allows a norm of 1e8. Does not stop the overflow of the KL estimate: use clamp_kl.
    Costs: tokens outside the limit give no gradient.
    Hides: the drift of the policy; watch log_ratio/max, which is recorded before the clamp.
    """

    name = "clamp_log_ratio"
    stage = Stage.LOG_RATIO
    limit: Annotated[float, Between(0)] = 5.0
    """Largest magnitude of a log-ratio, in nats."""


@dataclass(frozen=True)
class ClampKL(_Clamp):
    """Clamps ref_logprobs - logprobs before `exp`, so that the k3 estimator cannot overflow.

    Stops: an infinite KL loss. Costs: the KL penalty no longer pulls tokens outside the limit back. Hides: a policy
    that is so far from its reference.
    """

    name = "clamp_kl"
    stage = Stage.KL_DELTA
    limit: Annotated[float, Between(0)] = 10.0
    """Largest magnitude of the difference, in nats."""


def finite_rows(batch: Batch) -> Tensor:
    """(B,) bool: completions whose advantage and log-probabilities are finite wherever they are trained."""
    finite = torch.ones(len(batch.group), dtype=torch.bool, device=batch.group.device)
    for values in (batch.old_logprobs, batch.ref_logprobs, batch.sampling_logprobs):
        if values is not None:
            finite &= (values.isfinite() | ~batch.completion_mask).all(dim=1)
    return finite if batch.advantages is None else finite & batch.advantages.view(len(finite), -1).isfinite().all(1)
