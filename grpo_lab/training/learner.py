"""The models of a run, and the parts of a step that need them; `train` puts these parts in order."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.algorithm.combinations import Scores, scorable_by_any
from grpo_lab.config.schema import Config, planned_steps
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.core.loss import LossInputs, LossOutput, token_weights
from grpo_lab.errors import ConfigError
from grpo_lab.events import Stepped
from grpo_lab.models import adapters, loading
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training import (
    demonstrations,
    judging,
    policy_loss,
    rollouts,
    shaping,
    snapshots,
    step_metrics,
    torch_settings,
)
from grpo_lab.training.batches import joined
from grpo_lab.training.forward import Forward
from grpo_lab.training.interventions import Step, known
from grpo_lab.training.objectives import Objective, Part, Rewards, load_tasks_and_rewards, resolve
from grpo_lab.training.recorder import Recorder
from grpo_lab.training.reference import REFERENCES
from grpo_lab.training.registry import carry_over, combination, needs_reference, validated
from grpo_lab.training.updates import Updates
from grpo_lab.training.world import ALONE, World

Model = tuple[Any, Any] | None
"""A policy and its tokenizer in place of the configured ones."""
Controls = Callable[[int], Sequence[str]] | None
"""Called at the top of each step; returns overrides for `Config.with_`, applied to the running model."""


class Learner:
    """Policy, reference, reward functions, interventions and updates of one run.

    Raises ConfigError for a name or setting that does not exist, and ModelError for a policy that cannot be trained.
    """

    def __init__(
        self, config: Config, model: Model, rewards: Rewards = None, tasks: Tasks | None = None, world: World = ALONE
    ) -> None:
        self.formulas, self.interventions = validated(config)
        self.config, self.world = config, world
        self.loss_fn = policy_loss.loss_function(config.loss, self.formulas)
        self.objectives, self.combination = resolve(config), combination(config)
        self.tasks, self.rewards = load_tasks_and_rewards(self.objectives, config, tasks, rewards)
        given, self.tokenizer = model or loading.load(config.model.name, config.model.precision, config.run.device)
        self.policy = adapters.prepared(given, config.lora, config.run.seed)
        torch_settings.prepare(config.run, self.policy.device)
        world.place(self.policy)
        self.forward = Forward(config, self.policy, world)
        self.pad = cast(int, self.tokenizer.pad_token_id)
        rollouts.check_terminators(self.policy, self.tokenizer)
        taught = "sft" in config.run.stages
        self.demonstrations = demonstrations.load(config, self.policy, self.tokenizer) if taught else None
        self.reference: Any = None
        self._will_have_reference = needs_reference(config)
        self.recorder = Recorder()
        self.steps = range(0)
        self.resumed_at = -1
        """The step at which the run went on from a checkpoint; -1 for a run that begins."""
        self.updates = Updates(self.policy, config, world)
        self.updates.snapshots.every = self._snapshot_interval()
        num_parameters = sum(p.numel() for p in self.policy.parameters())
        torch.set_num_threads(torch_settings.num_threads(config.run, num_parameters, self.policy.device))
        self.last_verdict: Verdict = Verdict.KEEP
        self.last_metrics: dict[str, float] = {}
        self.refusals: list[str] = []

    def begin_stage(self, stage: str) -> range:
        """Begin a stage with fresh updates and interventions, and return its steps.

        The reference is the policy as it is when GRPO begins.
        """
        first = self.steps.stop
        self.steps = range(first, first + planned_steps(self.config.to_dict())[stage])
        arranged = self.interventions.items()
        self.interventions = {at: [(kind, replace(each)) for kind, each in row] for at, row in arranged}  # no memory
        self.last_verdict, self.last_metrics, self.refusals = Verdict.KEEP, {}, []
        if stage == "grpo" and self._will_have_reference:
            self.reference = REFERENCES[self.config.lora.reference](self.policy)
        self.updates = Updates(self.policy, self.config, self.world)
        self.updates.snapshots.every = self._snapshot_interval()
        return self.steps

    def _snapshot_interval(self) -> int:
        may_roll_back = any(i.may_roll_back for row in self.interventions.values() for _, i in row)
        return snapshots.interval(self.config.run.snapshot_every, self.updates.num_parameters, may_roll_back)

    def change(self, overrides: Sequence[str]) -> None:
        """Apply overrides to the running model; interventions that stay on lose nothing they keep.

        Raises ConfigError for a setting that is fixed once a run has started.
        """
        changed = self.config.changed_live(*overrides)
        if needs_reference(changed) and not self._will_have_reference:
            raise ConfigError("this run has no reference model: it started with loss.beta = 0; start it with more")
        self.configure(changed)

    def configure(self, changed: Config) -> None:
        """Take over a config that differs from the run's in settings that may change while a model trains."""
        chosen, interventions = validated(changed)
        carry_over(self.interventions, interventions)
        self.config, self.formulas, self.interventions = changed, chosen, interventions
        self.loss_fn = policy_loss.loss_function(changed.loss, chosen)
        self.objectives, self.combination = resolve(changed), combination(changed)
        self.updates.configure(changed.optimizer)
        self.updates.snapshots.every = self._snapshot_interval()

    def begin(self, index: int) -> Step:
        """Begin a step: dropout off, and a snapshot if one is due."""
        self.policy.eval()
        self.updates.begin_step(index)
        return Step(
            index=index,
            seed=self.config.run.seed,
            config=self.config,
            sampling=self.config.sampling,
            policy=self.policy,
            recorder=self.recorder,
            interventions=self.interventions,
            optimizer=self.updates.optimizer,
            last_verdict=self.last_verdict,
            last_metrics=MappingProxyType(self.last_metrics),
            largest_move=partial(self.updates.largest_move, index),
            stage_began=self.steps.start,
        )

    def drawn(self, index: int) -> Sequence[Objective]:
        """The objectives whose prompts step `index` has."""
        return self.combination.drawn(self.objectives, index)

    def sample(self, ctx: Step, objective: Objective, draw: int = 0) -> Part:
        """Sample completions of the objective's prompts of this step from the policy as it is, and begin to judge them.

        Slow judges work on while the next objective's completions are sampled. A further `draw` has other prompts.
        """
        index, size = ctx.index, self.config.data.num_generations
        ctx.begin_objective(objective)
        ctx.sampling = objective.sampling
        ctx.sampling = sampling = ctx.apply(Stage.SAMPLING, objective.sampling)
        tasks = self.tasks[objective.name]
        problems = shaping.problems(tasks, self.config.run.seed, index, objective.num_prompts, draw)
        prompts = [problem.prompt for problem in self.world.share(problems)]
        purpose = objective.purpose("sampling") + (f"/{draw}" if draw else "")
        streams = rollouts.streams(purpose, self.config.run.streams or self.world.size)
        generators = [self.generator(index, stream) for stream in self.world.share(streams)]
        with self.world.meeting(ctx) as meeting, self.forward.autocast():
            meeting.say(rollouts.sample(self.policy, self.tokenizer, prompts, size, sampling, generators, ctx.apply))
        batch = joined(meeting.heard)
        repeated = [problem for problem in problems for _ in range(size)]
        completions = rollouts.texts(self.tokenizer, ids := rollouts.token_ids(batch))
        state = judging.state(self.config, tasks, len(problems), index - self.steps.start)
        begun = {
            by.name: judging.begin(by, self.rewards[by.name], repeated, completions, ids, self.config, state)
            for by in self.world.with_first(self.combination.scoring(objective, self.objectives))
        }
        number = objective.place + draw * len(self.objectives)
        return Part(objective, sampling, problems, batch, completions[::size], begun, number)

    def judged(self, ctx: Step, part: Part) -> shaping.Scored:
        """The part and its `score`, after further draws for groups without spread and with the KL that rewards pay."""
        again = partial(self.sample, ctx, part.objective)
        part, scores = shaping.with_spread(ctx, part, again, partial(self.score, ctx))
        ctx.begin_objective(part.objective)
        ctx.sampling = part.sampling
        return self._penalised(ctx, part), scores

    def score(self, ctx: Step, part: Part) -> list[Scores]:
        """The rewards of every objective that scores this part's completions, as stage REWARDS left them.

        A completion that no reward function of an objective could score is not `scorable` for it.
        Raises Refused where too many calls of a judge failed.
        """
        size, device, found = self.config.data.num_generations, part.batch.group.device, []
        for objective in self.combination.scoring(part.objective, self.objectives):
            values, scorable, *_ = judged = self.world.hear(partial(part.judged_by, objective.name))
            if objective is part.objective:
                judging.show(ctx, part, judged, len(self.objectives))
            elif not scorable.any():
                continue  # it cannot judge these prompts
            scorable = scorable.view(-1, size).to(device, non_blocking=True)
            ctx.begin_objective(objective)
            ctx.sampling, ctx.scorable = part.sampling, scorable
            judging.check(ctx, judged, part.number)
            longest = part.sampling.max_completion_length
            values = shaping.overlong(values, part.batch, longest, self.config.loss.soft_overlong)
            rewards = ctx.apply(Stage.REWARDS, values.view(-1, size).to(device, non_blocking=True))
            step_metrics.rewards(ctx, rewards, part.number)
            found.append(Scores(rewards, known(ctx.scorable, "scorable"), objective.weight))
        return found

    def advantages(self, ctx: Step, part: Part, scores: Sequence[Scores]) -> Tensor:
        """Advantages (P, G) of this part's completions, before any guard."""
        ctx.begin_objective(part.objective)
        ctx.scorable = scorable_by_any(scores)
        return self.combination.advantages(shaping.paid(scores, part.batch.penalties), self.formulas.advantage_scale)

    def _penalised(self, ctx: Step, part: Part) -> Part:
        """The part with what its rewards pay for the KL, for which its log-probabilities are computed now."""
        if self.config.loss.kl_place == "loss":
            return part
        mask = self.formulas.completion_mask(part.batch, self.pad)
        batch = self.forward.before_updates(ctx, replace(part.batch, completion_mask=mask), self.reference)
        return replace(part, batch=shaping.with_penalties(ctx, batch, part.objective))

    def compute_logprobs(self, ctx: Step, part: Part, advantages: Tensor) -> Batch:
        """The scorable rows of the part with their advantages (P, G), old and reference log-probabilities.

        Raises Refused where no completion was scored, and where none of those that were has a token to train.
        """
        mask = self.formulas.completion_mask(part.batch, self.pad)
        rows = shaping.scored(ctx, mask, judging.unscored(ctx, self.rewards[part.objective.name]))
        batch = replace(part.batch, advantages=advantages.flatten(), completion_mask=mask).rows(rows)
        if batch.old_logprobs is None:
            batch = self.forward.before_updates(ctx, batch, self.reference)
        step_metrics.batch(self.recorder, batch, rollouts.terminators(self.policy, self.tokenizer))
        return batch

    def assign_credit(self, batch: Batch) -> Batch:
        """The batch with the advantages of its tokens."""
        return self.formulas.credit_assignment(batch, self.config.loss.gamma)

    def add_token_weights(self, ctx: Step, part: Part, batch: Batch) -> Part:
        """The part with the weight of each token in the loss, taken over all its rows that are left."""
        mask, longest = batch.completion_mask, ctx.sampling.max_completion_length
        weight = self.combination.loss_weight(part.objective)
        weights = token_weights(mask, self.config.loss.aggregation, longest) * weight
        batch = policy_loss.with_forks(replace(batch, weights=weights), self.config.loss)
        return replace(part, batch=batch, num_tokens=mask.sum())

    @contextmanager
    def shared(self, ctx: Step, part: Part) -> Iterator[Iterator[Batch]]:
        """A block for backward passes of this rank's micro-batches of a part; then the gradients are set aside."""
        ctx.begin_objective(part.objective)
        ctx.sampling, ctx.num_tokens = part.sampling, part.num_tokens
        with self.world.meeting(ctx):
            yield self.world.own(part.batch, self.config.data.micro_batch_prompts)
        self.updates.set_aside()

    def loss(self, ctx: Step, batch: Batch) -> LossOutput:
        """The micro-batch's part of the objective, to be minimised."""
        ctx.batch, settings = batch, self.config.loss
        use = replace(known(ctx.coefficients, "coefficients"), beta=ctx.beta * shaping.IN_THE_LOSS[settings.kl_place])
        num_tokens = known(ctx.num_tokens, "num_tokens")
        if not settings.entropy_coef:
            return self.loss_fn(LossInputs(ctx, batch, self.forward.logprobs(ctx, batch), num_tokens, use))
        logprobs, logits = self.forward.with_logits(ctx, batch)
        output = self.loss_fn(LossInputs(ctx, batch, logprobs, num_tokens, use))
        bonus = policy_loss.entropy_bonus(logits, batch, ctx.sampling.temperature)
        return output._replace(loss=output.loss - settings.entropy_coef * bonus.to(output.loss.dtype))

    def backward(self, ctx: Step, output: LossOutput) -> None:
        """Note the loss after stage LOSS, and its metrics; add its gradients to those of the batch so far."""
        self.recorder.metrics(output.metrics, ctx.update)
        loss = ctx.apply(Stage.LOSS, output.loss)
        self.recorder.metric("loss", loss.sum(), ctx.update)  # a guard may return shape (1,)
        self.formulas.accumulation(self.updates.scaler.scale(loss), self.updates.optimizer)

    def end(self, ctx: Step) -> Stepped:
        """Carry out the step's verdict, and return its event."""
        ctx.notes = links, metrics = self.recorder.flush()
        weights = step_metrics.last_weights(links)
        self.updates.end_step(ctx.verdict, not weights.broken if weights else self.updates.healthy)
        self.last_verdict, self.last_metrics = ctx.verdict, metrics
        self.refusals.append(ctx.refusal)
        metrics |= {"weights/nonfinite": weights.nonfinite} if weights else {}
        metrics |= step_metrics.of_updates(ctx, self.updates.scaler)
        return self._event(ctx)

    def fail(self, ctx: Step) -> Stepped:
        """The event of a step that an error ended, with the notes that can be read; no verdict is carried out."""
        self.updates.optimizer.zero_grad()
        try:
            ctx.notes = ctx.notes or self.recorder.flush()
        except RuntimeError:  # after a device-side assert nothing can be read; the recorder raises any other error
            if self.policy.device.type != "cuda":
                raise
            ctx.notes = (), {}
        return self._event(ctx, failed=True)

    def _event(self, ctx: Step, failed: bool = False) -> Stepped:
        """The event of a step whose notes are read."""
        links, metrics = known(ctx.notes, "notes")
        metrics |= step_metrics.memory(self.policy.device)
        metrics["step_time"] = time.perf_counter() - ctx.started
        index, done, acted = ctx.index, self.updates.committed, tuple(ctx.actions)
        return Stepped(index, done, ctx.verdict, metrics, links, acted, ctx.samples, failed, ctx.extras)

    def generator(self, step: int, purpose: str) -> torch.Generator:
        """Generator of the run's random draws for one purpose in one step."""
        seed = seeds.derive(self.config.run.seed, step, purpose)
        return torch.Generator(self.policy.device).manual_seed(seed)
