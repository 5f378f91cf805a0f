"""Faults that damage one value of an otherwise right step."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from grpo_lab.config.fields import Between
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.training.interventions import AtOneStep, Intervention, Outcome, Step


@dataclass(frozen=True)
class DropoutOn(Intervention):
    """Turns dropout on for the differentiable pass alone, as `model.train()` in a training step does.

    The ratio then compares two different networks, and is noise even before the first update. Dropout draws from
    torch's global generator and from nothing else, so this fault seeds that one; the run itself never reads it.
    """

    name = "dropout_on"
    stage = Stage.BATCH

    def __call__(self, value: Batch, step: Step) -> Outcome:
        torch.manual_seed(self.seed(step))
        step.policy.train()
        return Outcome(value, Verdict.CHANGED, "dropout on in the differentiable pass, off in the others")


@dataclass(frozen=True)
class ShiftLogRatio(AtOneStep):
    """Adds a number of nats to the log-ratio of one token: a policy that has drifted that far on it.

    The token belongs to a completion with a positive advantage, so that `min` picks the finite, clipped branch.
    """

    name = "shift_log_ratio"
    stage = Stage.LOG_RATIO

    nats: float = 100.0
    """Added to the log-ratio; above 88.7 (fp32) or 11.09 (fp16) its exp overflows."""

    def inject(self, value: Tensor, step: Step) -> Outcome:
        """Shift the log-ratios (b, T), in nats, at one token."""
        liked = [] if step.advantages is None else (step.advantages > 0).nonzero()[:, 0].tolist()
        if not liked:
            return Outcome(value)
        row = liked[int(torch.randint(len(liked), (1,), generator=self.generator(step)))]
        shift = torch.zeros_like(value)
        shift[row, 0] = self.nats
        return Outcome(value + shift, Verdict.CHANGED, f"log-ratio of completion {row}, token 0: + {self.nats:g} nats")


@dataclass(frozen=True)
class ShiftKLDelta(AtOneStep):
    """Adds a number of nats to ref_logprobs - logprobs of one token: a policy that has almost unlearned it."""

    name = "shift_kl_delta"
    stage = Stage.KL_DELTA

    nats: float = 100.0
    """Added to the difference; above 88.7 (fp32) its exp overflows."""

    def inject(self, value: Tensor, step: Step) -> Outcome:
        """Shift the differences (b, T), in nats, at one token."""
        row = int(torch.randint(len(value), (1,), generator=self.generator(step)))
        shift = torch.zeros_like(value)
        shift[row, 0] = self.nats
        reason = f"reference - policy of completion {row}, token 0: + {self.nats:g} nats"
        return Outcome(value + shift, Verdict.CHANGED, reason)


@dataclass(frozen=True)
class ScaleLoss(Intervention):
    """Multiplies the loss by a loss scale that is never divided out of the gradients again."""

    name = "scale_loss"
    stage = Stage.LOSS

    factor: Annotated[float, Between(0)] = 65536.0
    """The scale; 65536 is where torch's GradScaler begins."""

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        return Outcome(value * self.factor, Verdict.CHANGED, f"loss x {self.factor:g}, and no unscale")


@dataclass(frozen=True)
class NanGradient(AtOneStep):
    """Makes one element of one gradient NaN, as a single broken kernel or sample would."""

    name = "nan_gradient"
    stage = Stage.GRADIENTS

    def inject(self, value: Any, step: Step) -> Outcome:
        """Set one element of one gradient of the policy to NaN."""
        _, gradients = step.recorder.named_gradients(value)
        chosen = gradients[int(torch.randint(len(gradients), (1,), generator=self.generator(step)))]
        chosen.view(-1)[:1] = torch.nan  # of a part, there may be no element
        return Outcome(value, Verdict.CHANGED, f"1 of {sum(g.numel() for g in gradients)} gradients set to NaN")
