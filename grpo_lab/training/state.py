"""A run as it goes on: everything that its steps change, and the trainer that makes them."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from grpo_lab.config.schema import Config, planned_steps
from grpo_lab.core.hooks import Refused, Verdict
from grpo_lab.errors import ConfigError
from grpo_lab.events import Event, LinkNote, Started, Stepped
from grpo_lab.models import adapters, loading
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training import passes, policy_loss, rollouts, routing, sft, torch_settings
from grpo_lab.training.environment import Environment
from grpo_lab.training.interventions import Step, known
from grpo_lab.training.objectives import Objective, Rewards, load_tasks_and_rewards, resolve
from grpo_lab.training.recorder import Recorder
from grpo_lab.training.reference import REFERENCES
from grpo_lab.training.registry import FORMULAS, carry_over, combination, needs_reference, validated
from grpo_lab.training.several import OfObjective, PooledObjectives, SeveralObjectives
from grpo_lab.training.token_notes import Texts
from grpo_lab.training.updates import adamw, usual_coefficients
from grpo_lab.training.variants import ConfiguredTrainer, of_accumulation, variants

Model = tuple[Any, Any] | None
"""A policy and its tokenizer in place of the configured ones."""
Controls = Callable[[int], Sequence[str]] | None
"""Called at the top of each step; returns overrides for `Config.with_`, applied to the running model."""


class Training:
    """A run as it goes on: its policy, reference, updates, interventions, and the trainer of its stage.

    Raises ConfigError for a name or setting that does not exist, and ModelError for a policy that cannot be trained.
    """

    def __init__(
        self, config: Config, model: Model = None, tasks: Tasks | None = None, rewards: Rewards = None
    ) -> None:
        self.formulas, self.interventions = validated(config)
        self.config, self.objectives = config, resolve(config)
        self.tasks, self.rewards = load_tasks_and_rewards(self.objectives, config, tasks, rewards)
        self.policy, self.tokenizer = self.prepared(model)
        rollouts.check_terminators(self.policy, self.tokenizer)
        taught = "sft" in config.run.stages
        self.demonstrations = sft.load(config, self.policy, self.tokenizer) if taught else None
        self.reference: Any = None
        self.may_have_reference = needs_reference(config)
        self.recorder = Recorder()
        self.texts = Texts(self.tokenizer)
        self.recorder.decode = self.texts.prompt
        self.stage, self.steps = config.run.stages[0], range(0)
        self.updates = adamw(self.policy, config, self.interventions)
        self.trainer: ConfiguredTrainer | SeveralObjectives | None = None
        self.last_verdict: Verdict = Verdict.KEEP
        self.last_metrics: dict[str, float] = {}
        self.refusals: list[str] = []
        self.resumed_at = -1
        """The step at which the run went on from a saved state; -1 for a run that begins."""
        self.saved: Mapping[str, Any] = {}
        """The state to go on from, with the `overrides` to make then; empty for a run that begins."""
        num_parameters = sum(p.numel() for p in self.policy.parameters())
        torch.set_num_threads(torch_settings.num_threads(config.run, num_parameters, self.policy.device))

    def prepared(self, model: Model) -> tuple[Any, Any]:
        """The policy, ready to be trained, and its tokenizer."""
        config = self.config
        given, tokenizer = model or loading.load(config.model.name, config.model.precision, config.run.device)
        policy = adapters.prepared(given, config.lora, config.run.seed)
        torch_settings.prepare(config.run, policy.device)
        passes.check(policy.eval(), config.model.prompt_pass)
        return policy, tokenizer

    def started(self) -> Started:
        """The event with which a run begins."""
        device, threads = str(self.policy.device), torch.get_num_threads()
        return Started(self.config.to_dict(), self.updates.num_parameters, device, threads)

    def begin_stage(self, stage: str) -> range:
        """Begin a stage with fresh updates and interventions, and return its steps.

        The reference is the policy as it is when GRPO begins.
        """
        first = self.steps.stop
        self.stage, self.steps = stage, range(first, first + planned_steps(self.config.to_dict())[stage])
        arranged = self.interventions.items()
        self.interventions = {at: [(kind, replace(each)) for kind, each in row] for at, row in arranged}  # no memory
        self.last_verdict, self.last_metrics, self.refusals = Verdict.KEEP, {}, []
        if stage == "grpo" and self.may_have_reference:
            self.reference = REFERENCES[self.config.lora.reference](self.policy)
        self.updates = adamw(self.policy, self.config, self.interventions)
        self.trainer = self._trainer()
        return self.steps

    def asked(self, index: int, controls: Controls) -> tuple[str, ...]:
        """The changes that the controls want before a step."""
        return tuple(controls(index)) if controls else ()

    def change(self, overrides: Sequence[str]) -> None:
        """Apply overrides to the running model; interventions that stay on lose nothing they keep.

        Raises ConfigError for a setting that is fixed once a run has started.
        """
        changed = self.config.changed_live(*overrides)
        if needs_reference(changed) and not self.may_have_reference:
            raise ConfigError("this run has no reference model: it started with loss.beta = 0; start it with more")
        self.configure(changed)

    def configure(self, changed: Config) -> None:
        """Take over a config that differs from the run's in settings that may change while a model trains."""
        chosen, interventions = validated(changed)
        carry_over(self.interventions, interventions)
        self.config, self.formulas, self.interventions = changed, chosen, interventions
        self.objectives = resolve(changed)
        self.updates.configure(changed.optimizer)
        self.updates.take_snapshots(changed.run.snapshot_every, interventions)
        self.trainer = self._trainer()

    def environment(self, objective: Objective) -> Environment:
        """The tasks and reward functions of an objective."""
        tasks, functions = self.tasks[objective.name], self.rewards[objective.name]
        return Environment(
            self.config, objective, tasks, functions, self.policy, self.tokenizer, first_step=self.steps.start
        )

    def made_of(self, *bases: type[ConfiguredTrainer], **constants: Any) -> type[ConfiguredTrainer]:
        """The class of a trainer, from its bases."""
        return type("Trainer", bases, constants)

    def _trainer(self) -> ConfiguredTrainer | SeveralObjectives:
        """The trainer of the stage."""
        if self.stage == "sft":
            taught = known(self.demonstrations, "demonstrations")
            bases = *of_accumulation(self.config), sft.SftTrainer
            return self._trainer_of(self.objectives[0], *bases, demonstrations=taught)
        chosen = variants(self.config, self.interventions, self.policy)
        if not self.config.objectives:
            return self._trainer_of(self.objectives[0], *chosen, ConfiguredTrainer)
        way, trainers = combination(self.config), list[OfObjective]()
        for each in self.objectives:
            weight = 1.0 if way.pooled else each.weight
            trainer = self._trainer_of(each, *chosen, OfObjective, objective=each, loss_weight=weight)
            assert isinstance(trainer, OfObjective)
            trainers.append(trainer)
        kind = PooledObjectives if way.pooled else SeveralObjectives
        return kind(trainers=trainers, updates=self.updates, combination=way)

    def _trainer_of(self, of: Objective, *bases: type[ConfiguredTrainer], **constants: Any) -> ConfiguredTrainer:
        """A trainer for one objective, of the class that these bases and constants make."""
        config = self.config
        return self.made_of(*bases, **constants)(
            config=config,
            formulas=self.formulas,
            policy=self.policy,
            updates=self.updates,
            prompts=self.environment(of),
            sampling=of.sampling,
            ends=rollouts.terminators(self.policy, self.tokenizer),
            pad=self.tokenizer.pad_token_id,
            num_generations=config.data.num_generations,
            num_iterations=config.loss.num_iterations,
            micro_batch_prompts=config.data.micro_batch_prompts,
            aggregation=config.loss.aggregation,
            reference=self.reference,
            run=routing.pass_of(config.model),
            advantage_fn=self.formulas.advantage_scale,
            loss_fn=policy_loss.loss_function(config.loss, self.formulas),
        )

    def begin(self, index: int) -> Step:
        """Begin a step: dropout off, and a snapshot if one is due."""
        self.policy.eval()
        self.recorder.completions.kl = FORMULAS["kl_estimator"].get(self.config.loss.kl_estimator)
        self.updates.begin_step(index)
        config = sft.in_place_of_grpo(self.config) if self.stage == "sft" else self.config
        self.recorder.context = ctx = Step(
            index=index,
            seed=self.config.run.seed,
            config=self.config,
            sampling=self.config.sampling,
            policy=self.policy,
            recorder=self.recorder,
            interventions=self.interventions,
            optimizer=self.updates.optimizer,
            coefficients=usual_coefficients(config, index - self.steps.start),
            last_verdict=self.last_verdict,
            last_metrics=MappingProxyType(self.last_metrics),
            largest_move=partial(self.updates.largest_move, index),
            stage_began=self.steps.start,
        )
        return ctx

    def make(self, index: int) -> Generator[Event, None, Step]:
        """Make a step, yield its event, and return its context. Any error of a step is raised after its event."""
        ctx = self.begin(index)
        try:
            with suppress(Refused):  # the guard's reason is in ctx.actions; `end` carries out the verdict
                known(self.trainer, "trainer").step(ctx)
            event = self.end(ctx)
        except Exception:
            yield self._failed(ctx)
            raise
        yield event
        return ctx

    def end(self, ctx: Step) -> Stepped:
        """Carry out the step's verdict, and return its event."""
        links, metrics = self._read(ctx)
        weights = self.updates.end_step(ctx.verdict, links)
        self.last_verdict, self.last_metrics = ctx.verdict, metrics
        self.refusals.append(ctx.refusal)
        metrics |= {"weights/nonfinite": weights.nonfinite} if weights else {}
        metrics |= self.updates.metrics(ctx)
        return self._event(ctx)

    def _read(self, ctx: Step) -> tuple[tuple[LinkNote, ...], dict[str, float]]:
        """Read the recorder's notes into the step's context."""
        ctx.notes = self.recorder.flush()
        ctx.completions = self.recorder.completions.flush(self.texts)
        return ctx.notes

    def _failed(self, ctx: Step) -> Stepped:
        """The event of a step that an error ended, with the notes that can be read; no verdict is carried out."""
        self.updates.optimizer.zero_grad()
        try:
            ctx.notes = ctx.notes or self._read(ctx)
        except RuntimeError:  # after a device-side assert nothing can be read; the recorder raises any other error
            if self.policy.device.type != "cuda":
                raise
            ctx.notes = (), {}
        return self._event(ctx, failed=True)

    def _event(self, ctx: Step, failed: bool = False) -> Stepped:
        """The event of a step whose notes are read."""
        links, metrics = known(ctx.notes, "notes")
        metrics |= torch_settings.memory(self.policy.device)
        metrics["step_time"] = time.perf_counter() - ctx.started
        index, done, acted, tokens = ctx.index, self.updates.committed, tuple(ctx.actions), ctx.completions
        return Stepped(index, done, ctx.verdict, metrics, links, acted, ctx.samples, failed, ctx.extras, tokens)
