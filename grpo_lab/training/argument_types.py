"""Checks of the objects that users hand to `Session` and `train`: each of a wrong type is refused at the call."""

import inspect
from collections.abc import Callable
from functools import wraps
from os import PathLike
from typing import Any, ParamSpec, TypeVar

from grpo_lab.config import catalog
from grpo_lab.config.schema import Config
from grpo_lab.config.user_code import brief
from grpo_lab.errors import ConfigError, GrpoLabError
from grpo_lab.tasks.tasks import Tasks

P = ParamSpec("P")
T = TypeVar("T")


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that it raises ConfigError for arguments of a wrong type, and for no `config`."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        given = signature.bind_partial(*args, **kwargs).arguments
        without = {"config": None} if "config" in signature.parameters else {}
        for name, value in (without | given).items():
            _check(name, value)
        return function(*args, **kwargs)

    return call


def wrong(name: str, value: Any, wanted: str, way_out: str) -> GrpoLabError:
    """The error for a value of a wrong type."""
    return ConfigError(f"{name} = {brief(repr(value))} is of type {type(value).__name__}: must be {wanted}; {way_out}")


def _check(name: str, value: Any) -> None:
    """Raise ConfigError for an argument of this name that is of a wrong type."""
    if name == "config" and not isinstance(value, Config):
        raise wrong(name, value, "a Config", _way_to_a_config(value))
    if name == "save_model" and not isinstance(value, bool):
        raise wrong(name, value, "True or False", "give save_model=True to keep the final weights")
    if value is None:
        return
    if name == "directory" and not isinstance(value, str | PathLike):
        raise wrong(name, value, "a path", 'give a folder, such as "runs/a"')
    if name == "child" and not (isinstance(value, bool) or hasattr(value, "begin")):
        raise wrong(name, value, "True, False, None or a Child", "give child=True for a child process")
    if name == "tasks" and not isinstance(value, Tasks):
        way_out = "give Tasks(name, train, held_out), with lists of Problem(prompt, columns), of grpo_lab.tasks.tasks"
        in_config = f"name them in the config: config.with_('data.tasks={value}')"
        raise wrong(name, value, "a Tasks", in_config if isinstance(value, str | PathLike) else way_out)
    if name == "model":
        _check_model(value)
    if name == "rewards":
        _check_rewards(value)


def _way_to_a_config(value: Any) -> str:
    if isinstance(value, dict):
        return "give gl.Config.from_dict({...}), or gl.Config().merged({...})"
    if isinstance(value, catalog.Scenario):
        return "give its .config()"
    if isinstance(value, str) and value in catalog.scenario_names():
        return f"give gl.scenario({value!r}).config()"
    known = isinstance(value, str) and value in catalog.preset_names()
    return f"give gl.preset({value!r})" if known else 'give gl.preset("stable")'


def _check_model(value: Any) -> None:
    wanted, way_out = "a policy and its tokenizer", "give model=(policy, tokenizer)"
    if isinstance(value, str):
        raise wrong("model", value, wanted, f"name one in the config: config.with_('model.name={value}')")
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise wrong("model", value, wanted, way_out)
    if not hasattr(value[0], "named_parameters") or not hasattr(value[1], "batch_decode"):
        raise wrong("model", value, wanted, f"{way_out}, in this order")


def _check_rewards(value: Any) -> None:
    wanted, in_config = "a list of functions", "name it in the config, as in config.with_('data.rewards=file.py:score')"
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
