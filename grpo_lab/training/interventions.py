"""Interventions: guards protect and faults harm one value at one stage of a step; observers only measure it."""

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.algorithm.batch import Batch
from grpo_lab.config import fields
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.errors import RunError
from grpo_lab.events import Stage, Verdict
from grpo_lab.training.objectives import Objective
from grpo_lab.training.recorder import Recorder

T = TypeVar("T")


class Outcome(NamedTuple):
    """The answer of an intervention: the value to go on with and, if it acted, a verdict and a reason."""

    value: Any
    verdict: Verdict = Verdict.KEEP
    reason: str = ""
    replace: Mapping[str, Any] = MappingProxyType({})
    """Fields of the `Step` to replace for the rest of the step, as in `{"scorable": ...}`."""


@dataclass(frozen=True)
class Coefficients:
    """The numbers of one step that guards may change; applied at each update, so that no restore undoes them."""

    learning_rate: float
    beta: float
    """Weight of the KL penalty where the run lists no objectives."""
    epsilon: float
    epsilon_high: float | None
    adam_eps: float
    delta: float | None = None
    """Largest ratio that counts where the advantage is negative (dual clip)."""
    betas: Mapping[str, float] = field(default_factory=dict)
    """Weight of the KL penalty by objective, where the run lists them."""
    kl_bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Band for the KL of an objective that has one, nats per token."""


@dataclass(frozen=True, eq=False)
class Step:
    """Everything that an intervention may read of the step; a field that is None is not known yet.

    Immutable: assigning to a field raises FrozenInstanceError. An intervention answers with an `Outcome`.
    """

    index: int
    config: Config
    sampling: SamplingConfig
    """The sampling settings in use: as configured, and from stage SAMPLING on as its guards left them."""
    policy: Any
    recorder: Recorder
    optimizer: Any = None
    last_verdict: Verdict = Verdict.KEEP
    """Verdict of the step before."""
    last_metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the step before, up to its end or refusal; none in the first."""
    largest_move: Callable[[], float | None] = lambda: None
    """Measure the largest change of any single weight since the step began; None without a snapshot from there."""
    stage_began: int = 0
    """The first step of the stage that the step belongs to."""
    update: int = 0
    objective: Objective | None = None
    """The objective whose prompts, completions or loss are at hand; None for a value of all together."""
    note: str = ""
    """The pass that the logits belong to: `sampling`, `old`, `reference` or `current`."""
    coefficients: Coefficients | None = None
    scorable: Tensor | None = None
    """(P, G) bool: completions that count."""
    batch: Batch | None = None
    """The micro-batch whose logits or loss are computed; None while completions are sampled."""
    num_tokens: Tensor | None = None
    """() int: trained tokens of the whole batch."""
    grad_norm: float | None = None
    """2-norm of this update's gradients before any guard touched them; may be NaN or inf."""
    weight_norms: Tensor | None = None
    """(parameters,) 2-norms after this update."""

    @property
    def advantages(self) -> Tensor | None:
        """(b,) of the micro-batch."""
        return None if self.batch is None else self.batch.advantages

    @property
    def completion_mask(self) -> Tensor | None:
        """(b, T) bool of the micro-batch."""
        return None if self.batch is None else self.batch.completion_mask


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
            return Outcome(value, then, f"{reason}; {in_a_row:.0f} steps in a row, patience {patience}")
        return Outcome(value, verdict, reason)

    def seed(self, step: Step) -> int:
        """Seed of the intervention's own random draws in this step, independent of the run's."""
        return seeds.derive(step.config.run.seed, step.index, self.name)

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


def exceeds(what: str, number: float, limit: float) -> str:
    """The reason for acting on a number that is not within its limit. Every comparison with NaN is False.

    >>> exceeds("grad norm", 812.4, 10), exceeds("grad norm", float("nan"), 10)
    ('grad norm 812.4 > 10', 'grad norm nan is not a number; limit 10')
    """
    return f"{what} nan is not a number; limit {limit:g}" if math.isnan(number) else f"{what} {number:.4g} > {limit:g}"


Arrangement = Mapping[Stage, list[tuple[str, Intervention]]]
"""The interventions of each stage in the order in which they act, each with its kind: fault, observer or guard."""
