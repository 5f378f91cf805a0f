"""Supervised fine-tuning (SFT), the first stage of InstructGPT (https://arxiv.org/abs/2203.02155): steps and rows.

    loss = - sum of log pi(token | prompt, tokens before it) / number of tokens

over the completions' tokens of the step's rows, end tokens included. Prompts are read and not taught; every token of
the batch weighs the same, as in TRL's SFTTrainer. Dropout is off, as in GRPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Context, Stage
from grpo_lab.core.loss import LossOutput, token_weights, weighted_sum
from grpo_lab.errors import DataError
from grpo_lab.tasks import tasks
from grpo_lab.tasks.conversations import tokenized
from grpo_lab.training import large_vocabulary, rollouts, variants
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


@dataclass(frozen=True)
class Row:
    """Token ids: those of a prompt, and those of its completion with an end token."""

    prompt: list[int]
    completion: list[int]


@dataclass(frozen=True)
class Demonstrations:
    """The rows of a file."""

    rows: Sequence[Row]
    pad: int

    def batch(self, seed: int, step: int, size: int, device: torch.device) -> Batch:
        """The rows of one step, drawn as `Tasks.batch` draws problems: one completion for each prompt."""
        drawn = tasks.drawn(self.rows, seed, step, size)
        prompt_ids, prompt_mask = rollouts.padded([row.prompt for row in drawn], self.pad, device, "left")
        completions, mask = rollouts.padded([row.completion for row in drawn], self.pad, device)
        unknown = torch.zeros(completions.shape, device=device)
        group = torch.arange(size, device=device)
        return Batch(prompt_ids, prompt_mask, group, completions, mask.bool(), unknown)


def load(config: Config, model: Any, tokenizer: Any) -> Demonstrations:
    """The demonstrations of a config for a model.

    Raises DataError, naming file and line, for a file that cannot be read, for a row without a completion and for one
    that is too long.
    """
    problems = tasks.load_demonstrations(config.sft.data)
    completions = {place: problem.columns.get("completion") for place, problem in problems.items()}
    for place, text in completions.items():
        if not isinstance(text, str) or not text:
            raise DataError(f'{place}: "completion" is {text!r}; it must be a string of at least one character')
    # As in GRPO, a prompt is encoded alone, and the tokens of its completion follow it.
    prompts = tokenized(tokenizer, [problem.prompt for problem in problems.values()]).input_ids
    answers = tokenizer(list(completions.values()), add_special_tokens=False).input_ids
    ends = [[end] for end in rollouts.terminators(model, tokenizer).tolist()]
    end = [tokenizer.eos_token_id] if [tokenizer.eos_token_id] in ends else ends[0]
    rows = [Row(p, a if a[-1:] in ends else a + end) for p, a in zip(prompts, answers, strict=True)]
    limit = config.sft.max_length
    positions = getattr(model.config, "max_position_embeddings", limit)
    for place, row in zip(problems, rows, strict=True):
        if (size := len(row.prompt) + len(row.completion)) > min(limit, positions):
            what = f"sft.max_length = {limit}" if limit < positions else f"the {positions} positions of the model"
            raise DataError(
                f"{place}: prompt, completion and end token are {size} tokens > {what}; a cut completion would have no "
                "end, so none is cut: shorten it" + (", or raise sft.max_length" if limit < positions else "")
            )
    return Demonstrations(rows, tokenizer.pad_token_id)
