"""Faults of sampling: a wrong temperature, old or corrupt samples, filtered tokens, lost rewards."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from grpo_lab.config.fields import AtLeast
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.training.interventions import AtOneStep, Intervention, Outcome, Step, known


@dataclass(frozen=True)
class IgnoreTemperature(Intervention):
    """Takes the temperature out of the distribution that is sampled from, while log-probabilities keep it.

    This happens if the sampler ignores its parameters. p^T, normalised, is the distribution at temperature 1.
    """

    name = "ignore_temperature"
    stage = Stage.PROBABILITIES

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        temperature = step.sampling.temperature
        if temperature == 1:
            return Outcome(value)
        at_one = value.pow(temperature)
        reason = f"sampled at temperature 1 instead of {temperature:g}"
        return Outcome(at_one / at_one.sum(dim=-1, keepdim=True), Verdict.CHANGED, reason)


@dataclass(frozen=True)
class FilterLogits(Intervention):
    """Sets all but the likeliest logits to -inf in every pass except sampling.

    A sampled token outside has log-probability -inf in two passes, and -inf - (-inf) is NaN. The
    step in which it happens depends on the samples, as in the reports.
    """

    name = "filter_logits"
    stage = Stage.LOGITS

    keep: Annotated[int, AtLeast(1)] = 10
    """Tokens that are kept at each position."""

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        if step.note == "sampling":
            return Outcome(value)
        smallest = value.topk(min(self.keep, value.shape[-1])).values[..., -1:]
        reason = f"all but the {self.keep} likeliest tokens set to -inf"
        return Outcome(value.masked_fill(value < smallest, -torch.inf), Verdict.CHANGED, reason)


@dataclass(frozen=True)
class CorruptSample(AtOneStep):
    """Replaces the tokens of one completion by random ones after its log-probabilities were noted.

    A sample damaged between sampler and trainer looks the same: its log-probabilities belong to other tokens.
    """

    name = "corrupt_sample"
    stage = Stage.BATCH

    def inject(self, value: Batch, step: Step) -> Outcome:
        """Replace the tokens of one row of the batch."""
        generator = self.generator(step)
        row = int(torch.randint(len(value.completions), (1,), generator=generator))
        vocabulary = step.policy.config.vocab_size
        noise = torch.randint(vocabulary, value.completions[row].shape, generator=generator)
        completions = value.completions.clone()
        completions[row] = noise.to(completions.device)
        return Outcome(replace(value, completions=completions), Verdict.CHANGED, f"completion {row} is random tokens")


@dataclass(frozen=True)
class StaleBatch(Intervention):
    """Trains on the batch of some steps ago, with the log-probabilities and advantages it had then.

    An asynchronous trainer does the same when its sampler runs ahead or receives the weights too late.
    """

    name = "stale_batch"
    stage = Stage.BATCH
    queue: list[Batch] = field(default_factory=list, init=False, compare=False)

    lag: Annotated[int, AtLeast(1)] = 8
    """Steps between sampling and training."""

    def __call__(self, value: Batch, step: Step) -> Outcome:
        self.queue.append(value)
        age = len(self.queue) - 1
        oldest = self.queue.pop(0) if age == self.lag else self.queue[0]
        return Outcome(oldest, Verdict.CHANGED, f"trained on the batch of {age} steps ago") if age else Outcome(value)


@dataclass(frozen=True)
class NanReward(AtOneStep):
    """Makes one reward NaN, like a judge that timed out or a score that divides by a length of 0."""

    name = "nan_reward"
    stage = Stage.REWARDS

    def inject(self, value: Tensor, step: Step) -> Outcome:
        """Set one of the rewards (P, G) to NaN."""
        place = int(torch.randint(value.numel(), (1,), generator=self.generator(step)))
        broken = value.clone()
        broken.view(-1)[place] = torch.nan
        return Outcome(broken, Verdict.CHANGED, f"reward {place} of {value.numel()} set to NaN")


@dataclass(frozen=True)
class UnscoredAsZero(Intervention):
    """Gives the reward 0 to each completion that could not be scored, such as one whose judge timed out.

    Where 0 is more than a wrong answer gets, the policy learns the completions that its judge cannot score.
    """

    name = "unscored_as_zero"
    stage = Stage.REWARDS

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        scorable = known(step.scorable, "scorable")
        missing = int((~scorable).sum())
        if not missing:
            return Outcome(value)
        reason = f"{missing} of {value.numel()} completions that could not be scored get 0"
        everything = {"scorable": torch.ones_like(scorable)}
        return Outcome(value.masked_fill(~scorable, 0.0), Verdict.CHANGED, reason, everything)
