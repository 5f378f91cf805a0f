"""The reward of held-out problems, before and after training."""

import math
from collections.abc import Iterator

from grpo_lab.config.sections import SamplingConfig
from grpo_lab.events import Evaluated
from grpo_lab.tasks import rewards
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training import rollouts
from grpo_lab.training.learner import Learner

EVALUATED_AT_ONCE = 256
"""Problems whose completions are sampled together."""


def evaluate(learner: Learner, tasks: Tasks, step: int) -> Iterator[Evaluated]:
    """Yield the mean reward of held-out problems sampled at temperature 1; nothing where `run.num_eval` is 0."""
    problems = tasks.held_out[: learner.config.run.num_eval]
    if not problems:
        return
    learner.policy.eval()  # the last step may have left dropout on
    sampling = SamplingConfig(max_completion_length=learner.config.sampling.max_completion_length)
    generator, total, judged = learner.generator(0, "evaluation"), 0.0, 0
    for first in range(0, len(problems), EVALUATED_AT_ONCE):
        part = problems[first : first + EVALUATED_AT_ONCE]
        prompts = [problem.prompt for problem in part]
        with learner.autocast():
            batch = rollouts.sample(learner.policy, learner.tokenizer, prompts, 1, sampling, generator)
        completions = rollouts.texts(learner.tokenizer, batch)
        values, scorable, _ = rewards.judge(learner.rewards, part, completions, learner.config.judge)
        total, judged = total + float(values[scorable].sum()), judged + int(scorable.sum())
    yield Evaluated(step, total / judged if judged else math.nan, judged)
