"""Algorithms: TOML files in data/algorithms, each a choice of formulas for the section `loss` of a config."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.config.fields import Settings, build, settings_of
from grpo_lab.config.sections import LossConfig
from grpo_lab.paths import named_file, named_files, read_toml

USED_BY = {
    "clip": ("ratio", "epsilon", "epsilon_high", "delta"),
    "cispo": ("ratio", "epsilon", "epsilon_high"),
    "sapo": ("ratio", "sapo_temperature_pos", "sapo_temperature_neg"),
    "unclipped": ("ratio",),
    "reinforce": (),
}
"""The parts of the loss that each surrogate uses; one of a user's file may use all."""
PART_OF = {"dual_clip": "delta", "clamp_log_ratio": "ratio", "clamp_kl": "kl", "adaptive_beta": "beta"}
"""The part of the loss that a guard changes, for each guard of a part that not every algorithm has."""


@dataclass(frozen=True)
class Algorithm(Settings):
    """A named choice of formulas."""

    name: str
    title: str
    paper: str
    """Link to its paper."""
    differs: str
    """What differs from GRPO."""
    loss: Mapping[str, Any]
    """Its settings of `loss`; the others are those of the config."""


def algorithm_names() -> list[str]:
    """The names of all algorithms.

    >>> algorithm_names()[:3]
    ['bnpo', 'cispo', 'dapo']
    """
    return list(named_files("algorithms"))


def algorithm(name: str) -> Algorithm:
    """An algorithm by name, or from a file of the user's own (`path/to/mine.toml`).

    Raises ConfigError for an unknown name, with the nearest ones, and for a mistake in its file.

    >>> dict(algorithm("dr_grpo").loss)
    {'advantage_scale': 'none', 'aggregation': 'constant'}
    """
    path = named_file("algorithms", name)
    return _read(path, path.stat().st_mtime_ns)


@functools.cache  # a file is read again if it changed
def _read(path: Path, changed: int) -> Algorithm:
    """The algorithm in a file. Raises ConfigError for anything but the three texts and [loss]."""
    tree = read_toml(path)
    if isinstance(tree.get("differs"), str):
        tree["differs"] = " ".join(tree["differs"].split())
    found = build(Algorithm, {**tree, "name": path.stem}, f"algorithm {path.stem}")
    build(LossConfig, found.loss, "loss")
    return found


def settings_for(name: str, loss: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `loss` that change where a config with these settings takes up an algorithm.

    A setting that the algorithm does not name goes back to its default if it has the value of another algorithm. Any
    other value stays: beta, and a wrong formula, which is the cause of a scenario.
    Raises ConfigError as `algorithm` does.

    >>> settings_for("grpo", {"surrogate": "cispo", "epsilon_high": 4.0, "kl_estimator": "k3_exp"})
    {'surrogate': 'clip', 'epsilon_high': None, 'aggregation': 'sequence'}
    """
    of_all = {pair for each in algorithm_names() for pair in algorithm(each).loss.items()}
    defaults = settings_of(LossConfig)
    back = {key: defaults[key].default for key, value in loss.items() if (key, value) in of_all}
    return {**back, **algorithm(name).loss}


def algorithm_of(loss: Mapping[str, Any]) -> str:
    """The algorithm whose formulas these settings of `loss` already are: to take it up changes no formula; or "".

    Numbers, as epsilon, do not count. A setting that is absent has its default.

    >>> algorithm_of({"surrogate": "cispo"}), algorithm_of({"surrogate": "cispo", "aggregation": "sum"})
    ('cispo', '')
    """
    given = {name: loss.get(name, setting.default) for name, setting in settings_of(LossConfig).items()}
    chosen = {name: value for name, value in given.items() if isinstance(value, str)}
    for name in algorithm_names():
        if all(chosen.get(key, value) == value for key, value in settings_for(name, chosen).items()):
            return name
    return ""


def unused(loss: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a loss that its formulas do not use, each with the setting that is the reason.

    >>> unused({"surrogate": "reinforce", "beta": 0.1})["delta"], unused({"surrogate": "clip", "beta": 0.0})["kl"]
    ('loss.surrogate=reinforce', 'loss.beta=0')
    """
    surrogate, paid = loss.get("surrogate", "clip"), loss.get("kl_place", "loss")
    parts = {part for used in USED_BY.values() for part in used}
    found = dict.fromkeys(sorted(parts.difference(USED_BY.get(surrogate, parts))), f"loss.surrogate={surrogate}")
    if loss.get("beta", 1) == 0:
        return found | {"beta": "loss.beta=0", "kl": "loss.beta=0"}
    return found | ({"kl": f"loss.kl_place={paid}"} if paid == "reward" else {})
