"""Guards in a plain loop of PyTorch, and the run folder that they write; the other hosts are built on them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from grpo_lab.config.catalog import guards_named
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Action, Refused, Stage, Verdict
from grpo_lab.errors import ConfigError, GrpoLabError, check_known
from grpo_lab.events import Ended, Resumed, Started, Stepped
from grpo_lab.runs import run_folder
from grpo_lab.training.argument_types import wrong
from grpo_lab.training.interventions import Coefficients, Step
from grpo_lab.training.recorder import Recorder
from grpo_lab.training.registry import validated
from grpo_lab.training.updates import RecordedUpdates, ScaledUpdates

NAME = "hosted"
"""The name of such a run in its config."""
OF_THE_UPDATE = (Stage.COEFFICIENTS, Stage.GRADIENTS, Stage.WEIGHTS)
"""Stages whose values `Guards.step` passes itself; a loop passes those of the others."""
UNREAD = {
    "dual_clip": "it sets delta, which is a coefficient of your loss; use clamp_log_ratio",
    "adaptive_beta": "it sets beta, which your loss has read by then; set it yourself",
}
"""Guards of coefficients that are not the optimizer's."""


class Report(NamedTuple):
    """The outcome of a step: what the guards decided and did, and what was measured."""

    step: int
    verdict: Verdict
    reason: str
    actions: tuple[Action, ...]
    metrics: Mapping[str, float]

    @property
    def refused(self) -> bool:
        """Whether the weights are those of before the step, or of an older snapshot."""
        return self.verdict >= Verdict.SKIP_STEP

    @property
    def stop(self) -> bool:
        """Whether a guard asks for the end of training."""
        return self.verdict == Verdict.STOP


class HostedRun:
    """The run folder of guards, which they hold until `close`; each event is on disk before the next step.

    Raises RunError while another process writes the folder, and as `check_folder` does.
    """

    def __init__(self, folder: Path, config: Config, over: bool) -> None:
        check_folder(folder, over)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.began, self._held = folder, False, ExitStack()
        # A trainer that failed in a notebook is still there: the next one of this process may write on.
        self.append = self._held.enter_context(run_folder.writer(folder, config, by_process=True))
        run_folder.write_config(folder, config)

    def begin(self, step: int, started: Started) -> None:
        """Begin with `step`: a new run, or the one that is there without what it did from `step` on."""
        self.began = True
        before = run_folder.read(self.folder)[1]
        replaced = (isinstance(e, Ended) or (isinstance(e, Stepped) and e.step >= step) for e in before)
        kept = next((at for at, gone in enumerate(replaced) if gone), len(before))
        self.append(Resumed(step, kept, "the loop began again") if before else started)

    def close(self, end: Ended) -> None:
        """Write the end, if there was a step, and let other processes write."""
        if self.began:
            self.append(end)
        self._held.close()


def check_folder(folder: Path, over: bool) -> None:
    """Raise RunError for a folder with a run that guards did not write, and unless `over` for one that is over."""
    if (folder / run_folder.EVENTS).exists():
        config, events = run_folder.read(folder)
        if config.run.name != NAME or (events and isinstance(events[-1], Ended) and not over):
            raise run_folder.occupied(folder)


class Guards:
    """Guards of a loop: `step` takes the place of `optimizer.step()`; `at` passes a value of another stage.

        guards = gl.Guards("warm_up", "skip_nonfinite", "check_weights", "rollback")
        for batch in batches:
            log_ratio = guards.at("log_ratio", logprobs - old_logprobs)
            loss(log_ratio, batch).backward()
            report = guards.step(model, optimizer)

    Names are those of guards, with settings as "clip_gradients.max_norm=0.3", of presets, and your own `file.py:Mine`.
    A refused step leaves weights, moments and the optimizer's count as they were; learning rate and eps are set for the
    step and put back, so that a scheduler's rate stays its own. `scaler` is the loop's GradScaler. With `events`, a
    folder, `grpo-lab trace` reads what happened; a loop that was killed goes on in its folder.

    >>> Guards("stable").names
    ('warm_up', 'representable_epsilon', 'clamp_kl', 'skip_nonfinite')

    Raises ConfigError for an unknown guard or setting, RunError for a folder with another run or one that is over.
    """

    def __init__(
        self, *names: str, scaler: Any = None, events: str | Path | None = None, snapshot_every: int = 0
    ) -> None:
        self.config = _config_of(names).with_(f"run.snapshot_every={snapshot_every}", f"run.name={NAME}")
        _, self._interventions = validated(self.config)
        self._scaler, self._recorder = scaler, Recorder()
        self.index = 0
        """The number of the step that is going on, or of the next one."""
        self._last_verdict = Verdict.KEEP
        self._last_metrics: Mapping[str, float] = {}
        self._ctx: Step | None = None
        self._transaction: RecordedUpdates | None = None
        self._snapshot: dict[str, Any] = {}
        self._seen: set[str] = set()
        self._unseen = dict(self.stages)
        self._run: HostedRun | None = None
        if events:
            self.write_to(Path(events))

    @property
    def names(self) -> tuple[str, ...]:
        """The guards, in the order in which they act at a stage."""
        return tuple(self.config.guards)

    @property
    def stages(self) -> Mapping[str, Stage]:
        """The stage of each guard, in the order in which they act."""
        return {each.name: stage for stage, row in self._interventions.items() for kind, each in row if kind == "guard"}

    def forget_step(self) -> None:
        """Forget a step that was begun and not ended."""
        self._ctx = None

    @property
    def refused(self) -> bool:
        """Whether a guard has refused the step that is going on."""
        return self._begun().verdict >= Verdict.SKIP_STEP

    @property
    def scorable(self) -> torch.Tensor | None:
        """(P, G) bool: completions that count after stage REWARDS; None before it."""
        return self._begun().scorable

    def at(self, stage: str | Stage, value: Any, **known: Any) -> Any:
        """The value of a stage as its guards leave it. Where one refuses the step, `step` makes no update.

        `known` are fields of the step that guards read, as `scorable` (P, G) of rewards; by default all are scorable. A
        reward that does not count is NaN: leave it out of its group's mean, as `group_advantages(rewards,
        scorable=guards.scorable)` does. Raises ConfigError for an unknown stage.
        """
        check_known("stage", [stage], [each.value for each in Stage])
        if stage in OF_THE_UPDATE:
            raise ConfigError(f"stage {stage} belongs to `step`, which passes its value itself")
        wanted = {Stage.BATCH: Batch, Stage.SAMPLING: SamplingConfig}.get(Stage(stage), torch.Tensor)
        if not isinstance(value, wanted):
            way_out = f"give guards.at({str(stage)!r}, {wanted.__name__.lower()})"
            raise wrong(stage, value, f"a {wanted.__name__}", way_out)
        if stage == Stage.REWARDS and "scorable" not in known:
            known["scorable"] = torch.ones_like(value, dtype=torch.bool)
        ctx = self._begun()
        ctx.replace(known)
        self._seen.add(stage)
        try:
            value = ctx.apply(Stage(stage), value)
        except Refused:
            return value
        if stage == Stage.REWARDS and self.scorable is not None and not self.scorable.all():
            return value.where(self.scorable, torch.nan)
        return value

    def step(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **metrics: float) -> Report:
        """Make an update by the gradients that are there, unless a guard refuses it, and clear them.

        `metrics` are numbers of the loop that guards of the next step read, as kl.
        """
        ctx = self.begin_step(model, optimizer)
        with self.coefficients(ctx, optimizer):
            if ctx.verdict < Verdict.SKIP_STEP:
                with suppress(Refused):  # the reason is in the ctx's actions
                    self.transaction.make(ctx)
        if idle := self._idle():
            warnings.warn(idle, stacklevel=2)
        return self.end_step(ctx, metrics)

    def _idle(self) -> str:
        """After the first step, the guards that the loop has shown no value, each with the call that shows it one."""
        stages, self._unseen = self._unseen, {}
        missed = {name: stage for name, stage in stages.items() if stage not in {*self._seen, *OF_THE_UPDATE}}
        calls = {name: f'call guards.at("{stage}", …) where the loop has that value' for name, stage in missed.items()}
        calls |= {name: UNREAD[name] for name in stages if name in UNREAD}
        return "; ".join(f"{name} has no effect in this loop: {call}" for name, call in calls.items())

    @property
    def transaction(self) -> RecordedUpdates:
        """The updates of the loop's model; there is none before the first step."""
        assert self._transaction is not None
        return self._transaction

    def begin_step(self, model: Any, optimizer: Any) -> Step:
        """The step as its guards have left it so far, with a snapshot taken if one is due."""
        if self._transaction is None or self._transaction.optimizer is not optimizer:
            self._transaction = self._bound(model, optimizer)
        ctx, transaction = self._begun(), self._transaction
        moved = partial(transaction.largest_move, self.index)
        ctx.policy, ctx.optimizer, ctx.largest_move = model, optimizer, moved
        if self._run and not self._run.began:
            device = str(transaction.parameters[0].device)
            num_parameters, threads = transaction.num_parameters, torch.get_num_threads()
            self._run.begin(self.index, Started(self.config.to_dict(), num_parameters, device, threads))
        transaction.begin_step(self.index)
        return ctx

    @contextmanager
    def coefficients(self, ctx: Step, optimizer: Any, beta: float | None = None) -> Iterator[None]:
        """Let guards change learning rate and eps of the optimizer within the block; the loop's `beta` is read only."""
        groups = optimizer.param_groups
        before = [{name: group[name] for name in ("lr", "eps") if name in group} for group in groups]
        rate, eps = float(before[0]["lr"]), float(before[0].get("eps", 1e-8))
        loss = self.config.loss
        usual = Coefficients(rate, loss.beta if beta is None else beta, loss.epsilon, loss.epsilon_high, eps)
        ctx.coefficients = usual
        with suppress(Refused):  # `ctx.verdict` says so
            ctx.coefficients = use = ctx.apply(Stage.COEFFICIENTS, usual)
            for group in groups:
                group["lr"] = group["lr"] * (use.learning_rate / rate) if rate else group["lr"]
                if use.adam_eps != eps and "eps" in group:
                    group["eps"] = max(group["eps"], use.adam_eps)
        try:
            yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)

    def end_step(self, ctx: Step, metrics: Mapping[str, float] = MappingProxyType({})) -> Report:
        """Carry out the verdict of the guards, and begin the next step."""
        links, measured = self._recorder.flush()
        self.transaction.end_step(ctx.verdict, links)
        if not self._run:
            ctx.largest_move = lambda: None  # a pass over all weights, for the record alone
        measured |= {**self.transaction.metrics(ctx), **metrics}
        actions = tuple(ctx.actions)
        event = Stepped(self.index, self.transaction.committed, ctx.verdict, measured, links, actions)
        if self._run:
            self._run.append(event)
        reason = ctx.reason if actions else ""
        self.index, self._ctx = self.index + 1, None
        self._last_verdict, self._last_metrics = ctx.verdict, measured
        return Report(event.step, event.verdict, reason, actions, measured)

    def write_to(self, folder: Path, over: bool = False) -> None:
        """Write events into a folder from the next step on, also of a run that is `over`; see HostedRun."""
        self._run = self._run or HostedRun(folder, self.config, over)

    def close(self, stopped: str = "") -> None:
        """Write to the run folder that training is over, and, where it was stopped early, the reason."""
        self._close(Ended("stopped", stopped) if stopped else Ended("done"))

    def fail(self, error: BaseException) -> None:
        """Write to the run folder that an error ended training, with its traceback if it is no message to the user."""
        if isinstance(error, GrpoLabError):
            self._close(Ended("failed", str(error)))
        elif isinstance(error, KeyboardInterrupt):
            self._close(Ended("stopped", "interrupted"))
        elif self._run:
            self._close(run_folder.write_crash(self._run.folder, error))

    def _close(self, end: Ended) -> None:
        if self._run:
            self._run.close(end)
            self._run = None

    def state_dict(self) -> dict[str, Any]:
        """What the guards keep, for the loop's own checkpoint; tensors are shared.

        It has no snapshot where the next step takes one: of models with 10 million parameters or more, it may have one.
        """
        made = self._transaction.snapshots if self._transaction else None
        kept = made.state_dict() if made and not made.due(self.index) else {}
        return {
            "step": self.index,
            "snapshot": kept,
            "verdict": self._last_verdict.name,
            "metrics": dict(self._last_metrics),
            "guards": {each.name: each.state_dict() for row in self._interventions.values() for _, each in row},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a `state_dict` holds; a guard that is not in it begins anew."""
        self.index, self._last_verdict = state["step"], Verdict[state["verdict"]]
        self._last_metrics, self._snapshot = dict(state["metrics"]), state.get("snapshot", {})
        for row in self._interventions.values():
            for _, each in row:
                each.load_state_dict(state["guards"].get(each.name, {}))

    def _begun(self) -> Step:
        """The step that is going on, begun if it was not."""
        if self._ctx is None:
            self._ctx = Step(
                index=self.index,
                seed=self.config.run.seed,
                config=self.config,
                sampling=self.config.sampling,
                policy=None,
                recorder=self._recorder,
                interventions=self._interventions,
                last_verdict=self._last_verdict,
                last_metrics=MappingProxyType(self._last_metrics),
            )
        return self._ctx

    def _bound(self, model: Any, optimizer: Any) -> RecordedUpdates:
        """The updates of a model by an optimizer. Raises ConfigError for one that trains no weight of the model."""
        for name, value, wanted in (("model", model, torch.nn.Module), ("optimizer", optimizer, torch.optim.Optimizer)):
            if not isinstance(value, wanted):
                raise wrong(name, value, f"a torch {wanted.__name__}", "give guards.step(model, optimizer)")
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) in held}
        if not trained:
            raise ConfigError(
                "the optimizer holds no weight of this model that requires a gradient; give both together"
            )
        if self._scaler and self._scaler.is_enabled():
            updates = ScaledUpdates(model, trained, optimizer, self._scaler)
        else:
            updates = RecordedUpdates(model, trained, optimizer)
        updates.take_snapshots(self.config.run.snapshot_every, self._interventions)
        updates.snapshots.load_state_dict(self._snapshot)
        return updates


def _config_of(names: tuple[str, ...]) -> Config:
    """The config with these guards. Raises ConfigError for no name, and for an override that is no guard's."""
    if not names:
        raise ConfigError("Guards() has no name; give names of guards or presets")
    config = Config()
    for name in names:
        if not isinstance(name, str):
            way_out = 'give names such as "warm_up" and "clip_gradients.max_norm=0.3", or "none"'
            raise wrong("guards", name, "a name", way_out)
        if "=" in name:
            config = config.with_(f"guards.{name}")
        else:
            config = config.with_guards({**config.guards, **guards_named(name)})
    return config
