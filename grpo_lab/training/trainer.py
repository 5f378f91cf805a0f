"""`train`: a run as a generator of events. Its step is that of `core.train`, with the formulas of the config.

Before and after training it measures the reward of held-out problems.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import Sentence
from grpo_lab.events import Changed, Ended, Evaluated, Event
from grpo_lab.models.precision import autocast
from grpo_lab.tasks.tasks import Problem, Tasks
from grpo_lab.training import rollouts, saved_state
from grpo_lab.training.argument_types import checked
from grpo_lab.training.objectives import Objective, Rewards
from grpo_lab.training.state import Controls, Model, Training
from grpo_lab.training.torch_settings import own_settings

EVALUATED_AT_ONCE = 256
"""Problems whose completions are sampled together."""


@checked
@own_settings
def train(
    config: Config,
    model: Model = None,
    tasks: Tasks | None = None,
    rewards: Rewards = None,
    controls: Controls = None,
) -> Iterator[Event]:
    """Train a policy, in place if it is given as `model`, and yield events; no file is written.

    Raises ConfigError for a config that cannot run, and any error of a step after a last `Stepped(failed=True)`.
    """
    training = Training(config, model, tasks, rewards)
    yield training.started()
    yield from events(training, controls)


def events(training: Training, controls: Controls = None) -> Iterator[Event]:
    """Make the steps of a run that are left, and yield their events."""
    yield from evaluate(training, 0)
    for stage in training.config.run.stages:
        for index in _begin_stage(training, stage):
            if overrides := training.asked(index, controls):
                training.change(overrides)
                yield Changed(index, overrides)
            ctx = yield from training.make(index)
            if ctx.verdict == Verdict.STOP:
                yield Ended("stopped", ctx.reason)
                return
        yield from evaluate(training, training.steps.stop)
    yield ended(training.refusals, training.updates.count)


def _begin_stage(training: Training, stage: str) -> range:
    """Begin a stage, with the state of a later step if it has a saved one; return the steps that are left."""
    steps, saved = training.begin_stage(stage), training.saved
    if saved.get("stage", stage) != stage:
        return range(steps.stop, steps.stop)
    if "stage" in saved:
        saved_state.put_back(training, saved)
        steps = range(saved["step"], steps.stop)
    training.saved = {}
    if saved.get("overrides"):
        training.change(saved["overrides"])
    return steps


def ended(refusals: Sequence[str], updates: int) -> Ended:
    """The end of a run, from the trainer's reasons for refusing the last stage's steps, empty for one not refused.

    Where it refused all of them and no update was made, nothing was trained.
    """
    if updates or not refusals or not all(refusals):
        return Ended("done")
    why = "nothing was trained: every step was refused, the last because {}; mend that and train again"
    return Ended("stopped", Sentence(why, refusals[-1]))


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
