"""The policy's passes over batches: log-probabilities in a run's precision, one micro-batch at a time."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.core.logprobs import completion_logprobs, logprobs
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.training import passes, step_metrics
from grpo_lab.training.interventions import Step
from grpo_lab.training.sampling_filters import is_plain
from grpo_lab.training.world import ALONE, World

Reference = AbstractContextManager[None] | None
"""The block in which the policy is its reference; None for a run without one."""


class Forward:
    """A policy with a run's precision, pass and micro-batches. Raises ModelError as `passes.check` does."""

    def __init__(self, config: Config, policy: Any, world: World = ALONE) -> None:
        self.precision = PRECISIONS[config.model.precision]
        self.run = passes.PASSES[config.model.prompt_pass]
        self._policy, self._micro_batch_prompts, self._world = policy, config.data.micro_batch_prompts, world
        passes.check(policy.eval(), config.model.prompt_pass)

    def autocast(self) -> torch.autocast:
        """The run's mixed precision, as a context manager."""
        dtype = self.precision.autocast
        return torch.autocast(self._policy.device.type, dtype=dtype, enabled=dtype is not None)

    def logprobs(self, ctx: Step, batch: Batch, note: str = "current") -> Tensor:
        """Log-probabilities (b, T) of a micro-batch's completions under the policy as it is, in nats."""
        with self.autocast():
            return logprobs(self._policy, self.run, batch, ctx, note)

    def with_logits(self, ctx: Step, batch: Batch) -> tuple[Tensor, Tensor]:
        """`logprobs`, and all logits (b, T, V) with their gradient."""
        with self.autocast():
            states, head = self.run(self._policy, batch)
            logits = ctx.apply(Stage.LOGITS, head(states), "current")
            found = completion_logprobs(logits, batch.completions, ctx.sampling.temperature)
        return found.masked_fill(~batch.completion_mask, 0.0), logits

    def before_updates(self, ctx: Step, batch: Batch, reference: Reference) -> Batch:
        """The batch with log-probabilities (B, T) under the reference, where there is one, and the old policy."""
        ref_logprobs = None
        if reference is not None:
            with reference:
                ref_logprobs = self._of_all(ctx, batch, "reference")
        return replace(batch, old_logprobs=self._old(ctx, batch), ref_logprobs=ref_logprobs)

    @torch.no_grad()
    def _of_all(self, ctx: Step, batch: Batch, note: str) -> Tensor:
        """Log-probabilities (B, T) of the whole batch without gradient."""
        rows = []
        with self._world.meeting(ctx) as meeting:
            for part in self._world.own(batch, self._micro_batch_prompts):
                ctx.batch = part
                rows.append(self.logprobs(ctx, part, note))
            meeting.say(rows)
        found = [row for rows in meeting.heard for row in rows]
        return torch.cat(found)

    def _old(self, ctx: Step, batch: Batch) -> Tensor:
        """Log-probabilities (B, T) under the policy that sampled: the sampler's own, or computed if those differ.

        On CUDA the first step of a stage measures whether they do: other kernels sample than train.
        """
        device = self._policy.device
        same = self.precision.exact(device) and is_plain(ctx.sampling)
        if same and (device.type != "cuda" or ctx.index != ctx.stage_began):
            return batch.sampling_logprobs
        old = self._of_all(ctx, batch, "old")
        step_metrics.sampler(ctx.recorder, batch, old)
        return batch.sampling_logprobs if same else old
