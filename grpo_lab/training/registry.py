"""The objects that a config names: its interventions, arranged by stage, and its formulas."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.algorithm.advantages import ADVANTAGES, CREDIT
from grpo_lab.algorithm.kl import ESTIMATORS
from grpo_lab.algorithm.losses import mask_without_truncated, sampled_tokens
from grpo_lab.algorithm.surrogates import CORRECTIONS, LEVELS, SURROGATES, Limits
from grpo_lab.config import algorithms, fields, user_code
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import LossConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.core.loss import log_ratio_to_old
from grpo_lab.errors import ConfigError, Sentence, check_known
from grpo_lab.tasks.tasks import TOOLS
from grpo_lab.training import wrong_formulas as wrong
from grpo_lab.training.faults import FAULTS
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import Arrangement, Intervention
from grpo_lab.training.objectives import COMBINATIONS, Combination, resolve
from grpo_lab.training.observers import OBSERVERS, MeasureExactKL

RIGHT: dict[str, dict[str, Callable[..., Any]]] = {
    "log_ratio": {"old": log_ratio_to_old},
    "kl_estimator": ESTIMATORS,
    "advantage_scale": ADVANTAGES,
    "completion_mask": {"position": sampled_tokens, "not_truncated": mask_without_truncated},
    "accumulation": {"add": lambda loss, optimizer: loss.backward()},  # as the core's trainer does
    "credit_assignment": CREDIT,
    "importance_sampling_level": LEVELS,
    "surrogate": SURROGATES,
    "importance_sampling_mode": CORRECTIONS,
}
FORMULAS = {setting: {**known, **wrong.FORMULAS.get(setting, {})} for setting, known in RIGHT.items()}
"""The right formulas and then the wrong ones, by the setting of `loss` that selects one, then by name."""
ALL_COMBINATIONS = {**COMBINATIONS, **wrong.COMBINATIONS}
"""The right ways to combine objectives and then the wrong one, by the setting `loss.combination`."""

DIFFERENTIATED = {"log_ratio", "importance_sampling_level", "surrogate", "importance_sampling_mode"}
"""Settings whose formulas hand on the gradient of the policy; `kl_estimator` is one where the loss has the penalty."""


class Formulas(NamedTuple):
    """The functions that a config selects, each by its setting of `loss`."""

    log_ratio: Callable[[Tensor, Batch], Tensor]
    kl_estimator: Callable[[Tensor], Tensor]
    advantage_scale: Callable[..., Tensor]
    completion_mask: Callable[[Batch, int], Tensor]
    accumulation: Callable[[Tensor, Optimizer], None]
    credit_assignment: Callable[[Batch, float], Batch]
    importance_sampling_level: Callable[[Tensor, Tensor], Tensor]
    surrogate: Callable[[Tensor, Tensor, Tensor, Limits], Tensor]
    importance_sampling_mode: Callable[[Tensor, Batch, float | None, float | None], Tensor]
    step: Callable[..., object] | None
    """A step of a user's own, None for the package's."""


def check(config: Config) -> None:
    """Raise ConfigError for a guard, fault, setting or formula that does not exist; no file of the user is imported."""
    combination(config)
    resolve(config)
    half = config.model.precision in ("bf16", "fp16")
    if config.loss.step and (half or config.objectives or config.run.processes > 1):
        raise ConfigError("loss.step: needs one process, one objective, and a precision of fp32 or *_pure")
    for setting, known in FORMULAS.items():
        name = getattr(config.loss, setting)
        if not user_code.is_own(name):
            user_code.named(f"loss.{setting}", name, known)
    if config.data.tool and not user_code.is_own(config.data.tool):
        user_code.named("data.tool", config.data.tool, TOOLS)
    arrange(config, FAULTS, GUARDS, own=False)


def validated(config: Config) -> tuple[Formulas, Arrangement]:
    """The config's formulas, and its interventions arranged by stage. Imports the user's files.

    Raises ConfigError as `check` does, and as the files do.
    """
    check(config)
    observers = [*OBSERVERS, *([MeasureExactKL] if config.run.exact_kl else [])]
    return chosen_formulas(config), arrange(config, FAULTS, GUARDS, observers)


def chosen_formulas(config: Config) -> Formulas:
    """The formulas of a config. Raises ConfigError for one that does not exist, with the nearest names."""
    in_the_loss = config.loss.kl_place != "reward" and any(objective.beta > 0 for objective in resolve(config))
    learned_from = {*DIFFERENTIATED, *(["kl_estimator"] if in_the_loss else [])}

    def find(setting: str) -> Callable[..., Any]:
        name = getattr(config.loss, setting)
        found = user_code.named(f"loss.{setting}", name, FORMULAS[setting])
        differentiated = user_code.is_own(name) and setting in learned_from
        return _with_gradient(f"loss.{setting} = {name!r}", found) if differentiated else found

    return Formulas(*map(find, FORMULAS), step=user_code.load(config.loss.step) if config.loss.step else None)


def _with_gradient(what: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula of a user's file, so that it raises ConfigError where its result loses the gradient of its input."""

    def call(*given: Any) -> Any:
        result = formula(*given)
        wanted = any(isinstance(each, Tensor) and each.requires_grad for each in given)
        if wanted and isinstance(result, Tensor) and not result.requires_grad:
            raise ConfigError(
                f"{what}: its result has no gradient, so that nothing is learned from it; compute it "
                "with torch from its arguments, without detach(), item(), numpy() and no_grad()"
            )
        return result

    return call


def combination(config: Config) -> Combination:
    """The way in which a config combines objectives. Raises ConfigError for an unknown one, with the nearest names."""
    check_known("loss.combination", [config.loss.combination], ALL_COMBINATIONS)
    return ALL_COMBINATIONS[config.loss.combination]


def needs_reference(config: Config) -> bool:
    """Whether the loss compares the policy with a reference model, as a log-ratio or step of a user's file may, or the
    sampler keeps its weights."""
    loss = config.loss
    penalised = any(objective.beta > 0 for objective in resolve(config))
    sampled = config.model.sampler_weights == "start"
    return sampled or penalised or loss.log_ratio == "reference" or user_code.is_own(loss.log_ratio + loss.step)


def without_effect(config: Config) -> list[str]:
    """A sentence on each guard, and each setting of `loss` away from its default, that the formulas do not use.

    >>> without_effect(Config().with_("loss.surrogate=reinforce", "guards.dual_clip=on"))
    ['guards.dual_clip has no effect under loss.surrogate=reinforce']
    """
    loss, usual = dataclasses.asdict(config.loss), dataclasses.asdict(LossConfig())
    idle = algorithms.unused(loss | {"beta": max(objective.beta for objective in resolve(config))})
    found = {f"loss.{name}": why for name, why in idle.items() if name != "beta" and loss.get(name) != usual.get(name)}
    guards = {name: algorithms.PART_OF.get(name) for name in config.guards}
    found |= {f"guards.{name}": idle[part] for name, part in guards.items() if part in idle}
    return [Sentence("{} has no effect under {}", name, why) for name, why in found.items()]


def doubts(config: Config) -> list[str]:
    """What the user may not have meant: settings without effect, and a learning rate of 1 or more."""
    rate = config.optimizer.learning_rate
    high = "learning rate {:g}: AdamW moves each weight by about as much in a step; is it meant?"
    return [*without_effect(config), *([Sentence(high, rate)] if rate >= 1 else [])]


def arrange(
    config: Config,
    faults: Mapping[str, type[Intervention]],
    guards: Mapping[str, type[Intervention]],
    observers: Iterable[type[Intervention]] = (),
    own: bool = True,
) -> Arrangement:
    """The configured interventions by stage: faults, then observers, then guards. Off means absent.

    Imports the user's files only if `own=True`; otherwise the interventions in them are absent.
    Raises ConfigError for a name or setting that does not exist.
    """
    arranged: dict[Stage, list[tuple[str, Intervention]]] = defaultdict(list)
    known = {observer.name: observer for observer in observers}
    kinds = (
        ("fault", config.faults, faults),
        ("observer", {name: {} for name in known}, known),
        ("guard", config.guards, guards),
    )
    for kind, switches, registry in kinds:
        for name, values in switches.items():
            if own or not user_code.is_own(name):
                intervention = fields.build(_class(kind, name, registry), values, f"{kind}s.{name}")
                arranged[intervention.stage].append((kind, intervention))
    return dict(arranged)


def _class(kind: str, name: str, registry: Mapping[str, type[Intervention]]) -> type[Intervention]:
    """A registered class, or one of a user's file, whose name is that of the class unless it sets another.

    Raises ConfigError for a name that does not exist and for a class that is not an intervention.
    """
    found = user_code.named(kind, name, registry)
    if not user_code.is_own(name):
        return found
    if not (isinstance(found, type) and issubclass(found, Intervention)):
        raise ConfigError(f"{name}: a {kind} is a class of its own, a subclass of grpo_lab.interventions.Intervention")
    stage = getattr(found, "stage", None)
    if stage not in list(Stage):
        raise ConfigError(f"{name}: stage = {stage!r}: must be one of {', '.join(Stage)}")
    if "name" not in vars(found):
        found.name = found.__name__
    return found


def carry_over(old: Arrangement, new: Arrangement) -> None:
    """Load the state of the old interventions into the new ones of the same kind and name."""
    states = {(kind, i.name): i.state_dict() for row in old.values() for kind, i in row}
    for row in new.values():
        for kind, intervention in row:
            intervention.load_state_dict(states.get((kind, intervention.name), {}))
