"""GRPO (DeepSeekMath, algorithm 1) as a generator of events, with one seam for all that guards or harms it.

for each step
    draw prompts, sample a group of completions for each, score them
    advantage = (reward - mean of its group) / standard deviation of its group
    for each of mu updates
        minimise  -min(ratio A, clip(ratio) A) + beta KL(policy || reference)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grpo_lab.config.schema import Config
from grpo_lab.events import Changed, Ended, Event, Stage, Started, Verdict
from grpo_lab.tasks import tasks as task_sets
from grpo_lab.training import step_metrics
from grpo_lab.training.interventions import Refused
from grpo_lab.training.learner import Learner, RewardFunctions

Controls = Callable[[int], Sequence[str]]
"""Asked at the top of each step for overrides to a running model's settings, as `Config.with_` takes them."""


def train(
    config: Config,
    model: tuple[Any, Any] | None = None,
    tasks: task_sets.Tasks | None = None,
    rewards: RewardFunctions | None = None,
    controls: Controls | None = None,
) -> Iterator[Event]:
    """Train a policy and yield what happens; nothing is printed, plotted or saved here.

    `model` is a (policy, tokenizer) pair, trained in place; `tasks` and `rewards` replace the configured ones.
    An error in a step is raised after a last `Stepped(failed=True)` with all that was noted up to it.
    """
    learner = Learner(config, model, rewards)
    tasks = tasks or task_sets.load(config.data.tasks)
    seed, num_prompts = config.run.seed, config.data.num_prompts
    yield Started(config.to_dict(), learner.num_parameters, str(learner.policy.device))
    yield from learner.evaluate(tasks, 0)
    for index in range(config.run.num_steps):
        if overrides := tuple(controls(index)) if controls else ():
            learner.change(overrides)
            yield Changed(index, overrides)
        step = learner.begin(index)
        try:
            step.coefficients = step.at(Stage.COEFFICIENTS, learner.coefficients())
            sampling = step.sampling = step.at(Stage.SAMPLING, step.sampling)
            problems = tasks.batch(seed, index, num_prompts)
            batch = learner.sample(step, problems, sampling)
            scores = step.at(Stage.REWARDS, learner.score(step, problems, batch))
            step_metrics.rewards(learner.recorder, step, scores)
            advantages = learner.formulas.advantage_scale(scores, scorable=step.scorable)
            advantages = step.at(Stage.ADVANTAGES, advantages)
            batch = step.at(Stage.BATCH, learner.complete(step, batch, advantages, sampling))
            batch = learner.weigh(batch, sampling)
            for step.update in range(step.config.loss.num_iterations):  # noqa: B020
                learner.begin_update(step)
                for micro_batch in batch.split(config.data.micro_batch_prompts):
                    output = learner.loss(step, micro_batch, sampling, batch.completion_mask.sum())
                    learner.recorder.metrics(output.metrics, step.update)
                    learner.backward(step, step.at(Stage.LOSS, output.loss))
                step.at(Stage.GRADIENTS, learner.gradients())
                learner.apply(step)
                step.at(Stage.WEIGHTS, learner.policy)
        except Refused:
            pass  # the guard's reason is in step.actions, and learner.end carries out the verdict
        except Exception:
            yield learner.end(step, failed=True)
            raise
        yield learner.end(step)
        if step.verdict == Verdict.STOP:
            yield Ended("stopped", step.reason)
            return
    yield from learner.evaluate(tasks, config.run.num_steps)
    yield Ended("done")
