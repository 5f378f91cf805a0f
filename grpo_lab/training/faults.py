"""Faults: each harms a value at one stage of the step, the counterpart of the guard that cures it."""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from grpo_lab.config.fields import AtLeast, Between
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.errors import Sentence
from grpo_lab.training.interventions import AtOneStep, Intervention, Outcome, Step, known, registered
from grpo_lab.training.passes import plain_pass


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
        return Outcome(value, Verdict.CHANGED, Sentence("dropout on in the differentiable pass, off in the others"))


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
        reason = Sentence("log-ratio of completion {}, token 0: + {:g} nats", row, self.nats)
        return Outcome(value + shift, Verdict.CHANGED, reason)


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
        reason = Sentence("reference - policy of completion {}, token 0: + {:g} nats", row, self.nats)
        return Outcome(value + shift, Verdict.CHANGED, reason)


@dataclass(frozen=True)
class ScaleLoss(Intervention):
    """Multiplies the loss by a loss scale that is never divided out of the gradients again."""

    name = "scale_loss"
    stage = Stage.LOSS

    factor: Annotated[float, Between(0)] = 65536.0
    """The scale; 65536 is where torch's GradScaler begins."""

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        return Outcome(value * self.factor, Verdict.CHANGED, Sentence("loss x {:g}, and no unscale", self.factor))


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
        reason = Sentence("1 of {} gradients set to NaN", sum(g.numel() for g in gradients))
        return Outcome(value, Verdict.CHANGED, reason)


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
        reason = Sentence("sampled at temperature 1 instead of {:g}", temperature)
        return Outcome(at_one / at_one.sum(dim=-1, keepdim=True), Verdict.CHANGED, reason)


@dataclass(frozen=True)
class RouterNoise(Intervention):
    """Adds noise to the scores by which the routers of a mixture of experts choose, in sampling alone.

    An inference engine with other kernels or another precision chooses other experts for some tokens, too.
    """

    name = "router_noise"
    stage = Stage.SAMPLING

    scale: Annotated[float, Between(0)] = 1.0
    """Standard deviation of the noise; weights of the chosen experts come from the scores without it."""

    def __call__(self, value: SamplingConfig, step: Step) -> Outcome:
        generator = self.generator(step)

        def noisy(number: int, scores: Tensor, own: Tensor) -> Tensor:
            noise = torch.randn(scores.shape, generator=generator).to(scores.device, non_blocking=True)
            return (scores + self.scale * noise).topk(own.shape[-1]).indices

        reason = Sentence("noise of {:g} on router scores", self.scale)
        return Outcome(value, Verdict.CHANGED, reason, {"experts": noisy})


class InTraining(Intervention):
    """An intervention in every pass of the trainer; the sampler is left well."""

    stage = Stage.LOGITS

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        return Outcome(value) if step.note == "sampling" else self.inject(value, step)

    def inject(self, value: Tensor, step: Step) -> Outcome:
        """Answer to the logits (b, t, V) of a pass of the trainer."""
        raise NotImplementedError


@dataclass(frozen=True)
class FilterLogits(InTraining):
    """Sets all but the likeliest logits to -inf in every pass except sampling.

    A sampled token outside has log-probability -inf in two passes, and -inf - (-inf) is NaN. The
    step in which it happens depends on the samples, as in the reports.
    """

    name = "filter_logits"

    keep: Annotated[int, AtLeast(1)] = 10
    """Tokens that are kept at each position."""

    def inject(self, value: Tensor, step: Step) -> Outcome:
        smallest = value.topk(min(self.keep, value.shape[-1])).values[..., -1:]
        reason = Sentence("all but the {} likeliest tokens set to -inf", self.keep)
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
        reason = Sentence("completion {} is random tokens", row)
        return Outcome(replace(value, completions=completions), Verdict.CHANGED, reason)


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
        reason = Sentence("trained on the batch of {} steps ago", age)
        return Outcome(oldest, Verdict.CHANGED, reason) if age else Outcome(value)


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
        return Outcome(broken, Verdict.CHANGED, Sentence("reward {} of {} set to NaN", place, value.numel()))


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
        reason = Sentence("{} of {} completions that could not be scored get 0", missing, value.numel())
        everything = {"scorable": torch.ones_like(scorable)}
        return Outcome(value.masked_fill(~scorable, 0.0), Verdict.CHANGED, reason, everything)


@dataclass(frozen=True)
class PaddedPositions(InTraining):
    """Counts positions from the first column of padding in all passes but sampling, as GPT-2 without `position_ids`."""

    name = "padded_positions"

    more: Annotated[int, AtLeast(0)] = 0
    """Columns of padding before the longest prompt, as in a trainer that pads to a fixed width."""

    def inject(self, value: Tensor, step: Step) -> Outcome:
        with step.policy.register_forward_pre_hook(self.count, with_kwargs=True):
            logits, _ = plain_pass(step.policy, known(step.batch, "batch"))
        return Outcome(logits, Verdict.CHANGED, Sentence("positions count the padding and {} columns more", self.more))

    def count(self, policy: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The arguments of a pass with wrong positions."""
        right = given["position_ids"]
        return args, {**given, "position_ids": torch.arange(right.shape[1], device=right.device)[None] + self.more}


@dataclass(frozen=True)
class LargeActivations(InTraining):
    """Makes what enters the last product of each MLP large, in fp16 inf, and divides the result: the same function."""

    name = "large_activations"

    factor: Annotated[float, Between(0)] = 65536.0
    """A power of 2 changes no other rounding."""

    def inject(self, value: Tensor, step: Step) -> Outcome:
        with ExitStack() as hooks:
            for name, module in step.policy.named_modules():
                if name.endswith(("mlp.c_proj", "mlp.down_proj")):
                    hooks.enter_context(module.register_forward_hook(self.multiply))
            logits, _ = plain_pass(step.policy, known(step.batch, "batch"))
        return Outcome(logits, Verdict.CHANGED, Sentence("activations of the MLPs x {:g}", self.factor))

    def multiply(self, module: Any, args: tuple[Tensor], result: Tensor) -> Tensor:
        """The result of a product by way of larger numbers; its bias, which zeros give, is not divided."""
        bias = module.forward(torch.zeros_like(args[0]))
        return (module.forward(args[0] * self.factor) - bias) / self.factor + bias


FAULTS = registered(globals())
