"""The reward of held-out problems, before and after training."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

from grpo_lab.config.sections import SamplingConfig
from grpo_lab.events import Evaluated
from grpo_lab.tasks.tasks import Problem
from grpo_lab.training import judging, rollouts
from grpo_lab.training.learner import Learner
from grpo_lab.training.objectives import Objective

EVALUATED_AT_ONCE = 256
"""Problems whose completions are sampled together."""


def evaluate(learner: Learner, step: int) -> Iterator[Evaluated]:
    """Yield the mean reward of held-out problems sampled at temperature 1; nothing where `run.num_eval` is 0.

    The reward of several objectives is the mean of their rewards. A run that went on from a later step has it already.
    """
    if step <= learner.resumed_at:
        return
    found = {}
    for objective in learner.objectives:
        if problems := learner.tasks[objective.name].held_out[: learner.config.run.num_eval]:
            found[objective.name] = _mean_reward(learner, objective, problems, step - learner.steps.start)
    if found:
        rewards = {name: reward for name, (reward, _) in found.items()}
        judged = sum(count for _, count in found.values())
        yield Evaluated(step, sum(rewards.values()) / len(rewards), judged, {n: r for n, r in rewards.items() if n})


def _mean_reward(learner: Learner, objective: Objective, problems: Sequence[Problem], done: int) -> tuple[float, int]:
    """Mean reward of one completion of each problem after `done` steps, and the number of those that were scored."""
    learner.policy.eval()  # the last step may have left dropout on
    sampling = SamplingConfig(max_completion_length=objective.sampling.max_completion_length)
    tasks = learner.tasks[objective.name]
    state = judging.state(learner.config, tasks, objective.num_prompts, done)
    generator, total, judged = learner.generator(0, objective.purpose("evaluation")), 0.0, 0
    for first in range(0, len(problems), EVALUATED_AT_ONCE):
        part = problems[first : first + EVALUATED_AT_ONCE]
        prompts = [problem.prompt for problem in part]
        with learner.forward.autocast():
            batch = rollouts.sample(learner.policy, learner.tokenizer, prompts, 1, sampling, generator)
        ids = rollouts.token_ids(batch)
        texts, functions = rollouts.texts(learner.tokenizer, ids), learner.rewards[objective.name]
        judge = partial(judging.begin, objective, functions, part, texts, ids, learner.config, state)
        values, scorable, *_ = learner.world.hear(lambda judge=judge: judge().result())
        total, judged = total + float(values[scorable].sum()), judged + int(scorable.sum())
    return total / judged if judged else math.nan, judged
