"""Guards: each protects a value at one stage of the step. To add one, write its class here; they are in a step's order.

A guard of a part of the loss that not every algorithm has, as the ratio, is also listed in `config.algorithms.PART_OF`.
"""

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any

import torch
from torch import Tensor

from grpo_lab.config.fields import AtLeast, Between, OneOf
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Coefficients, Outcome, Stage, Verdict
from grpo_lab.errors import Sentence, joined
from grpo_lab.training.interventions import Intervention, ObjectiveCoefficients, Step, exceeds, known, registered

_SPREAD_OF_MAD = 1.4826
"""Median absolute deviation times this is the standard deviation, where the values are normal."""


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
        if memory.get("rollbacks", 0) > self.max_rollbacks:
            reason = Sentence("{:.0f} rollbacks without a healthy step > {}", memory["rollbacks"], self.max_rollbacks)
            return Outcome(value, Verdict.STOP, reason)
        if memory.get("skips", 0) >= self.patience:
            reason = Sentence("{:.0f} refused steps in a row, patience {}", memory["skips"], self.patience)
            return Outcome(value, Verdict.ROLL_BACK, reason)
        level = memory.get("level", 0)
        if not level:
            return Outcome(value)
        lower = value.learning_rate * self.factor**level
        numbers = lower, value.learning_rate, self.factor, level
        reason = Sentence("learning rate {:.3g} = {:.3g} x {:g}^{:.0f} after rollbacks", *numbers)
        return Outcome(replace(value, learning_rate=lower), Verdict.CHANGED, reason)


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
        reason = Sentence("learning rate {:.3g}, step {} of {} of the warm-up", lower, place, self.steps)
        return Outcome(replace(value, learning_rate=lower), Verdict.CHANGED, reason)


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
        reason = Sentence("learning rate {:.3g} = {:.3g} x {:.3g}", lower, value.learning_rate, share)
        reason = Sentence("{}: {}", reason, why) if why else reason
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
        targets = {name: middles.get(name, self.target) for name in value.betas}
        moved = {name: self._moved(name, beta, targets[name], step) for name, beta in value.betas.items()}
        if not any(reason for _, reason in moved.values()):
            return Outcome(value)
        reasons = joined("; ", [Sentence("{}: {}", name, reason) for name, (_, reason) in moved.items() if reason])
        betas = {name: beta for name, (beta, _) in moved.items()}
        return Outcome(replace(value, betas=betas), Verdict.CHANGED, reasons)

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
            return now, Sentence("KL {} is not finite: beta stays {:.3g}", kl, now)
        if factor == 1.0:
            return now, ""
        numbers = now, beta, factor, kl, target
        return now, Sentence("beta {:.3g} = {:.3g} x {:.3g}: KL {:.3g}, target {:g}", *numbers)

    def _within(self, beta: float, factor: float) -> float:
        """The factor, held where beta stays between its limits; 1 is always allowed."""
        return min(max(1.0, self.highest / beta), max(min(1.0, self.lowest / beta), factor))


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
        reason = Sentence("adam_eps {:.3g} < {:.3g} in float16", value.adam_eps, self.at_least)
        return Outcome(replace(value, adam_eps=self.at_least), Verdict.CHANGED, reason)


@dataclass(frozen=True)
class SafeSampling(Intervention):
    """The reported "safe generation": a floor under the temperature, caps on top-p, top-k and length, a penalty.

    Stops: no failure from broken weights, because NaN passes through each of these.
    Costs: variety, and a sampled distribution that differs from the trained one.
    Hides: this mismatch, unless you watch sampling/sampling_logp_difference.
    """

    name = "safe_sampling"
    stage = Stage.SAMPLING
    changes_healthy_runs = "it samples from another distribution"

    min_temperature: Annotated[float, Between(0)] = 0.3
    """Lowest temperature."""
    max_top_p: Annotated[float, Between(0, 1)] = 0.9
    """Highest top_p."""
    top_k: Annotated[int, AtLeast(1)] = 40
    """Most tokens to choose from."""
    repetition_penalty: Annotated[float, Between(0)] = 1.05
    """Lowest repetition penalty."""
    max_completion_length: Annotated[int, AtLeast(1)] = 15
    """Most tokens a completion may have."""

    def __call__(self, value: SamplingConfig, step: Step) -> Outcome:
        safe = replace(
            value,
            temperature=max(value.temperature, self.min_temperature),
            top_p=min(value.top_p, self.max_top_p),
            top_k=min(value.top_k or self.top_k, self.top_k),
            repetition_penalty=max(value.repetition_penalty, self.repetition_penalty),
            max_completion_length=min(value.max_completion_length, self.max_completion_length),
        )
        if safe == value:
            return Outcome(value)
        reason = Sentence("temperature {:g}, top_p {:g}, top_k {}", safe.temperature, safe.top_p, safe.top_k)
        return Outcome(safe, Verdict.CHANGED, reason)


@dataclass(frozen=True)
class CheckProbabilities(Intervention):
    """Checks the next-token probabilities just before `torch.multinomial`, and rolls back instead of crashing.

    Stops: the failed assertion in multinomial, which is an exception on the CPU and ends the process on CUDA.
    Costs: one check per sampled token.
    Hides: nothing; the cause is an earlier broken value, see the trace.
    """

    name = "check_probabilities"
    stage = Stage.PROBABILITIES
    may_roll_back = True

    patience: Annotated[int, AtLeast(0)] = 5
    """Refused steps in a row before the run stops."""

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        lowest, highest, total = torch.stack([value.amin(), value.amax(), value.sum(dim=-1).amin()]).tolist()
        if lowest >= 0 and highest < torch.inf and total > 0:
            return Outcome(value)
        return self.refuse(value, step, _objection(value), Verdict.ROLL_BACK, self.patience, Verdict.STOP)


def _objection(probabilities: Tensor) -> str:
    """The reasons for which torch.multinomial would refuse probabilities (b, V), each with its number of rows."""
    broken = {
        "{} of {} rows of probabilities are not finite": (~probabilities.isfinite()).any(dim=-1),
        "{} of {} rows of probabilities hold a number below 0": (probabilities < 0).any(dim=-1),
        "{} of {} rows of probabilities sum to 0 or less": probabilities.sum(dim=-1) <= 0,
    }
    counts = {what: int(rows.sum()) for what, rows in broken.items()}
    return joined(", ", [Sentence(what, count, len(probabilities)) for what, count in counts.items() if count])


@dataclass(frozen=True)
class SanitizeRewards(Intervention):
    """Treats a reward that is NaN or inf as unscorable: its completion leaves the group's mean and the loss.

    Stops: one broken score from making every advantage of its group NaN. Costs: the completion.
    Hides: a reward function with a bug; read the reasons.
    """

    name = "sanitize_rewards"
    stage = Stage.REWARDS

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        broken = ~value.isfinite()
        count = int(broken.sum())
        if not count:
            return Outcome(value)
        scorable = known(step.scorable, "scorable") & ~broken
        reason = Sentence("{} of {} rewards were not finite", count, value.numel())
        return Outcome(value.masked_fill(broken, 0.0), Verdict.CHANGED, reason, {"scorable": scorable})


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
        reason = Sentence("{} of {} completions were not finite", dropped, len(healthy))
        verdict = Verdict.CHANGED if dropped < len(healthy) else Verdict.SKIP_STEP
        return Outcome(value.rows(healthy.nonzero()[:, 0]), verdict, reason)


def finite_rows(batch: Batch) -> Tensor:
    """(B,) bool: completions whose advantage and log-probabilities are finite wherever they are trained."""
    finite = torch.ones(len(batch.group), dtype=torch.bool, device=batch.group.device)
    for values in (batch.old_logprobs, batch.ref_logprobs, batch.sampling_logprobs):
        if values is not None:
            finite &= (values.isfinite() | ~batch.completion_mask).all(dim=1)
    return finite if batch.advantages is None else finite & batch.advantages.view(len(finite), -1).isfinite().all(1)


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
        reason = Sentence("grad norm {} is not finite", norm)
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
            return Sentence("grad norm {} is not finite", norm)
        logs = remembered(self.memory, self.window)
        if len(logs) < self.warm_up or not norm:
            return ""
        centre = median(logs)
        spread = max(self.least_spread, _SPREAD_OF_MAD * median(abs(log - centre) for log in logs))
        score = (math.log(norm) - centre) / spread
        if score <= self.limit:
            return ""
        most = math.exp(centre + self.limit * spread)
        numbers = score, self.limit, len(logs)
        return Sentence("{}: z-score {:.1f} > {:g} over {} norms", exceeds("grad norm", norm, most), *numbers)


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
        _, parameters = step.recorder.named_parameters(value)
        torch.nn.utils.clip_grads_with_norm_(parameters, self.max_norm, torch.tensor(norm))
        step.recorder.parameters("clipped_gradients", *step.recorder.named_gradients(value), step.update)
        step.recorder.count_now()
        return Outcome(value, Verdict.CHANGED, exceeds("grad norm", norm, self.max_norm))


@dataclass(frozen=True)
class CheckWeights(Intervention):
    """Checks every weight after the update, and goes back to the last snapshot when one is NaN or inf.

    Stops: NaN in the weights that no gradient check can predict, such as fp16 AdamW's 0/0 at a healthy norm.
    Costs: one norm over the weights. Hides: nothing; `then=warn` is the reported check, which only prints.
    """

    name = "check_weights"
    stage = Stage.WEIGHTS
    may_roll_back = True

    max_move: Annotated[float, Between(0)] = math.inf
    """Largest change of any single weight in one step, measured if a snapshot was taken before the step."""
    then: Annotated[str, OneOf("roll_back", "warn")] = "roll_back"
    """The response: go back to the snapshot, or only record it."""
    patience: Annotated[int, AtLeast(0)] = 5
    """Refused steps in a row before the run stops."""

    def __call__(self, value: Any, step: Step) -> Outcome:
        reason = self._objection(step)
        if not reason:
            return Outcome(value)
        if self.then == "warn":
            return Outcome(value, Verdict.KEEP, reason)
        return self.refuse(value, step, reason, Verdict.ROLL_BACK, self.patience, Verdict.STOP)

    def _objection(self, step: Step) -> str:
        finite = known(step.weight_norms, "weight_norms").isfinite()
        if not bool(finite.all()):
            return Sentence("{} of {} weight tensors hold NaN or inf", int((~finite).sum()), len(finite))
        move = step.largest_move() if self.max_move < math.inf else None
        if move is not None and move > self.max_move:
            return Sentence("a weight moved by {:.3g} > {:g}", move, self.max_move)
        return ""


GUARDS = registered(globals())
