"""Guards of sampling and rewards."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from grpo_lab.config.fields import AtLeast, Between
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.training.interventions import Intervention, Outcome, Step, known


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
        reason = f"temperature {safe.temperature:g}, top_p {safe.top_p:g}, top_k {safe.top_k}"
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
        "are not finite": (~probabilities.isfinite()).any(dim=-1),
        "hold a number below 0": (probabilities < 0).any(dim=-1),
        "sum to 0 or less": probabilities.sum(dim=-1) <= 0,
    }
    counts = {what: int(rows.sum()) for what, rows in broken.items()}
    size = len(probabilities)
    return ", ".join(f"{n} of {size} rows of probabilities {what}" for what, n in counts.items() if n)


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
        reason = f"{count} of {value.numel()} rewards were not finite"
        return Outcome(value.masked_fill(broken, 0.0), Verdict.CHANGED, reason, {"scorable": scorable})
