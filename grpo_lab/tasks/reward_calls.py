"""A call of a reward function as TRL makes it: the arguments, what the function logs, and the numbers in its answer."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any

import torch

from grpo_lab.metrics import METRICS, of_run

Rows = list[float | None]
"""One reward for each completion; None where the function does not judge it."""


@dataclass(frozen=True)
class TrainerState:
    """The progress of training, under the names of transformers' TrainerState."""

    global_step: int = 0
    """Steps of GRPO before this one."""
    max_steps: int = 0
    """Steps of GRPO that the run is going to make."""
    epoch: float = 0.0
    """Passes over the training prompts before this step."""


class Log:
    """The numbers and columns that reward functions log while one batch is judged, in several threads perhaps."""

    def __init__(self) -> None:
        self._metrics: dict[str, list[float]] = {}
        self._extras: dict[str, dict[int, Any]] = {}

    def metric(self, name: str, value: Any) -> None:
        """Log a number; several of one name become their mean. Raises ValueError for a name or value that is none."""
        if not isinstance(name, str) or not name or of_run(name) in METRICS:
            raise ValueError(f"log_metric({name!r}, …): the trainer has a metric of this name, or it is no name")
        if (found := number(value)) is None:
            raise ValueError(f"log_metric({name!r}, None): None is no number; log a number")
        self._metrics.setdefault(name, []).append(found)

    def extra(self, column: str, values: Sequence[Any], rows: Sequence[int]) -> None:
        """Log one value for each of these completions. Raises ValueError for another number of values."""
        if len(values := listed(values) or []) != len(rows):
            raise ValueError(f"log_extra({column!r}, …): {len(values)} values for {len(rows)} completions")
        self._extras.setdefault(column, {}).update(zip(rows, values, strict=True))

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each number; sorted first, so that the order of the calls does not change its last bits."""
        found = {name: torch.tensor(values, dtype=torch.float64) for name, values in self._metrics.copy().items()}
        return {name: values.sort().values.mean().item() for name, values in found.items()}

    def extras(self, rows: Sequence[int]) -> dict[str, tuple[Any, ...]]:
        """The logged values of these completions by column, None where there is none."""
        plain = (str, int, float, bool, type(None))
        columns = {name: [values.get(row) for row in rows] for name, values in self._extras.copy().items()}
        return {
            name: tuple(each if isinstance(each, plain) else str(each) for each in found)
            for name, found in columns.items()
        }


@dataclass(frozen=True)
class Arguments:
    """The arguments of all reward functions for one batch, with one element of each list for each completion."""

    prompts: Sequence[Any]
    completions: Sequence[Any]
    columns: Mapping[str, Sequence[Any]]
    completion_ids: Sequence[Sequence[int]] = ()
    """Empty where nothing was sampled."""
    trainer_state: TrainerState = TrainerState()
    log: Log = field(default_factory=Log)

    def to(self, function: Callable[..., Any], rows: Sequence[int] | None = None) -> dict[str, Any]:
        """The arguments of a call for these completions, or for all.

        A function receives the columns and, as far as it names them or takes `**kwargs`, those of OFFERED.
        """
        chosen = range(len(self.completions)) if rows is None else rows
        lists = {"prompts": self.prompts, "completions": self.completions, **self.columns}
        if self.completion_ids:
            lists["completion_ids"] = self.completion_ids
        offered = {
            "trainer_state": self.trainer_state,
            "log_metric": self.log.metric,
            "log_extra": partial(self.log.extra, rows=chosen),
        }
        given = {name: [values[row] for row in chosen] for name, values in lists.items()} | offered
        refused = OFFERED - _taken(function)
        return {name: value for name, value in given.items() if name not in refused}


OFFERED = frozenset({"completion_ids", "trainer_state", "log_metric", "log_extra"})
"""Arguments that a function need not take."""


def _taken(function: Callable[..., Any]) -> frozenset[str]:
    """The arguments of OFFERED that a function takes; none of a function whose signature Python does not know."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return frozenset()
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return OFFERED if takes_all else OFFERED & parameters.keys()


def listed(answer: Any) -> list[Any] | None:
    """The elements of a list, a tuple, a NumPy array, a tensor or a pandas Series; None for anything else.

    >>> listed((1, None)), listed("no"), listed(2.0)
    ([1, None], None, None)
    """
    if isinstance(answer, list | tuple):
        return list(answer)
    found = answer.tolist() if hasattr(answer, "tolist") else None
    return found if isinstance(found, list) else None


def number(value: Any) -> float | None:
    """None or a float: of a number or bool of Python or NumPy, or of an array or tensor with one element.

    Raises TypeError for anything else, and OverflowError for a whole number that is too large.

    >>> number(True), number(None), number(3)
    (1.0, None, 3.0)
    """
    if value is None:
        return None
    if not isinstance(value, Real) and hasattr(value, "item"):
        try:
            value = value.item()
        except (ValueError, RuntimeError):
            raise TypeError("not one number") from None
    if not isinstance(value, Real):
        raise TypeError(f"of type {type(value).__name__}")
    return float(value)


def metrics_of(name: str, rewards: Rows) -> dict[str, float]:
    """Mean and standard deviation of the completions that a function judged, by metric, with TRL's names.

    The deviation has Bessel's correction, as in TRL, and is left out where there are fewer than two.

    >>> metrics_of("f", [1.0, None, 3.0])
    {'rewards/f/mean': 2.0, 'rewards/f/std': 1.4142135623730951}
    """
    judged = torch.tensor([reward for reward in rewards if reward is not None], dtype=torch.float64)
    mean = {f"rewards/{name}/mean": judged.mean().item()} if len(judged) else {}
    return mean | ({f"rewards/{name}/std": judged.std().item()} if len(judged) > 1 else {})


def named(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """The name of each function in metrics, as in TRL; the second of one name is `name-2`.

    >>> named([max, min, max])
    ['max', 'min', 'max-2']
    """
    names = [getattr(function, "__name__", type(function).__name__) for function in functions]
    earlier = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}-{count + 1}" if count else name for name, count in zip(names, earlier, strict=True)]
