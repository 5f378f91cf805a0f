"""Guards that derive their limits from the run so far."""

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any

from grpo_lab.config.fields import AtLeast, Between
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.training.interventions import (
    Coefficients,
    Intervention,
    ObjectiveCoefficients,
    Outcome,
    Step,
    exceeds,
    known,
)

_SPREAD_OF_MAD = 1.4826
"""Median absolute deviation times this is the standard deviation, where the values are normal."""


def remember(memory: dict[str, float], norm: float, size: int) -> None:
    """Keep the log of a norm in place of the oldest of `size`. A norm of 0 has no log and is not kept."""
    if norm > 0:
        seen = memory.get("seen", 0)
        memory[f"log_norm_{seen % size:.0f}"] = math.log(norm)
        memory["seen"] = seen + 1


def remembered(memory: dict[str, float], size: int) -> list[float]:
    """The logs that `remember` kept, in any order."""
    return [memory[name] for i in range(size) if (name := f"log_norm_{i}") in memory]


@dataclass(frozen=True)
class AdaptiveLearningRate(Intervention):
    """Lowers the learning rate after a step whose norm spiked or whose KL overshot; calm steps bring it back.

    It never raises the rate above the configured one, and never refuses a step.
    Stops: damage from a rate that is up to ten times too high, together with `warm_up` and `max_kl` of 0.3. It acts one
    step late: without a warm-up the first updates at such a rate ruin the policy, and most runs do not recover.
    Costs: slower learning after a false alarm. Hides: a rate that is set too high; read the reasons.
    """

    name = "adaptive_learning_rate"
    stage = Stage.COEFFICIENTS
    changes_healthy_runs = "it lowers the learning rate after an unusual step, and healthy runs have unusual steps too"

    spike: Annotated[float, Between(1)] = 5.0
    """A gradient norm above this many times the median of committed ones is a spike. So is one that is not finite."""
    max_kl: Annotated[float, Between(0)] = 1.0
    """KL to the reference, nats per token, above which the policy has gone too far."""
    factor: Annotated[float, Between(0, 1)] = 0.5
    """The learning rate is multiplied by this after each such step."""
    recovery: Annotated[int, AtLeast(1)] = 20
    """Calm steps after which one factor is undone; each step undoes a share."""
    floor: Annotated[float, Between(0, 1)] = 0.01
    """Smallest share of the configured learning rate."""
    warm_up: Annotated[int, AtLeast(1)] = 5
    """Committed norms needed before the guard judges a norm."""
    window: Annotated[int, AtLeast(1)] = 50
    """Committed norms of which the median is taken."""

    def __call__(self, value: Coefficients, step: Step) -> Outcome:
        why = self._objection(step)
        share = self.memory.get("share", 1.0)
        if why:
            share = max(self.floor, share * self.factor)
        elif step.last_metrics:
            share = min(1.0, share * self.factor ** (-1 / self.recovery))
        self.memory["share"] = share
        if share == 1.0 and not why:
            return Outcome(value)
        lower = value.learning_rate * share
        reason = f"learning rate {lower:.3g} = {value.learning_rate:.3g} x {share:.3g}" + (f": {why}" if why else "")
        return Outcome(replace(value, learning_rate=lower), Verdict.CHANGED, reason)

    def _objection(self, step: Step) -> str:
        """The fault of the step before, or "". Only the norms of committed steps become part of the median."""
        norm, kl = step.last_metrics.get("grad_norm", 0.0), step.last_metrics.get("kl", 0.0)
        logs = remembered(self.memory, self.window)
        limit = self.spike * math.exp(median(logs)) if len(logs) >= self.warm_up else math.inf
        teaches = step.last_metrics.get("frac_reward_zero_std", 0.0) < 1
        if teaches and math.isfinite(norm) and step.last_verdict < Verdict.SKIP_STEP:
            remember(self.memory, norm, self.window)
        if not (math.isfinite(norm) and norm <= limit):
            return exceeds("grad norm", norm, limit)
        return "" if kl <= self.max_kl else exceeds("KL", kl, self.max_kl)


@dataclass(frozen=True)
class AdaptiveBeta(Intervention):
    """Moves beta so that the KL to the reference stays near a target; each objective has a beta and a KL of its own.

    Ziegler et al. 2019, section 2.2: beta <- beta x (1 + gain x clip(KL / target - 1, -0.2, 0.2)), within
    [lowest, highest]. The KL follows beta after a delay, so that this alone swings about its target; `proportional`
    adds a factor (KL / target)^proportional that holds for one step, as in a PI controller. The target of an objective
    with a band is the geometric middle of the band. A KL that is not finite changes nothing; in the plain formula one
    NaN makes beta NaN in every later step.
    Stops: drift from the reference under a beta that is too small. Costs: some reward, because the penalty holds the
    policy back; the guard acts over tens of steps, too slowly for a spike. Hides: the loss of two steps is no longer
    the same function, so their values cannot be compared.
    """

    name = "adaptive_beta"
    stage = Stage.COEFFICIENTS
    changes_healthy_runs = "it moves beta after every step whose KL is not the target"

    target: Annotated[float, Between(0)] = 0.1
    """Target of the KL to the reference, nats per token, where no band is set."""
    gain: Annotated[float, Between(0, 1)] = 0.1
    """Gain of the controller: at 0.1 beta moves by at most 2 % a step."""
    lowest: Annotated[float, Between(0)] = 1e-4
    """Beta never falls below this, unless it is configured there."""
    highest: Annotated[float, Between(0)] = 1.0
    """Beta never rises above this, unless it is configured there."""
    proportional: Annotated[float, AtLeast(0, 4)] = 0.0
    """Power of KL / target, between 1/10 and 10, that multiplies beta for one step; 0 for none."""
    by_objective: bool = True
    """Control each objective's own KL; off, the mean KL moves every beta and bands do not count."""

    def __call__(self, value: Coefficients, step: Step) -> Outcome:
        if not isinstance(value, ObjectiveCoefficients):
            beta, reason = self._moved("", value.beta, self.target, step)
            return Outcome(replace(value, beta=beta), Verdict.CHANGED, reason) if reason else Outcome(value)
        middles = {name: math.sqrt(low * high) for name, (low, high) in value.kl_bands.items() if self.by_objective}
        moved = {
            name: self._moved(name, beta, middles.get(name, self.target), step) for name, beta in value.betas.items()
        }
        if not any(reason for _, reason in moved.values()):
            return Outcome(value)
        reasons = "; ".join(f"{name}: {reason}" for name, (_, reason) in moved.items() if reason)
        return Outcome(
            replace(value, betas={name: beta for name, (beta, _) in moved.items()}), Verdict.CHANGED, reasons
        )

    def _moved(self, objective: str, beta: float, target: float, step: Step) -> tuple[float, str]:
        """Beta as the controller leaves it, and the reason if that is not as configured."""
        if not beta:  # no penalty is configured, and there may be no reference model
            return beta, ""
        measured = step.last_metrics.get(f"kl/{objective}" if objective and self.by_objective else "kl")
        key, last = f"factor {objective}".strip(), f"kl {objective}".strip()
        # With `alternate` the step before may have trained another objective: then its own last KL holds.
        kl = self.memory.get(last, target) if measured is None else measured
        factor = self.memory.get(key, 1.0)
        if measured is not None and math.isfinite(measured):
            error = min(0.2, max(-0.2, kl / target - 1))
            factor = self._within(beta, factor * (1 + self.gain * error))
            self.memory[last] = kl
        self.memory[key] = factor
        if math.isfinite(kl):
            factor = self._within(beta, factor * min(10.0, max(0.1, kl / target)) ** self.proportional)
        now = beta * factor
        if not math.isfinite(kl):
            return now, f"KL {kl} is not finite: beta stays {now:.3g}"
        return (
            now,
            "" if factor == 1.0 else f"beta {now:.3g} = {beta:.3g} x {factor:.3g}: KL {kl:.3g}, target {target:g}",
        )

    def _within(self, beta: float, factor: float) -> float:
        """The factor, held where beta stays between its limits; 1 is always allowed."""
        return min(max(1.0, self.highest / beta), max(min(1.0, self.lowest / beta), factor))


@dataclass(frozen=True)
class SkipOutliers(Intervention):
    """Skips the update when the gradient norm is an outlier among the norms accepted so far.

    It uses the robust z-score of the log norm (Iglewicz and Hoaglin 1993): the distance from the median of the window,
    divided by 1.4826 x the median absolute deviation. It takes the log, because norms vary by factors, and medians,
    because a spike that was accepted during warm-up must not widen the limit for the next one.
    Stops: a spike relative to this run's own norms, if no threshold is known beforehand. Costs: the batch.
    Hides: a slow rise, which the window follows, and a lasting change of scale, which the guard refuses until its
    patience is over and it asks for a rollback.
    """

    name = "skip_outliers"
    stage = Stage.GRADIENTS
    may_roll_back = True

    limit: Annotated[float, Between(0)] = 4.0
    """Largest z-score that is accepted. Small norms are never refused."""
    window: Annotated[int, AtLeast(2)] = 50
    """Accepted norms with which the next norm is compared."""
    warm_up: Annotated[int, AtLeast(2)] = 10
    """Accepted norms needed before the guard judges a norm; until then it refuses only a norm that is not finite."""
    least_spread: Annotated[float, Between(0)] = 0.5
    """Lower limit of the spread of log norm: after equal norms, any other norm would otherwise be an outlier."""
    patience: Annotated[int, AtLeast(0)] = 5
    """Skipped steps in a row before it asks for a rollback."""

    def __call__(self, value: Any, step: Step) -> Outcome:
        norm = known(step.grad_norm, "grad_norm")
        reason = self._objection(norm)
        if reason:
            return self.refuse(value, step, reason, Verdict.SKIP_STEP, self.patience, Verdict.ROLL_BACK)
        if step.advantages is None or bool(step.advantages.any()):  # a batch without gradient has no usual norm
            remember(self.memory, norm, self.window)
        return Outcome(value)

    def _objection(self, norm: float) -> str:
        if not math.isfinite(norm):
            return f"grad norm {norm} is not finite"
        logs = remembered(self.memory, self.window)
        if len(logs) < self.warm_up or not norm:
            return ""
        centre = median(logs)
        spread = max(self.least_spread, _SPREAD_OF_MAD * median(abs(log - centre) for log in logs))
        score = (math.log(norm) - centre) / spread
        if score <= self.limit:
            return ""
        most = math.exp(centre + self.limit * spread)
        return f"{exceeds('grad norm', norm, most)}: z-score {score:.1f} > {self.limit:g} over {len(logs)} norms"
