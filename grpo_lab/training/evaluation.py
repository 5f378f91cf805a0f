"""The reward of held-out problems, before and after training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.events import Evaluated
from grpo_lab.models.precision import autocast
from grpo_lab.tasks.tasks import Problem
from grpo_lab.training import rollouts
from grpo_lab.training.objectives import Objective
from grpo_lab.training.state import Training

EVALUATED_AT_ONCE = 256
"""Problems whose completions are sampled together."""


def evaluate(training: Training, step: int) -> Iterator[Evaluated]:
    """Yield the mean reward of held-out problems sampled at temperature 1; nothing where `run.num_eval` is 0.

    The reward of several objectives is the mean of their rewards. A run that went on from a later step has it already.
    """
    if step <= training.resumed_at:
        return
    found = {}
    for objective in training.objectives:
        if problems := training.tasks[objective.name].held_out[: training.config.run.num_eval]:
            found[objective.name] = _mean_reward(training, objective, problems, step - training.steps.start)
    if found:
        rewards = {name: reward for name, (reward, _) in found.items()}
        judged = sum(count for _, count in found.values())
        yield Evaluated(step, sum(rewards.values()) / len(rewards), judged, {n: r for n, r in rewards.items() if n})


def _mean_reward(training: Training, objective: Objective, problems: Sequence[Problem], done: int) -> tuple[float, int]:
    """Mean reward of one completion of each problem after `done` steps, and the number of those that were scored."""
    training.policy.eval()  # the last step may have left dropout on
    environment, total, judged = training.environment(objective), 0.0, 0
    sampling = SamplingConfig(max_completion_length=objective.sampling.max_completion_length)
    generator = environment.generator(0, objective.purpose("evaluation"))
    in_turns, policy, tokenizer = environment.tool is not None, training.policy, training.tokenizer
    first_turn = replace(sampling, max_completion_length=training.config.data.call_length) if in_turns else sampling

    def draw(ids: Tensor, mask: Tensor) -> Batch:
        return rollouts.sample(policy, tokenizer, (), 1, sampling, generator, encoded=(ids, mask))

    for first in range(0, len(problems), EVALUATED_AT_ONCE):
        part = problems[first : first + EVALUATED_AT_ONCE]
        with autocast(training.config.model.precision, training.policy.device):
            batch = rollouts.sample(policy, tokenizer, [each.prompt for each in part], 1, first_turn, generator)
            batch = environment.continued(batch, part, draw) if in_turns else batch
        _, answer = environment.begin(part, batch, done)
        values, scorable, *_ = answer()
        total, judged = total + float(values[scorable].sum()), judged + int(scorable.sum())
    return total / judged if judged else math.nan, judged
