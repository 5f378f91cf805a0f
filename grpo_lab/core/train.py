"""GRPO, a step on one page (DeepSeekMath, https://arxiv.org/abs/2402.03300).

    sample a group of completions for each prompt, and score them
    advantage = (reward - mean of its group) / standard deviation of its group
    for each of mu updates: minimise  -min(ratio A, clip(ratio) A) + beta KL(policy || reference)

`Trainer.step` is the algorithm; each line of it calls the code that runs by default. Subclasses outside of this folder
replace a method for what a run may want beside this (training/variants.py): vocabularies above 4,096, filters, half
precision, more draws, KL taken from rewards, advantages of tokens, two turns, several goals, several processes.
training/state.py makes the trainer from a config, and catches Refused. Left out altogether: vLLM, asynchronous
sampling, replay, activations that are computed twice to save memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_lab.core.advantages import group_advantages
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Coefficients, Context, Sampling, Stage
from grpo_lab.core.logprobs import Pass, completion_logprobs, shared_pass
from grpo_lab.core.loss import LossInputs, LossOutput, grpo_loss, token_weights
from grpo_lab.core.sample import Distribution, sample, tempered
from grpo_lab.core.update import Updates


class Prompts(Protocol):
    """The P prompts of a draw, and the rewards of their completions: `TaskPrompts` in training/environment.py."""

    encoded: tuple[Tensor, Tensor]
    """(P, S) token ids, padded on the left, and their mask."""
    generator: torch.Generator
    """The generator of the draws of their completions."""

    def judge(self, batch: Batch) -> None:
        """Begin to judge completions; slow judges work on meanwhile."""

    def rewards(self, ctx: Context) -> tuple[Tensor, Tensor]:
        """Wait for the rewards (P, G), and (P, G) bool that is False for a reward of None (tasks/rewards.py)."""
        ...


@dataclass(kw_only=True)
class Trainer:
    """A policy, the updates of its weights, and the settings of GRPO."""

    policy: Any
    """The causal language model that is trained."""
    updates: Updates
    prompts: Callable[[Context, int], Prompts]
    """From a step, and the number of the draw in it, to its prompts."""
    sampling: Sampling
    ends: Tensor
    """(E,) ids of the tokens that end a completion."""
    pad: int
    num_generations: int
    num_iterations: int = 1
    """mu: updates by each batch."""
    micro_batch_prompts: int = 0
    """Prompts of one forward and backward pass; 0 for as many as `batch.AT_ONCE` tokens allow."""
    aggregation: str = "token"
    reference: AbstractContextManager[None] | None = None
    """Within it the policy has the reference's weights (training/reference.py); None without a KL penalty.
    training/state.py makes it when the run's stage of GRPO begins."""
    run: Pass = shared_pass
    advantage_fn: Callable[..., Tensor] = group_advantages
    """From rewards (P, G) and `scorable` (P, G) to advantages (P, G); others are in algorithm/advantages.py."""
    loss_fn: Callable[[LossInputs], LossOutput] = grpo_loss

    def step(self, ctx: Context) -> None:
        """One step of GRPO. Raises Refused where a guard refuses the rest."""
        ctx.coefficients = ctx.apply(Stage.COEFFICIENTS, ctx.coefficients)
        prompts, batch = self.rollout(ctx)
        batch, rewards = self.score(ctx, prompts, batch)
        advantages = ctx.apply(Stage.ADVANTAGES, self.advantages(ctx, rewards))
        batch = ctx.apply(Stage.BATCH, self.with_logprobs(ctx, batch, advantages))
        batch = self.weigh(ctx, batch)
        for update in range(self.num_iterations):
            self.updates.begin(ctx, update)
            self.backward(ctx, batch)
            self.updates.make(ctx)

    def rollout(self, ctx: Context, draw: int = 0) -> tuple[Prompts, Batch]:
        """Sample completions of the step's prompts from the policy as it is, and begin to judge them."""
        ctx.sampling = self.sampling
        ctx.sampling = ctx.apply(Stage.SAMPLING, self.sampling)
        prompts = self.prompts(ctx, draw)
        batch = self.sample(ctx, prompts)
        prompts.judge(batch)
        return prompts, batch

    def sample(self, ctx: Context, prompts: Prompts) -> Batch:
        """Draw a group of completions for each prompt."""
        (ids, mask), size, how = prompts.encoded, self.num_generations, self.distribution(ctx, prompts)
        ends, pad, generator = self.ends, self.pad, prompts.generator
        return sample(self.policy, ids, mask, size, ctx.sampling, ends, pad, generator, ctx.apply, how)

    def distribution(self, ctx: Context, prompts: Prompts) -> Distribution:
        """The probabilities that a token is drawn from; training/sampling_filters.py has filters and penalties."""
        return tempered(ctx.sampling.temperature)

    def score(self, ctx: Context, prompts: Prompts, batch: Batch) -> tuple[Batch, Tensor]:
        """The completions and their rewards (P, G); those that no reward function could score are not `scorable`."""
        values, ctx.scorable = prompts.rewards(ctx)
        return batch, ctx.apply(Stage.REWARDS, values)

    def advantages(self, ctx: Context, rewards: Tensor) -> Tensor:
        """Advantages (P, G), before any guard."""
        return self.advantage_fn(rewards, scorable=ctx.scorable)

    def with_logprobs(self, ctx: Context, batch: Batch, advantages: Tensor) -> Batch:
        """The completions that were scored, with their advantages, old and reference log-probabilities.

        Raises Refused where no completion was scored.
        """
        assert ctx.scorable is not None
        batch = replace(batch, advantages=advantages.flatten(), completion_mask=self.trained_tokens(ctx, batch))
        judged = ctx.scorable.flatten().tolist()
        if not any(judged):
            ctx.refuse("trainer", Stage.REWARDS, ctx.unscored)
        rows = torch.tensor([row for row, counts in enumerate(judged) if counts])
        return self.with_old_and_reference(ctx, batch.rows(rows.to(batch.group.device, non_blocking=True)))

    def trained_tokens(self, ctx: Context, batch: Batch) -> Tensor:
        """The tokens (B, T) that are trained: up to and including the end token, as sampling recorded it."""
        return batch.completion_mask

    def with_old_and_reference(self, ctx: Context, batch: Batch) -> Batch:
        """The batch with its log-probabilities (B, T) under the policy that sampled, and under the reference."""
        ref_logprobs = None
        if self.reference is not None:
            with self.reference:
                ref_logprobs = self.all_logprobs(ctx, batch, "reference")
        return replace(batch, old_logprobs=self.old_logprobs(ctx, batch), ref_logprobs=ref_logprobs)

    def old_logprobs(self, ctx: Context, batch: Batch) -> Tensor:
        """Log-probabilities (B, T) that sampling noted; `OtherSampler` of variants.py computes them anew."""
        return batch.sampling_logprobs

    @torch.no_grad()
    def all_logprobs(self, ctx: Context, batch: Batch, note: str) -> Tensor:
        """Log-probabilities (B, T) of the whole batch under the policy as it is, without gradient."""
        return torch.cat([self.logprobs(ctx, ctx.batch, note) for ctx.batch in batch.split(self.micro_batch_prompts)])

    def logprobs(self, ctx: Context, batch: Batch, note: str) -> Tensor:
        """Log-probabilities (b, T) of a micro-batch's tokens under the policy as it is, in nats; 0 outside the mask."""
        states, head = self.run(self.policy, batch)
        logits = ctx.apply(Stage.LOGITS, head(states), note)
        found = completion_logprobs(logits, batch.completions, ctx.sampling.temperature)
        return found.masked_fill(~batch.completion_mask, 0.0)

    def weigh(self, ctx: Context, batch: Batch) -> Batch:
        """The batch with the weight of each token, so that the losses of micro-batches add up to that of the batch."""
        mask = batch.completion_mask
        ctx.num_tokens = mask.sum()  # for the means that are logged; the loss has the weights
        return replace(batch, weights=token_weights(mask, self.aggregation, ctx.sampling.max_completion_length))

    def backward(self, ctx: Context, batch: Batch) -> None:
        """Add up the gradients of the micro-batches."""
        for ctx.batch in batch.split(self.micro_batch_prompts):
            output = self.loss(ctx, ctx.batch)
            ctx.recorder.metrics(output.metrics, ctx.update)
            loss = ctx.apply(Stage.LOSS, output.loss)
            ctx.recorder.metrics({"loss": loss.sum()}, ctx.update)  # a guard may return shape (1,)
            self.accumulate(loss)

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradients of a micro-batch's loss () to those of the ones before."""
        loss.backward()

    def loss(self, ctx: Context, batch: Batch) -> LossOutput:
        """The micro-batch's part of the loss, to be minimised."""
        assert ctx.num_tokens is not None
        found = self.logprobs(ctx, batch, "current")
        return self.loss_fn(LossInputs(ctx, batch, found, ctx.num_tokens, self.coefficients(ctx)))

    def coefficients(self, ctx: Context) -> Coefficients:
        """The step's coefficients of the loss."""
        assert ctx.coefficients is not None
        return ctx.coefficients
