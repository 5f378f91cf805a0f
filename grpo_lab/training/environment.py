"""The prompts of a run's tasks, and the rewards of their completions, as `core.train` asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.algorithm.advantages import soft_overlong
from grpo_lab.config import user_code
from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Context, Stage, Verdict
from grpo_lab.errors import ConfigError, Sentence
from grpo_lab.tasks import rewards
from grpo_lab.tasks.conversations import text_of
from grpo_lab.tasks.judge_pool import TrainerState
from grpo_lab.tasks.rewards import Judged, Reward, named
from grpo_lab.tasks.tasks import TOOLS, Problem, Tasks, Tool
from grpo_lab.training import rollouts
from grpo_lab.training.interventions import Step, exceeds, known
from grpo_lab.training.objectives import Objective

SAMPLES = 4
"""Completions that a step's event holds."""
Answer = Callable[[], Judged]
"""Waits for the rewards of completions that are being judged."""


@dataclass
class Environment:
    """The tasks of an objective, and the functions that judge their completions."""

    config: Config
    objective: Objective
    tasks: Tasks
    functions: Sequence[Reward]
    policy: Any
    tokenizer: Any
    first_step: int = 0
    """The step at which the stage began."""

    @cached_property
    def tool(self) -> Tool | None:
        """What writes between two turns of the policy, if anything. Raises ConfigError for one that does not exist."""
        name = self.config.data.tool
        return user_code.named("data.tool", name, TOOLS) if name else None

    def __call__(self, ctx: Context, draw: int = 0) -> TaskPrompts:
        """The prompts of a step's draw: the first one follows the epochs; others are random, by seed, step and draw."""
        step, run = ctx.index, self.config.run
        seed, place = (seeds.derive(run.seed, step, f"prompts/{draw}"), 0) if draw else (run.seed, step)
        problems = self.tasks.batch(seed, place, self.objective.num_prompts)
        purpose = self.objective.purpose("sampling") + (f"/{draw}" if draw else "")
        number = self.objective.place + draw * max(1, len(self.config.objectives))
        return TaskPrompts(self, problems, step, purpose, number, ctx.sampling.max_completion_length)

    def generator(self, step: int, purpose: str) -> torch.Generator:
        """The generator of the random draws for one purpose in one step."""
        return torch.Generator(self.policy.device).manual_seed(seeds.derive(self.config.run.seed, step, purpose))

    def begin(self, problems: Sequence[Problem], batch: Batch, done: int) -> tuple[list[str], Answer]:
        """The texts of a batch with as many completions of each problem, which are judged after `done` steps."""
        ids = rollouts.token_ids(batch)
        texts, size = rollouts.texts(self.tokenizer, ids), len(batch.group) // len(problems)
        repeated = [problem for problem in problems for _ in range(size)]
        epochs = done * self.objective.num_prompts / len(self.tasks.train)
        return texts, self.judge(repeated, texts, ids, TrainerState(done, self.config.run.num_steps, epochs))

    def continued(self, first: Batch, problems: Sequence[Problem], draw: rollouts.Draw) -> Batch:
        """First turns with the tool's output and a second turn behind each. Raises ConfigError for a tool's mistake."""
        tool, size = known(self.tool, "tool"), len(first.group) // len(problems)
        calls = rollouts.texts(self.tokenizer, rollouts.token_ids(first))
        asked = [problem for problem in problems for _ in range(size)]
        said = [tool(problem.prompt, call, **problem.columns) for problem, call in zip(asked, calls, strict=True)]
        if wrong := [text for text in said if not isinstance(text, str)]:
            raise ConfigError(f"data.tool = {self.config.data.tool!r} returned {wrong[0]!r}; it must return a text")
        return rollouts.continued(first, said, self.tokenizer, draw, again=self.config.data.train_on == "text")

    def judge(
        self, problems: Sequence[Problem], texts: Sequence[str], ids: Sequence[list[int]], now: TrainerState
    ) -> Answer:
        """Begin to judge completions, with a problem and the tokens of each."""
        by = self.objective.reward_weights
        return rewards.begin(self.functions, problems, texts, self.config.judge, by, ids, now)


@dataclass
class TaskPrompts:
    """The prompts of one draw, and the rewards of their completions."""

    environment: Environment
    problems: Sequence[Problem]
    step: int
    purpose: str
    """Of the random draws of their completions."""
    number: int
    longest: int
    """Tokens of a completion at most."""
    batch: Batch | None = None
    texts: Sequence[str] = ()
    answer: Answer | None = field(default=None, repr=False)
    encoded: tuple[Tensor, Tensor] = field(init=False, repr=False)
    """(P, S) token ids, padded on the left, and their mask."""
    generator: torch.Generator = field(init=False, repr=False)
    """The generator of the draws of their completions."""

    def __post_init__(self) -> None:
        """Encode the prompts. Raises ConfigError for those that are too long."""
        policy, prompts = self.environment.policy, [problem.prompt for problem in self.problems]
        self.encoded = rollouts.encode(self.environment.tokenizer, prompts, policy.device)
        rollouts.check_length(policy, self.encoded[0].shape[1], self.longest)
        self.generator = self.environment.generator(self.step, self.purpose)

    def share(self, number: int, count: int) -> TaskPrompts:
        """One of `count` equal shares of the prompts, with a random stream of its own.

        The first one draws as the only one of a run does.
        """
        of_share = slice(*(len(self.problems) * place // count for place in (number, number + 1)))
        purpose = self.purpose + (f"/stream-{number}" if number else "")
        return replace(self, problems=self.problems[of_share], purpose=purpose)

    def judge(self, batch: Batch) -> None:
        """Begin to judge the completions; slow judges work on meanwhile."""
        done = self.step - self.environment.first_step
        self.batch = batch
        self.texts, self.answer = self.environment.begin(self.problems, batch, done)

    def rewards(self, ctx: Context) -> tuple[Tensor, Tensor]:
        """Wait for the rewards (P, G), and for which of them count, (P, G) bool; note samples and metrics.

        Raises Refused where too many calls of a judge failed.
        """
        assert isinstance(ctx, Step)
        self.show(ctx, judged := self.judged())
        return self.scored(ctx, judged)

    def judged(self) -> Judged:
        """Wait for the rewards."""
        assert self.answer is not None
        return self.answer()

    def show(self, ctx: Step, judged: Judged) -> None:
        """Note the first completions of a few prompts, and the values that reward functions logged for these."""
        size = len(judged.values) // len(self.problems)
        rows = range(0, len(judged.values), size)[: max(1, SAMPLES // max(1, len(self.environment.config.objectives)))]
        prompts = (text_of(problem.prompt) for problem in self.problems)
        firsts = zip(prompts, self.texts[::size], judged.values[::size].tolist(), strict=True)
        ctx.samples += tuple(firsts)[: len(rows)]
        for column, values in judged.log.extras(list(rows)).items():
            ctx.extras[column] = ctx.extras.get(column, ()) + values

    def scored(self, ctx: Step, judged: Judged) -> tuple[Tensor, Tensor]:
        """Rewards and `scorable`, both (P, G), on the batch's device, after metrics and the limit of failed calls."""
        assert self.batch is not None
        count = judged.scorable.numel()
        ctx.unscored = Sentence("none of {} completions was scored", count)
        if not judged.scorable.any() and not (judged.calls and judged.calls.failures):
            functions = " and ".join(named(self.environment.functions))
            ctx.unscored = Sentence("none of {} completions was scored: {} returned None for each", count, functions)
        device, prompts, share = self.batch.group.device, len(self.problems), self.environment.config.loss.soft_overlong
        scorable = judged.scorable.view(prompts, -1).to(device, non_blocking=True)
        ctx.scorable = scorable
        self._check(ctx, judged)
        values = judged.values
        if share:
            lengths = self.batch.completion_mask.sum(dim=1).to(values.device)
            values = values + soft_overlong(lengths, self.longest, share)
        return values.view(prompts, -1).to(device, non_blocking=True), scorable

    def _check(self, ctx: Step, judged: Judged) -> None:
        """Note the metrics of the functions; of a pool the share of failed calls and the seconds waited for them.

        Raises Refused where the share is above `judge.max_failed`.
        """
        recorder, limit, calls = ctx.recorder, self.environment.config.judge.max_failed, judged.calls
        metrics = {name: torch.tensor(value, dtype=torch.float64) for name, value in judged.metrics.items()}
        recorder.metrics(metrics, self.number)
        if calls is None:
            return
        recorder.metric("judge/failed", torch.tensor(calls.failed), self.number)
        recorder.metric("judge/time", torch.tensor(calls.waited), self.number)
        if not calls.failures:
            return
        if calls.failed > limit:
            reason = Sentence("{}; {}", exceeds("share", calls.failed, limit), calls.in_words())
            ctx.refuse("judge", Stage.REWARDS, reason)
        ctx.act("judge", Stage.REWARDS, Verdict.KEEP, calls.in_words())
