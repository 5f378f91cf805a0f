"""The judging of a step's completions: its start, its samples, its metrics, and the limit of failed calls."""

from collections.abc import Sequence

import torch

from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.tasks import rewards
from grpo_lab.tasks.reward_calls import TrainerState, named
from grpo_lab.tasks.rewards import Judged, Judging, Reward
from grpo_lab.tasks.tasks import Problem, Tasks
from grpo_lab.training.interventions import Step, exceeds
from grpo_lab.training.objectives import Objective, Part

SAMPLES = 4
"""Completions that a step's event holds."""


def state(config: Config, tasks: Tasks, num_prompts: int, done: int) -> TrainerState:
    """The progress of training after `done` steps of `num_prompts` prompts each, as reward functions read it."""
    return TrainerState(done, config.run.num_steps, done * num_prompts / len(tasks.train))


def begin(
    by: Objective,
    functions: Sequence[Reward],
    problems: Sequence[Problem],
    completions: Sequence[str],
    ids: Sequence[list[int]],
    config: Config,
    now: TrainerState,
) -> Judging:
    """Begin to judge completions by one objective, with a problem and the tokens of each."""
    return rewards.begin(functions, problems, completions, config.judge, by.reward_weights, ids, now)


def show(ctx: Step, part: Part, judged: Judged, objectives: int) -> None:
    """Note the first completions of a few prompts, and the values that reward functions logged for these."""
    size = len(judged.values) // len(part.problems)
    rows = [place * size for place in range(len(part.problems))][: max(1, SAMPLES // objectives)]
    ctx.samples += part.samples(judged.values[::size].tolist())[: len(rows)]
    for column, values in judged.log.extras(rows).items():
        ctx.extras[column] = ctx.extras.get(column, ()) + values


def unscored(ctx: Step, functions: Sequence[Reward]) -> str:
    """What to say where no completion is scorable: `was scored`, and by which functions if no guard has done it."""
    acted = any(action.stage == Stage.REWARDS for action in ctx.actions)
    return "was scored" if acted else f"was scored: {' and '.join(named(functions))} returned None for each"


def check(ctx: Step, judged: Judged, part: int = 0) -> None:
    """Note the metrics of the reward functions; of a pool the share of failed calls and the seconds waited for them.

    An objective that scores several parts of a batch notes the mean over them.
    Raises Refused where the share is above `judge.max_failed`.
    """
    recorder, limit, calls = ctx.recorder, ctx.config.judge.max_failed, judged.calls
    recorder.metrics({name: torch.tensor(value, dtype=torch.float64) for name, value in judged.metrics.items()}, part)
    if calls is None:
        return
    recorder.metric("judge/failed", torch.tensor(calls.failed), part)
    recorder.metric("judge/time", torch.tensor(calls.waited), part)
    if not calls.failures:
        return
    if calls.failed > limit:
        ctx.refuse("judge", Stage.REWARDS, f"{exceeds('share', calls.failed, limit)}; {calls.in_words()}")
    ctx.act("judge", Stage.REWARDS, Verdict.KEEP, calls.in_words())
