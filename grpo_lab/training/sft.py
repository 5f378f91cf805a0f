"""One step of supervised fine-tuning (SFT), the first stage of InstructGPT (https://arxiv.org/abs/2203.02155).

    loss = - sum of log pi(token | prompt, tokens before it) / number of tokens

over the completions' tokens of the step's rows, end tokens included. Prompts are read and not taught; every token of
the batch weighs the same, as in TRL's SFTTrainer. Dropout is off, as in GRPO.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Context, Stage
from grpo_lab.core.loss import LossOutput, token_weights, weighted_sum
from grpo_lab.training import large_vocabulary, variants
from grpo_lab.training.demonstrations import Demonstrations
from grpo_lab.training.interventions import Step


class SftTrainer(variants.ConfiguredTrainer):
    """The trainer of the stage: demonstrations in the place of completions."""

    demonstrations: ClassVar[Demonstrations]

    def step(self, ctx: Context) -> None:
        """One step of SFT, with one update. Raises Refused where a guard refuses the rest."""
        assert isinstance(ctx, Step)
        ctx.sampling = SamplingConfig()  # log-probabilities at temperature 1
        ctx.coefficients = ctx.apply(Stage.COEFFICIENTS, ctx.coefficients)
        size = self.config.sft.batch_size
        batch = self.demonstrations.batch(self.config.run.seed, ctx.index, size, self.policy.device)
        batch = replace(batch, weights=token_weights(batch.completion_mask))
        ctx.num_tokens = batch.completion_mask.sum()
        ctx.recorder.metric("num_tokens", ctx.num_tokens)
        self.updates.begin(ctx, 0)
        self.backward(ctx, batch)
        self.updates.make(ctx)

    def loss(self, ctx: Context, batch: Batch) -> LossOutput:
        """The micro-batch's part of the loss, to be minimised."""
        assert isinstance(ctx, Step) and ctx.num_tokens is not None and batch.weights is not None
        likeliest = list[Tensor]()
        with self.autocast():
            logprobs = large_vocabulary.logprobs(
                self.policy, self.run, batch, ctx, "current", lambda logits: likeliest.append(logits.argmax(dim=-1))
            )
        ctx.recorder.tensor("logprobs", logprobs)
        found, mask = torch.cat(likeliest), batch.completion_mask  # (B, T), or in chunks those of the mask
        right = (found == batch.completions) & mask if found.dim() == 2 else found == batch.completions[mask]
        loss = weighted_sum(-logprobs, batch.weights)
        return LossOutput(loss, {"sft/accuracy": right.sum() / ctx.num_tokens})


def in_place_of_grpo(config: Config) -> Config:
    """The config with the rate and the length of SFT in the places of GRPO's, and without a KL penalty."""
    return replace(
        config,
        run=replace(config.run, num_steps=config.sft.num_steps),
        loss=replace(config.loss, num_iterations=1, beta=0.0),
        optimizer=replace(config.optimizer, learning_rate=config.sft.learning_rate),
        objectives=(),
    )
