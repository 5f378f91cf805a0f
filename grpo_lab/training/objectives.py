"""The objectives of a run, with every setting filled in, and the ways to combine them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from grpo_lab.algorithm import combinations
from grpo_lab.algorithm.combinations import AdvantageScale, Gradients, Scores
from grpo_lab.config.fields import build
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import LossConfig, ObjectiveConfig, SamplingConfig
from grpo_lab.errors import ConfigError
from grpo_lab.tasks.rewards import Reward, weights_of
from grpo_lab.tasks.rewards import load as load_reward
from grpo_lab.tasks.tasks import Problem, Tasks
from grpo_lab.tasks.tasks import load as load_tasks

Rewards = Sequence[Callable[..., Any]] | None
"""Reward functions in place of the configured ones."""


@dataclass(frozen=True)
class Objective:
    """One thing that the policy is trained for. The only one of a run may have no name."""

    name: str
    place: int
    """Its place among the objectives of the run."""
    tasks: str
    rewards: tuple[str, ...]
    weight: float
    num_prompts: int
    beta: float
    band: tuple[float, float] | None
    """The ends of the band for its KL, in nats per token."""
    sampling: SamplingConfig
    reward_weights: tuple[float, ...] = ()
    """One for each reward function; empty for 1 each."""

    def purpose(self, purpose: str) -> str:
        """The purpose of a random draw for this objective. The first one draws as the only one of a run does."""
        return f"{purpose}/{self.place}" if self.place else purpose


class Combination(NamedTuple):
    """A way to train one policy for several objectives."""

    drawn: Callable[[Sequence[Objective], int], Sequence[Objective]]
    """From the objectives and the step: those whose prompts the step has."""
    gradients: Callable[[Sequence[Gradients]], Gradients]
    pooled: Callable[[Sequence[Scores], AdvantageScale], Tensor] | None = None
    """The advantages of completions that every objective scores, so that weights belong to rewards and not to losses;
    None where each objective scores its own."""


def all_with_prompts(objectives: Sequence[Objective], step: int) -> Sequence[Objective]:
    """The objectives that have prompts."""
    return [objective for objective in objectives if objective.num_prompts]


def in_turn(objectives: Sequence[Objective], step: int) -> Sequence[Objective]:
    """One objective a step."""
    return [objectives[step % len(objectives)]]


COMBINATIONS: dict[str, Combination] = {
    "separate": Combination(all_with_prompts, combinations.add),
    "alternate": Combination(in_turn, combinations.add),
    "pcgrad": Combination(all_with_prompts, combinations.project_conflicting),
    "sum_then_normalize": Combination(all_with_prompts, combinations.add, combinations.sum_then_normalize),
    "normalize_then_sum": Combination(all_with_prompts, combinations.add, combinations.normalize_then_sum),
}
"""The right ways, by the setting `loss.combination`."""
POOLED = [name for name, combination in COMBINATIONS.items() if combination.pooled]
"""The ways in which every objective scores the completions of all."""


ONLY = ObjectiveConfig("only")
"""Of a run that lists no objectives: the run's own settings hold for all of it."""


def resolve(config: Config) -> tuple[Objective, ...]:
    """The objectives of a config with every setting filled in; one without a name where it lists none.

    Raises ConfigError for an objective that would never be trained.
    """
    data, loss = config.data, config.loss
    if config.objectives:
        _check_shaping(loss)
    found = []
    for place, given in enumerate(config.objectives or [ONLY]):
        found.append(
            Objective(
                "" if given is ONLY else given.name,
                place,
                given.tasks or data.tasks,
                given.rewards or data.rewards,
                given.weight,
                data.num_prompts if given.num_prompts is None else given.num_prompts,
                loss.beta if given.beta is None else given.beta,
                None if given.kl_low is None or given.kl_high is None else (given.kl_low, given.kl_high),
                build(SamplingConfig, {**vars(config.sampling), **given.sampling}, f"objectives.{given.name}.sampling"),
                given.reward_weights or (() if given.rewards else data.reward_weights),
            )
        )
    _check_prompts(found, loss.combination)
    return tuple(found)


def load_tasks_and_rewards(
    objectives: Sequence[Objective], config: Config, tasks: Tasks | None, rewards: Rewards
) -> tuple[dict[str, Tasks], dict[str, Sequence[Reward]]]:
    """The tasks and the reward functions of each objective, by its name; those that are given replace the configured.

    Of several objectives, each problem has the columns of all tasks, None where its own has no such column: a change of
    `loss.combination` while the model trains may let each objective score the completions of all.
    Raises ConfigError where some are given to several objectives, and as loading them does.
    """
    if len(objectives) > 1 and (tasks or rewards):
        raise ConfigError(
            f"tasks and rewards belong to one objective, and this run has {len(objectives)}: "
            "name a file for each in [[objectives]]"
        )
    functions = {o.name: rewards or [load_reward(name, config.judge) for name in o.rewards] for o in objectives}
    for objective in objectives:
        weights_of(objective.reward_weights, functions[objective.name])
    found = {o.name: (tasks or load_tasks(o.tasks)).limited(config.data.train_max_samples) for o in objectives}
    columns = dict.fromkeys(name for each in found.values() for name in each.train[0].columns)
    wider = {name: tasks for name, tasks in found.items() if tasks.train[0].columns.keys() != columns.keys()}
    return found | {name: _with_columns(each, columns) for name, each in wider.items()}, functions


def _with_columns(tasks: Tasks, columns: Mapping[str, None]) -> Tasks:
    """The same tasks, with None in each column that a problem lacks."""
    parts = [[Problem(p.prompt, {**columns, **p.columns}) for p in part] for part in (tasks.train, tasks.held_out)]
    return Tasks(tasks.name, *parts)


def _check_shaping(loss: LossConfig) -> None:
    """Raise ConfigError where the rewards of several objectives are pooled, and a setting needs those of one."""
    if loss.combination in POOLED and (loss.dynamic_sampling or loss.kl_place == "reward"):
        name, back = ("dynamic_sampling", 0) if loss.dynamic_sampling else ("kl_place", "loss")
        raise ConfigError(
            f"loss.{name} = {getattr(loss, name)!r} with loss.combination = {loss.combination!r}: a completion has a "
            f"reward of each objective there; use loss.{name}={back}, or loss.combination=separate"
        )


def _check_prompts(objectives: Sequence[Objective], name: str) -> None:
    """Raise ConfigError where an objective has no prompts and its way of combination needs them."""
    without = [objective.name for objective in objectives if not objective.num_prompts]
    if len(without) == len(objectives):
        raise ConfigError(f"objectives: none of {', '.join(without)} has prompts; give one num_prompts of 1 or more")
    if without and name not in POOLED:
        raise ConfigError(
            f"objectives.{without[0]}.num_prompts = 0 with loss.combination = {name!r}: without prompts it is never "
            f"trained; give it prompts, or combine by {' or '.join(POOLED)}, where it scores the others' completions"
        )
