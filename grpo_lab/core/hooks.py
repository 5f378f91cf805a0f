"""Where a step can be seen and changed: its stages, and the context that guards and faults read at each of them.

At a stage the trainer hands a value to the interventions that are registered there: faults, observers, guards. Each
answers with the value to go on with and, if it acted, a verdict and a reason. The worst verdict of a step wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_lab.core.batch import Batch

T = TypeVar("T")


class Stage(StrEnum):
    """The stages of a step, each with the value that interventions receive there.

    P prompts, G completions of each, B = P G; b rows of a micro-batch, T tokens, V words of the vocabulary.
    """

    COEFFICIENTS = "coefficients"  # `Coefficients`: learning rate, beta, epsilon, ...; once a step, first
    SAMPLING = "sampling"  # temperature, filters, penalties, length; once a step
    PROBABILITIES = "probabilities"  # (b, V) next-token probabilities, before torch.multinomial; every sampled token
    REWARDS = "rewards"  # (P, G); once a step
    ADVANTAGES = "advantages"  # (P, G); once a step
    LOGITS = "logits"  # (b, t, V), t = 1 while sampling; every pass: sampling, old, reference, current
    BATCH = "batch"  # `Batch` of B completions, whose rows may leave; once a step, before the updates
    LOG_RATIO = "log_ratio"  # (b, T) logprobs - old_logprobs in nats, before exp; every micro-batch
    KL_DELTA = "kl_delta"  # (b, T) ref_logprobs - logprobs in nats, before exp; every micro-batch with a reference
    LOSS = "loss"  # () the micro-batch's part of the loss; every micro-batch
    GRADIENTS = "gradients"  # the policy, its gradients accumulated and unscaled; every update, before its step
    WEIGHTS = "weights"  # the policy; every update, after its step


class Verdict(IntEnum):
    """The consequence for the step, from mild to severe; the worst verdict of a step wins. Text shows the name."""

    KEEP = 0
    CHANGED = 1
    SKIP_STEP = 2
    ROLL_BACK = 3
    STOP = 4

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


@dataclass(frozen=True, slots=True)
class Action:
    """One act of a guard, a fault or the trainer: stage, verdict, and a reason with the number and the limit."""

    name: str
    kind: str
    stage: str
    update: int
    verdict: Verdict
    reason: str


class Outcome(NamedTuple):
    """The answer of an intervention: the value to go on with and, if it acted, a verdict and a reason."""

    value: Any
    verdict: Verdict = Verdict.KEEP
    reason: str = ""
    replace: Mapping[str, Any] = MappingProxyType({})
    """Fields of the context to replace for the rest of the step, as in `{"scorable": ...}`."""


class Refused(Exception):
    """A guard refused the rest of the step. training/state.py catches it; a user never sees it."""


class Intervention(Protocol):
    """A guard, a fault or an observer, as a step calls it."""

    name: ClassVar[str]

    def __call__(self, value: Any, step: Any) -> Outcome: ...


class Sampling(Protocol):
    """What a step reads of the sampling settings."""

    @property
    def temperature(self) -> float: ...

    @property
    def max_completion_length(self) -> int: ...


class Recorder(Protocol):
    """Notes of what a step computed."""

    def tensor(self, link: str, value: Tensor, update: int = 0, note: str = "") -> None: ...

    def metrics(self, values: Mapping[str, Tensor], update: int = 0) -> None: ...


@dataclass(frozen=True)
class Coefficients:
    """The numbers of one step that guards may change; set anew at each update, so that a rollback leaves them."""

    learning_rate: float
    beta: float
    """Weight of the KL penalty."""
    epsilon: float
    epsilon_high: float | None
    adam_eps: float
    delta: float | None = None
    """Largest ratio that counts where the advantage is negative (dual clip)."""


@dataclass(kw_only=True, eq=False)
class Context:
    """A step as it goes on, with everything that an intervention may read. A field that is None is not known yet."""

    index: int
    policy: Any
    """The causal language model that is trained."""
    recorder: Recorder
    sampling: Sampling
    """The sampling settings in use: as configured, and from stage SAMPLING on as its guards left them."""
    interventions: Mapping[Stage, Sequence[tuple[str, Intervention]]] = field(default_factory=dict)
    """By stage in the order in which they act, each with its kind: fault, observer or guard."""
    update: int = 0
    note: str = ""
    """The pass that the logits belong to: `sampling`, `old`, `reference` or `current`."""
    coefficients: Coefficients | None = None
    scorable: Tensor | None = None
    """(P, G) bool: completions that count."""
    unscored: str = "no completion was scored"
    """The reason to refuse the step where no completion is scorable."""
    batch: Batch | None = None
    """The micro-batch whose logits or loss are computed; None while completions are sampled."""
    num_tokens: Tensor | None = None
    """() int: trained tokens of the whole batch."""
    actions: list[Action] = field(default_factory=list)
    verdict: Verdict = Verdict.KEEP

    def apply(self, stage: Stage, value: T, note: str = "") -> T:
        """Pass the value through the interventions of the stage, in their order, and return the result.

        The recorder notes a tensor as the last of them leaves it; runs/first_break.py names the first broken note.
        Raises Refused when a verdict is SKIP_STEP or worse.
        """
        worst, self.note = Verdict.KEEP, note
        for kind, intervention in self.interventions.get(stage, ()):
            value, verdict, reason, fields = Outcome(*intervention(value, self))
            self.replace(fields)
            if verdict or reason:
                self.act(intervention.name, stage, Verdict(verdict), reason, kind)
            worst = max(worst, verdict)
        if hasattr(value, "isfinite"):  # a tensor, known without torch, which takes a second to import
            self.recorder.tensor(stage, cast("Tensor", value), self.update, note)
        if worst >= Verdict.SKIP_STEP:
            raise Refused
        return value

    def replace(self, fields: Mapping[str, Any]) -> None:
        """Replace fields by name. Raises TypeError for one that does not exist."""
        for name, value in fields.items():
            if name not in vars(self):
                raise TypeError(f"a step has no field {name!r}; it has {', '.join(vars(self))}")
            setattr(self, name, value)

    def act(self, name: str, stage: Stage, verdict: Verdict, reason: str, kind: str = "trainer") -> None:
        """Record an action of an intervention, or of the trainer itself; the worst verdict becomes the step's."""
        self.actions.append(Action(name, kind, stage, self.update, verdict, reason))
        self.verdict = max(self.verdict, verdict)

    def refuse(self, name: str, stage: Stage, reason: str) -> NoReturn:
        """Refuse the step by the trainer itself, as for want of a reward. Raises Refused."""
        self.act(name, stage, Verdict.SKIP_STEP, reason)
        raise Refused
