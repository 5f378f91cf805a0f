"""Several objectives in one step: each has a trainer of its own, and each update combines their gradients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from grpo_lab.algorithm.combinations import Gradients, Scores, cosine, scorable_by_any
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Coefficients, Context, Stage
from grpo_lab.core.train import Prompts
from grpo_lab.training.environment import TaskPrompts
from grpo_lab.training.interventions import ObjectiveCoefficients, Step, known
from grpo_lab.training.objectives import Combination, Objective
from grpo_lab.training.updates import RecordedUpdates
from grpo_lab.training.variants import ConfiguredTrainer


class OfObjective(ConfiguredTrainer):
    """The trainer of one objective: its own weight of the KL, and its own weight of the loss."""

    objective: ClassVar[Objective]
    loss_weight: ClassVar[float]

    def coefficients(self, ctx: Context) -> Coefficients:
        use = super().coefficients(ctx)
        return replace(use, beta=use.betas[self.objective.name]) if isinstance(use, ObjectiveCoefficients) else use

    def weigh(self, ctx: Context, batch: Batch) -> Batch:
        batch = super().weigh(ctx, batch)
        return replace(batch, weights=known(batch.weights, "weights") * self.loss_weight)


class Sampled(NamedTuple):
    """The completions of one objective's prompts, and the values of the context that belong to them."""

    trainer: OfObjective
    prompts: Prompts
    batch: Batch
    sampling: SamplingConfig
    """As the guards of stage SAMPLING left it."""
    others: Sequence[TaskPrompts] = ()
    """The same prompts for the other objectives that score the completions."""
    num_tokens: Tensor | None = None
    """Known once the batch has everything that the loss reads."""


@dataclass(kw_only=True)
class SeveralObjectives:
    """The steps of a run that lists objectives; `trainers` are in the order of the objectives."""

    trainers: Sequence[OfObjective]
    combination: Combination
    updates: RecordedUpdates

    def step(self, ctx: Step) -> None:
        """One step of GRPO. Raises Refused where a guard refuses the rest."""
        ctx.coefficients = ctx.apply(Stage.COEFFICIENTS, ctx.coefficients)
        objectives = [trainer.objective for trainer in self.trainers]
        drawn = [self.trainers[each.place] for each in self.combination.drawn(objectives, ctx.index)]
        sampled = [self._sampled(ctx, trainer) for trainer in drawn]  # slow judges work on meanwhile
        sampled = [self._prepared(ctx, each) for each in sampled]
        for update in range(self.trainers[0].num_iterations):
            self.updates.begin(ctx, update)
            gradients = [self._gradients(ctx, each) for each in sampled]
            self._combine(ctx, gradients)
            self.updates.make(ctx)

    def _sampled(self, ctx: Step, trainer: OfObjective) -> Sampled:
        """The completions of an objective's prompts, which are being judged."""
        ctx.begin_objective(trainer.objective)
        prompts, batch = trainer.rollout(ctx)
        return Sampled(trainer, prompts, batch, ctx.sampling)

    def _prepared(self, ctx: Step, sampled: Sampled) -> Sampled:
        """The same with everything in the batch that the objective's loss reads."""
        trainer, ctx.sampling = sampled.trainer, sampled.sampling
        ctx.begin_objective(trainer.objective)
        batch, advantages = self._advantages(ctx, sampled)
        batch = trainer.with_logprobs(ctx, batch, ctx.apply(Stage.ADVANTAGES, advantages))
        batch = trainer.weigh(ctx, ctx.apply(Stage.BATCH, batch))
        return sampled._replace(batch=batch, num_tokens=ctx.num_tokens)

    def _advantages(self, ctx: Step, sampled: Sampled) -> tuple[Batch, Tensor]:
        """The completions and their advantages (P, G), before any guard."""
        batch, rewards = sampled.trainer.score(ctx, sampled.prompts, sampled.batch)
        return batch, sampled.trainer.advantages(ctx, rewards)

    def _gradients(self, ctx: Step, sampled: Sampled) -> Gradients:
        """The gradients of one objective, taken out of the policy; those of the next one start at zero."""
        ctx.begin_objective(sampled.trainer.objective)
        ctx.sampling, ctx.num_tokens = sampled.sampling, sampled.num_tokens
        sampled.trainer.backward(ctx, sampled.batch)
        gradients = [parameter.grad for parameter in self.updates.parameters]
        self.updates.optimizer.zero_grad()
        return gradients

    def _combine(self, ctx: Step, gradients: Sequence[Gradients]) -> None:
        """Give the policy the combined gradients, and note the smallest cosine between two objectives' gradients."""
        ctx.begin_objective(None)
        if pairs := list(itertools.combinations(gradients, 2)):
            smallest = functools.reduce(torch.minimum, [cosine(*pair) for pair in pairs])
            ctx.recorder.metric("gradients/cosine", smallest, ctx.update)
        for parameter, gradient in zip(self.updates.parameters, self.combination.gradients(gradients), strict=True):
            parameter.grad = gradient


class PooledObjectives(SeveralObjectives):
    """The same where every objective scores the completions of all."""

    def _sampled(self, ctx: Step, trainer: OfObjective) -> Sampled:
        found = super()._sampled(ctx, trainer)
        assert isinstance(found.prompts, TaskPrompts)
        others = [replace(found.prompts, environment=each.prompts) for each in self.trainers if each is not trainer]
        for each in others:
            each.judge(found.batch)
        return found._replace(others=others)

    def _advantages(self, ctx: Step, sampled: Sampled) -> tuple[Batch, Tensor]:
        trainer, own, scores = sampled.trainer, sampled.prompts, list[Scores]()
        assert isinstance(own, TaskPrompts)
        for prompts in sorted([own, *sampled.others], key=lambda each: each.environment.objective.place):
            judged, objective = prompts.judged(), prompts.environment.objective
            if prompts is own:
                prompts.show(ctx, judged)
            elif not judged.scorable.any():
                continue  # it cannot judge these prompts
            ctx.begin_objective(objective)
            values, ctx.scorable = prompts.scored(ctx, judged)
            rewards, scorable = ctx.apply(Stage.REWARDS, values), known(ctx.scorable, "scorable")
            ctx.recorder.rewards(rewards, scorable, own.number)
            scores.append(Scores(rewards, scorable, objective.weight))
        ctx.begin_objective(trainer.objective)
        ctx.scorable = scorable_by_any(scores)
        return sampled.batch, known(self.combination.pooled, "pooled")(scores, trainer.advantage_fn)
