"""Guards of the coefficients, which act before a step begins."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from grpo_lab.config.fields import AtLeast, Between
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.training.interventions import Coefficients, Intervention, Outcome, Step


@dataclass(frozen=True)
class WarmUp(Intervention):
    """Raises the learning rate linearly over the first steps of a stage.

    Stops: large first moves, while Adam's second moment is still estimated from few gradients.
    Costs: the first steps learn less. Hides: nothing.
    """

    name = "warm_up"
    stage = Stage.COEFFICIENTS
    changes_healthy_runs = "it lowers the learning rate of the first steps"

    steps: Annotated[int, AtLeast(1)] = 10
    """Steps until the full learning rate."""

    def __call__(self, value: Coefficients, step: Step) -> Outcome:
        place = step.index - step.stage_began + 1
        share = place / self.steps
        if share >= 1:
            return Outcome(value)
        lower = value.learning_rate * share
        reason = f"learning rate {lower:.3g}, step {place} of {self.steps} of the warm-up"
        return Outcome(replace(value, learning_rate=lower), Verdict.CHANGED, reason)


@dataclass(frozen=True)
class DualClip(Intervention):
    """Sets delta, which bounds the ratio where `min` does not: at negative advantages (Ye et al. 2020).

    Stops: a finite but huge gradient from one unlikely token. Does not stop 0 * inf: use clamp_log_ratio.
    Costs: nothing while ratios stay below delta. Hides: the distance between the policy and the policy that sampled.
    The guard only sets a coefficient of the loss, so it records no action. It has an effect where ratio/max is above
    delta, on tokens with a negative advantage. A run with smaller ratios, as in a healthy run, is bit-identical.
    """

    name = "dual_clip"
    stage = Stage.COEFFICIENTS

    delta: Annotated[float, Between(1)] = 3.0
    """Largest ratio that counts where the advantage is negative."""

    def __call__(self, value: Coefficients, step: Step) -> Outcome:
        return Outcome(replace(value, delta=self.delta))


@dataclass(frozen=True)
class RepresentableEpsilon(Intervention):
    """Raises AdamW's eps to at least 1e-4 where the weights are fp16.

    Stops: 0/0 in the update. In fp16 the usual 1e-8 rounds to 0 and small squares underflow, so that one step with a
    healthy gradient turns nearly every weight into NaN. With an eps just large enough not to round to 0, weights move
    by 0.9 in one step.
    Costs: smaller moves where gradients are small. Hides: nothing.
    """

    name = "representable_epsilon"
    stage = Stage.COEFFICIENTS

    at_least: Annotated[float, Between(0, 1)] = 1e-4
    """Smallest eps accepted for fp16 weights."""

    def __call__(self, value: Coefficients, step: Step) -> Outcome:
        dtype = next(p for p in step.policy.parameters() if p.requires_grad).dtype
        if dtype != torch.float16 or value.adam_eps >= self.at_least:
            return Outcome(value)
        reason = f"adam_eps {value.adam_eps:.3g} < {self.at_least:.3g} in float16"
        return Outcome(replace(value, adam_eps=self.at_least), Verdict.CHANGED, reason)


@dataclass(frozen=True)
class Rollback(Intervention):
    """Halves the learning rate after each rollback, so that the next attempt differs, and escalates.

    After several skipped steps in a row it asks for a rollback, and after several rollbacks in a row for a stop with
    the last healthy weights. Stops: a run that fails endlessly in the same way. Costs: a slower run for a while.
    Hides: a recurring cause; read the reasons.
    """

    name = "rollback"
    stage = Stage.COEFFICIENTS
    may_roll_back = True

    patience: Annotated[int, AtLeast(1)] = 5
    """Refused steps in a row before the next rollback."""
    max_rollbacks: Annotated[int, AtLeast(1)] = 5
    """Rollbacks without a healthy step between them before the run stops."""
    factor: Annotated[float, Between(0, 1)] = 0.5
    """The learning rate is multiplied by this after each rollback."""
    recovery: Annotated[int, AtLeast(1)] = 20
    """Healthy steps after which one factor is undone."""

    def __call__(self, value: Coefficients, step: Step) -> Outcome:
        memory, last = self.memory, step.last_verdict
        if last == Verdict.ROLL_BACK:
            memory["level"] = memory.get("level", 0) + 1
            memory["rollbacks"] = memory.get("rollbacks", 0) + 1
            memory["skips"] = memory["healthy"] = 0
        elif last == Verdict.SKIP_STEP:
            memory["skips"], memory["healthy"] = memory.get("skips", 0) + 1, 0
        else:
            memory["skips"] = memory["rollbacks"] = 0
            memory["healthy"] = memory.get("healthy", 0) + 1
            if memory["healthy"] % self.recovery == 0:
                memory["level"] = max(0, memory.get("level", 0) - 1)
        return self._answer(value)

    def _answer(self, value: Coefficients) -> Outcome:
        memory = self.memory
        if memory.get("rollbacks", 0) > self.max_rollbacks:
            reason = f"{memory['rollbacks']:.0f} rollbacks without a healthy step > {self.max_rollbacks}"
            return Outcome(value, Verdict.STOP, reason)
        if memory.get("skips", 0) >= self.patience:
            reason = f"{memory['skips']:.0f} refused steps in a row, patience {self.patience}"
            return Outcome(value, Verdict.ROLL_BACK, reason)
        level = memory.get("level", 0)
        if not level:
            return Outcome(value)
        lower = value.learning_rate * self.factor**level
        reason = f"learning rate {lower:.3g} = {value.learning_rate:.3g} x {self.factor:g}^{level:.0f} after rollbacks"
        return Outcome(replace(value, learning_rate=lower), Verdict.CHANGED, reason)
