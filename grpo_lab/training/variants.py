"""What a run may want beside `core.train`: subclasses of its `Trainer`, each of which replaces a part of a step.

A run's trainer is made of those that its config asks for (`variants`); where it asks for none, a step is the core's.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core import train
from grpo_lab.core.batch import AT_ONCE, Batch
from grpo_lab.core.hooks import Coefficients, Context, Stage, Verdict
from grpo_lab.core.logprobs import completion_logprobs
from grpo_lab.core.loss import LossInputs, LossOutput, k3
from grpo_lab.core.sample import Distribution
from grpo_lab.core.train import Prompts
from grpo_lab.errors import Sentence
from grpo_lab.models.precision import PRECISIONS, autocast
from grpo_lab.training import large_vocabulary, policy_loss, rollouts, routing
from grpo_lab.training.batches import joined, of_groups
from grpo_lab.training.environment import TaskPrompts
from grpo_lab.training.interventions import Arrangement, Step, known
from grpo_lab.training.registry import Formulas
from grpo_lab.training.rollouts import NotedEntropies
from grpo_lab.training.sampling_filters import distribution, is_plain
from grpo_lab.training.updates import RecordedUpdates, ScaledUpdates


@dataclass(kw_only=True)
class ConfiguredTrainer(train.Trainer):
    """The core's trainer with the config that it was made from. It notes rewards, batches and entropies."""

    updates: RecordedUpdates  # pyright: ignore[reportIncompatibleVariableOverride]
    config: Config
    formulas: Formulas
    entropies: NotedEntropies | None = field(default=None, init=False)
    """Those of the tokens that are being sampled."""

    def sample(self, ctx: Context, prompts: Prompts) -> Batch:
        batch = super().sample(ctx, prompts)
        assert self.entropies is not None
        return self.entropies.added(batch)

    def distribution(self, ctx: Context, prompts: Prompts) -> Distribution:
        assert isinstance(ctx, Step)
        drawn_from, ids = self.drawn_from(ctx, prompts), prompts.encoded[0]
        self.entropies = NotedEntropies(drawn_from, ctx.sampling, ids, self.num_generations)
        return self.entropies

    def drawn_from(self, ctx: Context, prompts: Prompts) -> Distribution:
        """The distribution that tokens are drawn from."""
        return super().distribution(ctx, prompts)

    def score(self, ctx: Context, prompts: Prompts, batch: Batch) -> tuple[Batch, Tensor]:
        assert isinstance(ctx, Step) and isinstance(prompts, TaskPrompts)
        batch, rewards = super().score(ctx, prompts, batch)
        ctx.recorder.rewards(rewards, known(ctx.scorable, "scorable"), prompts.number)
        return batch, rewards

    def with_logprobs(self, ctx: Context, batch: Batch, advantages: Tensor) -> Batch:
        assert isinstance(ctx, Step)
        batch = super().with_logprobs(ctx, batch, advantages)
        ctx.recorder.batch(batch, self.ends)
        return batch

    def autocast(self) -> torch.autocast:
        """The run's mixed precision, as a context manager."""
        return autocast(self.config.model.precision, self.policy.device)


class PaidKL(ConfiguredTrainer):
    """Rewards pay for the KL of their completions, and the loss does not (`loss.kl_place=reward`)."""

    def score(self, ctx: Context, prompts: Prompts, batch: Batch) -> tuple[Batch, Tensor]:
        batch, rewards = super().score(ctx, prompts, batch)
        mask = self.trained_tokens(ctx, batch)
        batch = super().with_old_and_reference(ctx, replace(batch, completion_mask=mask))
        if batch.ref_logprobs is None:  # a run with beta 0 loads no reference
            return batch, rewards
        k1 = known(batch.old_logprobs, "old_logprobs") - batch.ref_logprobs  # of each token; its mean is the KL
        penalties = (super().coefficients(ctx).beta * k1).masked_fill(~batch.completion_mask, 0.0)
        return replace(batch, penalties=penalties), rewards - penalties.sum(dim=1).view_as(rewards)

    def with_old_and_reference(self, ctx: Context, batch: Batch) -> Batch:
        return batch  # `score` has done it

    def coefficients(self, ctx: Context) -> Coefficients:
        return replace(super().coefficients(ctx), beta=0.0)


class SubtractedKL(ConfiguredTrainer):
    """The loss pays for the KL, with the wrong sign (`loss.kl_place=subtracted`); guards see beta as it is set."""

    def coefficients(self, ctx: Context) -> Coefficients:
        use = super().coefficients(ctx)
        return replace(use, beta=-use.beta)


class OtherMask(ConfiguredTrainer):
    """Other tokens are trained than those that were sampled (`loss.completion_mask`)."""

    def trained_tokens(self, ctx: Context, batch: Batch) -> Tensor:
        mask, scorable = self.formulas.completion_mask(batch, self.pad), known(ctx.scorable, "scorable").flatten()
        if scorable.any() and not mask[scorable].any():
            ctx.refuse("trainer", Stage.BATCH, Sentence("none of {} completions is trained", len(scorable)))
        return mask


class MicroBatchMean(ConfiguredTrainer):
    """A micro-batch's losses are multiplied by the mask, and divided by its sum (`loss.aggregation=micro_batch`)."""

    def trained_tokens(self, ctx: Context, batch: Batch) -> Tensor:
        return batch.completion_mask

    def weigh(self, ctx: Context, batch: Batch) -> Batch:
        self.aggregation = "token"  # of the whole batch; then each micro-batch takes an equal share
        batch = super().weigh(ctx, batch)
        masks = [self.formulas.completion_mask(part, self.pad) for part in batch.split(self.micro_batch_prompts)]
        own = torch.cat([mask / mask.sum() / len(masks) for mask in masks])  # without a token, 0 / 0
        return replace(batch, weights=own * known(batch.weights, "weights").sum())


class OtherAccumulation(ConfiguredTrainer):
    """Gradients of micro-batches are put together in a wrong way that users have reported (`loss.accumulation`)."""

    def accumulate(self, loss: Tensor) -> None:
        self.formulas.accumulation(loss, self.updates.optimizer)


class ScaledLoss(ConfiguredTrainer):
    """The loss is scaled, so that its gradients do not underflow in fp16; the updates know the scale."""

    def accumulate(self, loss: Tensor) -> None:
        assert isinstance(self.updates, ScaledUpdates)
        super().accumulate(self.updates.scaler.scale(loss))


class DynamicSampling(ConfiguredTrainer):
    """Groups of equal rewards are replaced by groups of further draws (DAPO, eq. 11, https://arxiv.org/abs/2503.14476).

    Where `loss.dynamic_sampling` further draws find too few, the step goes on with fewer groups, and an action says so;
    it is refused where no group has spread.
    """

    def score(self, ctx: Context, prompts: Prompts, batch: Batch) -> tuple[Batch, Tensor]:
        assert isinstance(ctx, Step) and isinstance(prompts, TaskPrompts)
        sampling, limit, draws = ctx.sampling, self.config.loss.dynamic_sampling, 0
        batch, rewards = super().score(ctx, prompts, batch)
        wanted, size = rewards.shape
        found = [_with_spread(ctx, batch, rewards, wanted)]
        while (missing := wanted - sum(len(each) for _, each, _ in found)) and draws < limit:
            draws += 1
            further, batch = self.rollout(ctx, draws)
            batch, rewards = super().score(ctx, further, batch)
            found.append(_with_spread(ctx, batch, rewards, missing))
        ctx.recorder.metric("dynamic_sampling/draws", torch.tensor(float(draws)), prompts.number)
        if missing:
            numbers = wanted - missing, wanted, 1 + draws, wanted * size
            reason = Sentence("{} of {} groups have spread after {} draws of {} completions", *numbers)
            if missing == wanted:
                ctx.refuse("dynamic_sampling", Stage.REWARDS, reason)
            ctx.act("dynamic_sampling", Stage.REWARDS, Verdict.KEEP, reason)
        batches, rows, scorable = zip(*[each for each in found if len(each[1])], strict=True)
        ctx.sampling, ctx.scorable = sampling, torch.cat(scorable)
        return joined(batches), torch.cat(rows)


def _with_spread(ctx: Context, batch: Batch, rewards: Tensor, most: int) -> tuple[Batch, Tensor, Tensor]:
    """The groups whose rewards differ, this many at most, with their rewards and which of those count."""
    assert ctx.scorable is not None
    high, low = (rewards.masked_fill(~ctx.scorable, end) for end in (-torch.inf, torch.inf))
    index = (high.amax(dim=1) > low.amin(dim=1)).nonzero()[:most, 0]
    return of_groups(batch, index), rewards[index], ctx.scorable[index]


class TokenAdvantages(ConfiguredTrainer):
    """Tokens have advantages of their own (`loss.credit_assignment`)."""

    def weigh(self, ctx: Context, batch: Batch) -> Batch:
        return super().weigh(ctx, self.formulas.credit_assignment(batch, self.config.loss.gamma))


class Forks(ConfiguredTrainer):
    """The loss knows the tokens of high entropy (`loss.top_entropy_quantile`), and may reward it (`entropy_coef`)."""

    def weigh(self, ctx: Context, batch: Batch) -> Batch:
        return policy_loss.with_forks(super().weigh(ctx, batch), self.config.loss)


class EntropyBonus(ConfiguredTrainer):
    """The loss rewards the entropy of the forks, for which all logits keep their gradient (`loss.entropy_coef`)."""

    def loss(self, ctx: Context, batch: Batch) -> LossOutput:
        assert ctx.num_tokens is not None
        with self.autocast():
            states, head = self.run(self.policy, batch)
            logits = ctx.apply(Stage.LOGITS, head(states), "current")
            found = completion_logprobs(logits, batch.completions, ctx.sampling.temperature)
        found = found.masked_fill(~batch.completion_mask, 0.0)
        output = self.loss_fn(LossInputs(ctx, batch, found, ctx.num_tokens, self.coefficients(ctx)))
        bonus = policy_loss.entropy_bonus(logits, batch, ctx.sampling.temperature)
        return output._replace(loss=output.loss - self.config.loss.entropy_coef * bonus.to(output.loss.dtype))


class Filters(ConfiguredTrainer):
    """Tokens are drawn after the penalties and filters of `sampling`, or of a guard."""

    def drawn_from(self, ctx: Context, prompts: Prompts) -> Distribution:
        assert isinstance(ctx.sampling, SamplingConfig)
        ids, mask = prompts.encoded
        return distribution(ctx.sampling, ids, mask, self.num_generations, self.policy.config.vocab_size)


class OldWeights(ConfiguredTrainer):
    """Completions are sampled from the weights of the start, those of the reference (`model.sampler_weights`)."""

    def sample(self, ctx: Context, prompts: Prompts) -> Batch:
        assert self.reference is not None
        with self.reference:
            return super().sample(ctx, prompts)


class OtherSampler(ConfiguredTrainer):
    """Compute old log-probabilities by a pass where the sampler's own differ: half precision, filters, other weights.

    On CUDA the kernels that sample are not those that train: the first step of a stage measures the gap.
    """

    def old_logprobs(self, ctx: Context, batch: Batch) -> Tensor:
        assert isinstance(ctx, Step)
        device = self.policy.device
        model = self.config.model
        plain = is_plain(ctx.sampling) and model.sampler_weights == "current" and not ctx.experts
        same = plain and PRECISIONS[model.precision].exact(device)
        if same and (device.type != "cuda" or ctx.index != ctx.stage_began):
            return batch.sampling_logprobs
        old = self.all_logprobs(ctx, batch, "old")
        gap = (old.float() - batch.sampling_logprobs).abs().masked_fill(~batch.completion_mask, 0.0)
        ctx.recorder.metric("sampling/sampling_logp_difference/mean", gap.sum() / batch.completion_mask.sum())
        ctx.recorder.metric("sampling/sampling_logp_difference/max", gap.max())
        return batch.sampling_logprobs if same else old


class Streams(ConfiguredTrainer):
    """Each share of the prompts is sampled with a random stream of its own (`run.streams`), as by several processes."""

    def sample(self, ctx: Context, prompts: Prompts) -> Batch:
        assert isinstance(prompts, TaskPrompts)
        count = self.config.run.streams
        return joined([super(Streams, self).sample(ctx, prompts.share(number, count)) for number in range(count)])


class TwoTurns(ConfiguredTrainer):
    """A tool writes after the policy's first turn, and the policy goes on (`data.tool`)."""

    def sample(self, ctx: Context, prompts: Prompts) -> Batch:
        assert isinstance(prompts, TaskPrompts) and isinstance(ctx.sampling, SamplingConfig)
        whole, one_each = ctx.sampling, replace(self, num_generations=1)

        def draw(ids: Tensor, mask: Tensor) -> Batch:
            rollouts.check_length(self.policy, ids.shape[1], whole.max_completion_length)
            after_tool = copy(prompts)
            after_tool.encoded = ids, mask
            return super(TwoTurns, one_each).sample(ctx, after_tool)

        ctx.sampling = replace(whole, max_completion_length=self.config.data.call_length)
        first, ctx.sampling = super().sample(ctx, prompts), whole
        return prompts.environment.continued(first, prompts.problems, draw)


class Routed(ConfiguredTrainer):
    """Sampling notes the experts that routers choose, and chooses as a fault asks."""

    def sample(self, ctx: Context, prompts: Prompts) -> Batch:
        assert isinstance(ctx, Step)
        return routing.sampled(self.policy, ctx.experts, lambda: super(Routed, self).sample(ctx, prompts))


class HalfPrecision(ConfiguredTrainer):
    """Passes are computed in mixed precision."""

    def sample(self, ctx: Context, prompts: Prompts) -> Batch:
        with self.autocast():
            return super().sample(ctx, prompts)

    def logprobs(self, ctx: Context, batch: Batch, note: str) -> Tensor:
        with self.autocast():
            return super().logprobs(ctx, batch, note)


class LargeVocabulary(ConfiguredTrainer):
    """Logits are made a chunk at a time, where no intervention wants them as a whole."""

    def logprobs(self, ctx: Context, batch: Batch, note: str) -> Tensor:
        assert isinstance(ctx, Step)
        return large_vocabulary.logprobs(self.policy, self.run, batch, ctx, note)


class OwnStep(ConfiguredTrainer):
    """A user's function makes the updates (`loss.step`). Guards see each of them; the KL is measured before them."""

    def step(self, ctx: Context) -> None:
        ctx.coefficients = ctx.apply(Stage.COEFFICIENTS, ctx.coefficients)
        batch, rewards = self.score(ctx, *self.rollout(ctx))
        if not known(ctx.scorable, "scorable").all():
            ctx.refuse("trainer", Stage.REWARDS, ctx.unscored)
        batch = self.with_old_and_reference(ctx, batch)
        assert isinstance(ctx, Step) and batch.ref_logprobs is not None and batch.old_logprobs is not None
        ctx.recorder.batch(batch, self.ends)
        kl = k3(batch.ref_logprobs - batch.old_logprobs).masked_fill(~batch.completion_mask, 0.0)
        ctx.recorder.metric("kl", kl.sum() / batch.completion_mask.sum())
        self.updates.begin(ctx, 0)
        optimizer, own = self.updates.optimizer, known(self.formulas.step, "step")

        def made(*_: Any) -> None:
            self.updates.after(ctx)
            ctx.update += 1

        before = optimizer.register_step_pre_hook(lambda *_: self.updates.before(ctx))
        with before, optimizer.register_step_post_hook(made):
            own(self.policy, optimizer, batch, rewards, self.coefficients(ctx).beta, self.num_iterations)


def variants(config: Config, interventions: Arrangement, policy: Any) -> tuple[type[ConfiguredTrainer], ...]:
    """The variants that a config asks for, from the outermost, which calls the next one by `super()`."""
    loss, precision = config.loss, PRECISIONS[config.model.precision]
    filtered = bool(config.objectives) or Stage.SAMPLING in interventions or not is_plain(config.sampling)
    old = config.model.sampler_weights == "start"
    asked: dict[type[ConfiguredTrainer], bool] = {
        OwnStep: bool(loss.step),
        MicroBatchMean: loss.aggregation == "micro_batch",
        OtherMask: loss.completion_mask != "position",
        PaidKL: loss.kl_place == "reward",
        SubtractedKL: loss.kl_place == "subtracted",
        DynamicSampling: loss.dynamic_sampling > 0,
        TokenAdvantages: loss.credit_assignment != "completion",
        Forks: policy_loss.has_forks(loss),
        EntropyBonus: bool(loss.entropy_coef),
        Filters: filtered,
        OldWeights: old,
        OtherSampler: old or filtered or policy.device.type != "cpu" or not precision.exact(policy.device),
        Streams: config.run.streams > 1 and config.run.processes == 1,
        TwoTurns: bool(config.data.tool),  # inside Streams, whose shares have tools of their own
        Routed: config.model.routing == "replay" or "router_noise" in config.faults,
        HalfPrecision: precision.autocast is not None,
        LargeVocabulary: policy.config.vocab_size * AT_ONCE > large_vocabulary.CHUNK,
    }
    return (*(variant for variant, wanted in asked.items() if wanted), *of_accumulation(config))


def of_accumulation(config: Config) -> tuple[type[ConfiguredTrainer], ...]:
    """The variants of the sum of gradients, which SFT has, too."""
    scaled = PRECISIONS[config.model.precision].scaler
    return (*([ScaledLoss] if scaled else []), *([OtherAccumulation] if config.loss.accumulation != "add" else []))
