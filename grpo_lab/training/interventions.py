"""The one seam: at each stage of a step a value is handed to whoever protects it (guards) or harms it (faults)."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.algorithm.batch import Batch
from grpo_lab.config import fields, user_code
from grpo_lab.config.schema import Config, SamplingConfig
from grpo_lab.errors import ConfigError
from grpo_lab.events import Action, Stage, Verdict
from grpo_lab.training.recorder import Recorder


class Outcome(NamedTuple):
    """An intervention's answer: the value to go on with, and why if it acted."""

    value: Any
    verdict: Verdict = Verdict.KEEP
    reason: str = ""


@dataclass(frozen=True)
class Coefficients:
    """The numbers of one step that guards may change; applied at each update, so no restore can undo them."""

    learning_rate: float
    beta: float
    epsilon: float
    epsilon_high: float | None
    adam_eps: float
    delta: float | None = None


@dataclass(frozen=True)
class Intervention(fields.Settings):
    """One guard or fault: its fields are its settings, except those that it keeps from step to step.

    Frozen settings keep a run's config true. `self.memory`, a plain dictionary of numbers, is kept; so is each field
    with `init=False`, a list or dictionary that may hold tensors.
    """

    name: ClassVar[str]
    stage: ClassVar[Stage]
    changes_healthy_runs: ClassVar[str] = ""
    """Why a healthy run is not bit-identical with this on; empty where it is."""
    may_roll_back: ClassVar[bool] = False
    """Whether it can ask for a snapshot to go back to."""

    memory: dict[str, float] = field(default_factory=dict, init=False, compare=False)

    def __call__(self, value: Any, step: Step) -> Outcome:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """A copy of each field that is kept, by name; as in torch, tensors are shared."""
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
        """For the intervention's own random draws in this step, independent of the run's."""
        return seeds.derive(step.config.run.seed, step.index, self.name)

    def generator(self, step: Step, device: torch.device | str = "cpu") -> torch.Generator:
        """The intervention's own random draws for this step."""
        return torch.Generator(device).manual_seed(self.seed(step))


@dataclass(frozen=True)
class AtOneStep(Intervention):
    """An intervention that strikes in one step of the run and does nothing in the others."""

    at_step: Annotated[int, fields.AtLeast(0)] = 1
    """The step in which it happens."""

    def __call__(self, value: Any, step: Step) -> Outcome:
        return self.strike(value, step) if step.index == self.at_step else Outcome(value)

    def strike(self, value: Any, step: Step) -> Outcome:
        raise NotImplementedError


def exceeds(what: str, number: float, limit: float) -> str:
    """The reason for acting on a number that is not within its limit; NaN is greater than nothing.

    >>> exceeds("grad norm", 812.4, 10), exceeds("grad norm", float("nan"), 10)
    ('grad norm 812.4 > 10', 'grad norm nan is not a number; limit 10')
    """
    return f"{what} nan is not a number; limit {limit:g}" if math.isnan(number) else f"{what} {number:.4g} > {limit:g}"


Arrangement = dict[Stage, list[tuple[str, Intervention]]]


class Refused(Exception):
    """A guard refused the rest of this step. Caught by the trainer, never seen by a user."""


@dataclass
class Step:
    """One attempt at a step: what the trainer shares with interventions, and what they did."""

    index: int
    config: Config
    interventions: Arrangement
    policy: Any
    recorder: Recorder
    optimizer: Any = None
    last_verdict: Verdict = Verdict.KEEP
    """Verdict of the step before."""
    last_metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the step before, as far as it came; none in the first."""
    update: int = 0
    note: str = ""
    """Which pass the logits are of: `sampling`, `old`, `reference` or `current`."""
    sampling: SamplingConfig = field(init=False)
    """The sampling settings in use: as configured, and from stage SAMPLING on as its guards left them."""
    batch: Batch | None = None
    """The micro-batch whose logits are computed; none while completions are sampled."""
    coefficients: Coefficients | None = None
    scorable: Tensor | None = None
    """(P, G) bool: completions that count."""
    advantages: Tensor | None = None
    """(b,) of the micro-batch whose loss is being computed."""
    completion_mask: Tensor | None = None
    """(b, T) bool of the same micro-batch."""
    num_tokens: Tensor | None = None
    """Trained tokens of the whole batch."""
    grad_norm: float = 0.0
    """Norm of the gradients before anything touched them, this update."""
    weight_norms: Tensor | None = None
    """(parameters,) 2-norms after this update."""
    largest_move: Callable[[], float | None] = lambda: None
    """Largest change of any single weight since the step began, where a snapshot tells it."""
    verdict: Verdict = Verdict.KEEP
    actions: list[Action] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """The reason of the action with the worst verdict, the first of equals."""
        return max(self.actions, key=lambda action: action.verdict).reason

    def __post_init__(self) -> None:
        self.sampling = self.config.sampling

    def at(self, stage: Stage, value: Any, note: str = "") -> Any:
        """Hand the value to every intervention of the stage, faults first, then guards, in the configured order.

        Tensors are noted for the chain as they leave. Raises Refused when the verdict is SKIP_STEP or worse.
        """
        worst, self.note = Verdict.KEEP, note
        for kind, intervention in self.interventions.get(stage, ()):
            value, verdict, reason = intervention(value, self)
            if verdict or reason:
                self.actions.append(Action(intervention.name, kind, stage, self.update, verdict, reason))
            worst = max(worst, verdict)
        self.verdict = max(self.verdict, worst)
        if isinstance(value, Tensor):
            self.recorder.tensor(stage, value, self.update, note)
        if worst >= Verdict.SKIP_STEP:
            raise Refused
        return value

    def say(self, name: str, stage: Stage, verdict: Verdict, reason: str) -> None:
        """Record what the trainer itself did, for a reason that is nobody's guard."""
        self.actions.append(Action(name, "trainer", stage, self.update, verdict, reason))
        self.verdict = max(self.verdict, verdict)


def arrange(
    config: Config,
    faults: Mapping[str, type[Intervention]],
    guards: Mapping[str, type[Intervention]],
    probes: Iterable[type[Intervention]] = (),
    own: bool = True,
) -> Arrangement:
    """The configured interventions by stage: faults, then what only looks, then guards. Off means absent.

    Without `own`, those of the user's files are absent too, and the files are not run.
    Raises ConfigError for a name or setting that does not exist.
    """
    arranged: Arrangement = defaultdict(list)
    looks = {probe.name: probe for probe in probes}
    kinds = (
        ("fault", config.faults, faults),
        ("probe", {name: {} for name in looks}, looks),
        ("guard", config.guards, guards),
    )
    for kind, switches, registry in kinds:
        for name, values in switches.items():
            if own or not user_code.is_own(name):
                intervention = fields.build(_class(kind, name, registry), values, f"{kind}s.{name}")
                arranged[intervention.stage].append((kind, intervention))
    return dict(arranged)


def _class(kind: str, name: str, registry: Mapping[str, type[Intervention]]) -> type[Intervention]:
    """A registered class, or one of the user's own, which is called by its class's name unless it has another."""
    found = user_code.named(kind, name, registry)
    if not user_code.is_own(name):
        return found
    if not (isinstance(found, type) and issubclass(found, Intervention)):
        raise ConfigError(
            f"{name}: a {kind} is a class of its own, a subclass of {Intervention.__module__}.Intervention"
        )
    stage = getattr(found, "stage", None)
    if stage not in list(Stage):
        raise ConfigError(f"{name}: stage = {stage!r}: must be one of {', '.join(Stage)}")
    if "name" not in vars(found):
        found.name = found.__name__
    return found


def carry_over(old: Arrangement, new: Arrangement) -> None:
    """Give the new interventions what the old ones of the same kind and name kept."""
    states = {(kind, i.name): i.state_dict() for row in old.values() for kind, i in row}
    for row in new.values():
        for kind, intervention in row:
            intervention.load_state_dict(states.get((kind, intervention.name), {}))
