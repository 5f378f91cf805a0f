"""Interventions: guards protect and faults harm one value at one stage of a step; observers only measure it."""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.config import fields
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.hooks import Coefficients, Context, Outcome, Stage, Verdict
from grpo_lab.errors import RunError, Sentence
from grpo_lab.events import CompletionNote, LinkNote
from grpo_lab.training.objectives import Objective
from grpo_lab.training.recorder import Recorder

T = TypeVar("T")


@dataclass(frozen=True)
class ObjectiveCoefficients(Coefficients):
    """The coefficients of a run that lists objectives, with those of each by its name."""

    betas: Mapping[str, float] = field(default_factory=dict)
    """Weight of the KL penalty by objective."""
    kl_bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Band for the KL of an objective that has one, nats per token."""


@dataclass(kw_only=True, eq=False)
class Step(Context):
    """A step of a configured run, as its interventions read it; an intervention answers with an `Outcome`."""

    config: Config
    seed: int
    """Seed of the run; a draw also depends on the step and on its purpose."""
    sampling: SamplingConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    recorder: Recorder  # pyright: ignore[reportIncompatibleVariableOverride]
    optimizer: Any = None
    grad_norm: float | None = None
    """2-norm of this update's gradients before any guard, by an observer (training/observers.py); may be NaN or inf."""
    weight_norms: Tensor | None = None
    """(parameters,) 2-norms after this update."""
    last_verdict: Verdict = Verdict.KEEP
    """Verdict of the step before."""
    last_metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the step before, up to its end or refusal; none in the first."""
    largest_move: Callable[[], float | None] = lambda: None
    """Measure the largest change of any single weight since the step began; None without a snapshot from there."""
    stage_began: int = 0
    """The first step of the stage that the step belongs to."""
    samples: tuple[tuple[str, str, float], ...] = ()
    """A few (prompt, completion, reward)."""
    extras: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values that reward functions logged for the samples, by column."""
    experts: Callable[[int, Tensor, Tensor], Tensor] | None = None
    """Chooses the experts in sampling (`Choose` in training/routing.py); None where routers choose theirs."""
    objective: Objective | None = None
    """The objective whose prompts, completions or loss are at hand; None for a value of all together."""
    notes: tuple[tuple[LinkNote, ...], dict[str, float]] | None = None
    """Of the recorder, once they are read."""
    completions: tuple[CompletionNote, ...] = ()
    """Token by token, once the notes are read."""
    started: float = field(default_factory=time.perf_counter)

    @property
    def reason(self) -> str:
        """The reason of the action with the worst verdict, the first of equals."""
        return max(self.actions, key=lambda action: action.verdict).reason

    @property
    def refusal(self) -> str:
        """The reason for which the trainer itself, and no guard, refused the step; empty where it did not."""
        by_trainer = (each for each in self.actions if each.kind == "trainer" and each.verdict == Verdict.SKIP_STEP)
        return next((each.reason for each in by_trainer), "")

    @property
    def advantages(self) -> Tensor | None:
        """(b,) of the micro-batch."""
        return None if self.batch is None else self.batch.advantages

    @property
    def completion_mask(self) -> Tensor | None:
        """(b, T) bool of the micro-batch."""
        return None if self.batch is None else self.batch.completion_mask

    @property
    def beta(self) -> float:
        """Weight of the KL penalty in the loss at hand."""
        use = known(self.coefficients, "coefficients")
        if isinstance(use, ObjectiveCoefficients) and self.objective:
            return use.betas[self.objective.name]
        return use.beta

    def begin_objective(self, objective: Objective | None) -> None:
        """Let interventions read, and the recorder note, what belongs to this objective; None for all together."""
        self.objective, self.recorder.objective = objective, objective.name if objective else ""


def known(value: T | None, name: str) -> T:
    """The value of a step's field that must be known by now.

    Raises RunError where it is None: a guard that compared None, or a default such as 0, would protect nothing.
    """
    if value is None:
        raise RunError(f"step.{name} is None: it is not known yet; act at a later stage, and keep the observers on")
    return value


@dataclass(frozen=True)
class Intervention(fields.Settings):
    """Base of guards, faults and observers. Its fields are its settings, except those that it keeps between steps.

    Settings are frozen, so that the config of a run stays true. It keeps `self.memory`, a plain dictionary of numbers,
    and each field with `init=False`: a list or dictionary that may hold tensors.
    """

    name: ClassVar[str]
    stage: ClassVar[Stage]
    changes_healthy_runs: ClassVar[str] = ""
    """Why a healthy run is not bit-identical with this on; empty where it is."""
    may_roll_back: ClassVar[bool] = False
    """Whether it can ask for a snapshot to go back to."""

    memory: dict[str, float] = field(default_factory=dict, init=False, compare=False)

    def __call__(self, value: Any, step: Step) -> Outcome:
        """Answer to the value of this stage, whose type and shape `Stage` lists; each subclass defines it."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of each field that is kept, by name; as in torch, tensors are shared."""
        return {kept.name: copy.copy(getattr(self, kept.name)) for kept in dataclasses.fields(self) if not kept.init}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the fields of a `state_dict`; a field that is not in it stays as it is."""
        for kept in dataclasses.fields(self):
            if not kept.init and kept.name in state:
                object.__setattr__(self, kept.name, copy.copy(state[kept.name]))

    def refuse(self, value: Any, step: Step, reason: str, verdict: Verdict, patience: int, then: Verdict) -> Outcome:
        """Refuse with `verdict`, and with the worse `then` after `patience` refused steps in a row.

        A step counts once however often it is refused, and one without a refusal starts the count again.
        """
        last, in_a_row = self.memory.get("refused_step"), self.memory.get("in_a_row", 0)
        if last != step.index:
            in_a_row = in_a_row + 1 if last == step.index - 1 else 1
        self.memory.update(refused_step=step.index, in_a_row=in_a_row)
        if in_a_row > patience:
            reason = Sentence("{}; {:.0f} steps in a row, patience {}", reason, in_a_row, patience)
            return Outcome(value, then, reason)
        return Outcome(value, verdict, reason)

    def seed(self, step: Step) -> int:
        """Seed of the intervention's own random draws in this step, independent of the run's."""
        return seeds.derive(step.seed, step.index, self.name)

    def generator(self, step: Step, device: torch.device | str = "cpu") -> torch.Generator:
        """Generator of the intervention's own random draws in this step."""
        return torch.Generator(device).manual_seed(self.seed(step))


@dataclass(frozen=True)
class AtOneStep(Intervention):
    """An intervention that acts in one step of the run and does nothing in the others."""

    at_step: Annotated[int, fields.AtLeast(0)] = 1
    """The step in which it happens."""

    def __call__(self, value: Any, step: Step) -> Outcome:
        return self.inject(value, step) if step.index == self.at_step else Outcome(value)

    def inject(self, value: Any, step: Step) -> Outcome:
        """Answer to the value of the one step."""
        raise NotImplementedError


def registered(module: Mapping[str, Any]) -> dict[str, type[Intervention]]:
    """The guards or faults in a module's globals by name, in their order; a class without a name is only a base."""
    classes = [each for each in module.values() if isinstance(each, type) and issubclass(each, Intervention)]
    return {each.name: each for each in classes if hasattr(each, "name")}


def exceeds(what: str, number: float, limit: float) -> str:
    """The reason for acting on a number that is not within its limit. Every comparison with NaN is False.

    >>> exceeds("grad norm", 812.4, 10), exceeds("grad norm", float("nan"), 10)
    ('grad norm 812.4 > 10', 'grad norm nan is not a number; limit 10')
    """
    if math.isnan(number):
        return Sentence("{} nan is not a number; limit {:g}", what, limit)
    return Sentence("{} {:.4g} > {:g}", what, number, limit)


Arrangement = Mapping[Stage, list[tuple[str, Intervention]]]
"""The interventions of each stage in the order in which they act, each with its kind: fault, observer or guard."""
