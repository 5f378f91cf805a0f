"""Checks of the objects that users hand to `Session` and `train`: each of a wrong type is refused at the call."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from os import PathLike
from typing import Any, ParamSpec, TypeVar

from grpo_lab.config import catalog
from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError, GrpoLabError
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training.torch_settings import own_settings

P = ParamSpec("P")
T = TypeVar("T")
LONGEST = 60
"""Characters of a value that an error shows."""


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that it refuses arguments of a wrong type, by the names in CHECKS, with a ConfigError."""
    names = [name for name in CHECKS if name in inspect.signature(function).parameters]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
        for name in names:
            if name in given or name == "config":
                CHECKS[name](given.get(name))
        return function(*args, **kwargs)

    return call


def public(events: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Decorate a generator that users call: `checked` at the call, and with `own_settings` while it computes."""
    return checked(own_settings(events))


def wrong(name: str, value: Any, wanted: str, way_out: str) -> GrpoLabError:
    """The error for a value of a wrong type."""
    shown = " ".join(repr(value).split())
    shown = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]} ..."
    return ConfigError(f"{name} = {shown} is of type {type(value).__name__}: must be {wanted}; {way_out}")


def _config(value: Any) -> None:
    if isinstance(value, Config):
        return
    way_out = 'give gl.preset("stable")'
    if isinstance(value, dict):
        way_out = "give gl.Config.from_dict({...}), or gl.Config().merged({...})"
    elif isinstance(value, catalog.Scenario):
        way_out = "give its .config()"
    elif isinstance(value, str) and value in catalog.preset_names():
        way_out = f"give gl.preset({value!r})"
    elif isinstance(value, str) and value in catalog.scenario_names():
        way_out = f"give gl.scenario({value!r}).config()"
    raise wrong("config", value, "a Config", way_out)


def _model(value: Any) -> None:
    if value is None:
        return
    wanted, way_out = "a policy and its tokenizer", "give model=(policy, tokenizer)"
    if isinstance(value, str):
        raise wrong("model", value, wanted, f"name one in the config: config.with_('model.name={value}')")
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise wrong("model", value, wanted, way_out)
    if not hasattr(value[0], "named_parameters") or not hasattr(value[1], "batch_decode"):
        raise wrong("model", value, wanted, f"{way_out}, in this order")


def _tasks(value: Any) -> None:
    if value is None or isinstance(value, Tasks):
        return
    way_out = "give Tasks(name, train, held_out), with lists of Problem(prompt, columns), of grpo_lab.tasks.tasks"
    if isinstance(value, str | PathLike):
        way_out = f"name them in the config: config.with_('data.tasks={value}')"
    raise wrong("tasks", value, "a Tasks", way_out)


def _rewards(value: Any) -> None:
    if value is None:
        return
    wanted = "a list of functions"
    in_config = "name it in the config, as in config.with_('data.rewards=file.py:score')"
    if isinstance(value, str):
        raise wrong("rewards", value, wanted, f"name it in the config: config.with_('data.rewards={value}')")
    if callable(value):
        name = getattr(value, "__name__", "score")
        raise wrong("rewards", value, wanted, f"give rewards=[{name}], or {in_config}")
    if not isinstance(value, tuple | list) or not value:
        raise wrong("rewards", value, f"{wanted}, at least one", f"give rewards=[score], or {in_config}")
    for place, each in enumerate(value):
        if isinstance(each, type):
            raise wrong(f"rewards[{place}]", each, "a function", f"give an object of it: {each.__name__}(...)")
        if not callable(each):
            raise wrong(f"rewards[{place}]", each, "a function", f"give def score(prompts, ...), or {in_config}")


def _directory(value: Any) -> None:
    if not (value is None or isinstance(value, str | PathLike)):
        raise wrong("directory", value, "a path", 'give a folder, such as "runs/a"')


def _child(value: Any) -> None:
    if not (value is None or isinstance(value, bool) or hasattr(value, "begin")):
        raise wrong("child", value, "True, False, None or a Child", "give child=True for a child process")


def _save_model(value: Any) -> None:
    if not isinstance(value, bool):
        raise wrong("save_model", value, "True or False", "give save_model=True to keep the final weights")


CHECKS: dict[str, Callable[[Any], None]] = {
    "config": _config,
    "directory": _directory,
    "model": _model,
    "tasks": _tasks,
    "rewards": _rewards,
    "child": _child,
    "save_model": _save_model,
}
"""For each argument a function that raises ConfigError for a value of a wrong type."""
