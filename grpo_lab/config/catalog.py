"""Presets and scenarios: TOML files in data/, and others of one's own, without code.

A preset is a whole configuration with a title. A scenario is the cause of a failure: overrides and faults over a
preset, with its symptoms, the cures that stop it, the heals after which the model learns, and its decoys.
"""

import dataclasses
import functools
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.config.fields import distinct
from grpo_lab.config.schema import KEYS, Config
from grpo_lab.errors import ConfigError, unknown
from grpo_lab.metrics import LINKS, METRICS, of_objective
from grpo_lab.paths import data_tables, named_file, named_files

_TEXTS = ("title", "source", "story")
TRIAL: Mapping[str, Any] = {"run": {"num_steps": 60}, "data": {"num_prompts": 16, "num_generations": 8}}
"""Length and batch with which a heal is tried where the scenario's file names no others: enough to learn from."""


@dataclass(frozen=True)
class Entry:
    """A preset or a scenario, as lists show it."""

    name: str
    title: str
    source: str
    story: str


@dataclass(frozen=True)
class Preset(Entry):
    """A named configuration."""

    config: Config


@dataclass(frozen=True)
class Expectation:
    """The symptoms of a scenario without guards. Raises ConfigError for an unknown link."""

    crash: str = ""
    """The operator in which the run crashes, if it does."""
    first_break: str = ""
    """The first link that is not finite, if there is one."""
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Metrics that reach at least this value in some step."""
    below: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Metrics that stay below this value in every step."""

    def __post_init__(self) -> None:
        tables = (self.metrics, self.below)
        if not isinstance(self.crash, str) or not all(isinstance(table, Mapping) for table in tables):
            raise ConfigError("[expect] takes crash and first_break as texts, metrics and below as { name = value }")
        if self.first_break and self.first_break not in LINKS:
            raise unknown("link in [expect]", str(self.first_break), LINKS)

    def shown(self, operator: str, steps: Sequence[Mapping[str, float]]) -> bool:
        """Whether a run showed the symptoms, by the operator in which it crashed ("" for none) and its steps' metrics.

        An expected crash is enough. Without one, every metric has to be in its expected range.

        >>> Expectation(metrics={"kl": 1.0}).shown("", [{"kl": 0.1}, {"kl": 2.0}])
        True
        """
        if self.crash:
            return operator == self.crash
        reached = all(any(step.get(name, -math.inf) >= value for step in steps) for name, value in self.metrics.items())
        low = all(all(step.get(name, -math.inf) < value for step in steps) for name, value in self.below.items())
        return reached and low


@dataclass(frozen=True)
class Heal:
    """The smallest change that removes a cause, so that the model learns; a cure only stops the failure."""

    change: tuple[str, ...]
    """Overrides."""
    why: str


@dataclass(frozen=True)
class Scenario(Entry):
    """One cause of failure."""

    preset: str
    cause: Mapping[str, Any]
    expect: Expectation
    cures: tuple[tuple[str, ...], ...]
    """Sets of overrides, each of which alone stops the failure."""
    decoys: tuple[tuple[str, ...], ...]
    """Sets of overrides that are recommended against the failure and do not stop it."""
    heals: tuple[Heal, ...] = ()
    """Changes after which the model learns, the recommended one first."""
    trial: Mapping[str, Any] = dataclasses.field(default_factory=lambda: TRIAL)
    """The length, the batch and other settings with which heals are tried, the same with and without the heal."""
    models: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings by model, tuned for this scenario: laid over those that every scenario shares for the model."""

    def config(
        self,
        guards: str | tuple[str, ...] | None = None,
        preset: str | None = None,
        heal: bool = False,
        model: str = "",
    ) -> Config:
        """The cause on its preset, or on another one; `guards` replaces the guards by a preset's, or by named ones.

        `heal` applies the first heal, and makes the run as long and its batch as large as `trial` says. `model` trains
        another model than the tiny one: its settings are laid over cause and trial, below the heal.
        Raises ConfigError if the scenario has no heal.

        >>> scenario("cuda-001").config(guards=("clamp_log_ratio",)).guards
        {'clamp_log_ratio': {}}
        >>> scenario("cuda-001").config(heal=True).loss.log_ratio
        'old'
        """
        config = load_preset(preset or self.preset).config.merged(self.cause).with_(f"run.name={self.name}")
        if guards is not None:
            named = load_preset(guards).config.guards if isinstance(guards, str) else {name: {} for name in guards}
            config = config.with_guards(named)
        if heal and not self.heals:
            raise ConfigError(f"scenario {self.name} names no heal; add [[heals]] to its file")
        config = config.merged(self.trial) if heal else config
        if model:
            shared = model_settings().get(model, {}).get("settings", {})
            config = config.merged(shared).merged(self.models.get(model, {})).with_(f"model.name={model}")
        return config.with_(*self.heals[0].change) if heal else config

    def sizes(self) -> dict[str, str]:
        """Rate and length by model, in words."""
        found = {}
        for model in ("tiny", *model_settings()):
            config = self.config(model=model)
            run = f"learning rate {config.optimizer.learning_rate:g}, {config.run.num_steps} steps"
            found[model] = run if model in ("tiny", *self.models) else f"{run}; not tried on this model"
        return found


@functools.cache
def model_settings() -> Mapping[str, Any]:
    """By the model for which the tiny one's settings do not fit: the `settings` that every scenario shares, and how its
    runs were `recorded`."""
    return data_tables("model_settings")


def preset(name: str) -> Config:
    """The configuration of a preset. Raises ConfigError for an unknown name, with the nearest ones."""
    return load_preset(name).config


def load_preset(name: str) -> Preset:
    """A preset with its title and story. Raises ConfigError for an unknown name or a mistake in its file."""
    path = named_file("presets", name)
    return _preset(path, name, path.stat().st_mtime_ns)


@functools.cache  # a file is read again if it changed
def _preset(path: Path, name: str, changed: int) -> Preset:
    tree = _read(path)
    texts = _pop_texts(tree, name)
    _check_names(tree, [*KEYS], f"key of preset {name}")
    return Preset(name, **texts, config=Config().merged({"run": {"name": name}}).merged(tree))


def scenario(name: str) -> Scenario:
    """A scenario by name, or from an instructor's own file (`path/to/mine.toml`).

    Raises ConfigError for an unknown name or a mistake in its file.
    """
    path = named_file("scenarios", name)
    return _scenario(path, path.stat().st_mtime_ns)


@functools.cache
def _scenario(path: Path, changed: int) -> Scenario:
    """The scenario in a file, read again only if the file changed: all its overrides are checked."""
    tree, name = _read(path), path.stem
    where = f"scenario {name}"
    keys = ("preset", "expect", "cures", "decoys", "heals", "trial", "models")
    _check_names(tree, [*_TEXTS, *keys, *KEYS], f"key of {where}")
    texts = _pop_texts(tree, name)
    expect = _typed(tree, "expect", dict, where)
    _check_names(expect, [field.name for field in dataclasses.fields(Expectation)], f"key of {where}, [expect]")
    found = Scenario(
        name,
        **texts,
        preset=_typed(tree, "preset", str, where) or "original",
        cause={key: tree[key] for key in KEYS if key in tree},
        expect=Expectation(**expect),
        cures=_override_sets(tree, "cures", where),
        decoys=_override_sets(tree, "decoys", where),
        heals=_heals(tree, where),
        trial=_typed(tree, "trial", dict, where) or TRIAL,
        models=_typed(tree, "models", dict, where),
    )
    # So that a mistake in the file shows when it is read, not when it is used.
    of_each = [of_objective(metric, each.name) for each in found.config().objectives for metric in METRICS]
    _check_names((*found.expect.metrics, *found.expect.below), [*METRICS, *of_each], "metric in [expect]")
    for overrides in ((), *found.cures, *found.decoys, *(heal.change for heal in found.heals)):
        found.config().merged(found.trial).with_(*overrides)
    for model in found.models:
        if model not in model_settings():
            raise unknown(f"model in [models] of {where}", model, model_settings())
        _typed(found.models, model, dict, f"{where}, [models]")
        found.config(model=model)
    return found


def named(name: str, model: str = "") -> Config:
    """The config of a preset, a scenario, a scenario's file, or a run's folder or config.json.

    A scenario takes its settings for `model`. Raises ConfigError for a name that is none of them, and for a file that
    holds no config.
    """
    if name in preset_names():
        return preset(name)
    if name in scenario_names() or name.endswith(".toml"):
        return scenario(name).config(model=model)
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if not path.is_file():
        raise unknown("preset, scenario or run", name, [*preset_names(), *scenario_names(), "path/to/run"])
    try:
        return Config.from_dict(json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=distinct))
    except ValueError as error:
        raise ConfigError(f"{path} holds no config: {error}; give the folder of a run or its config.json") from error


def preset_names() -> list[str]:
    """The names of all presets."""
    return list(named_files("presets"))


def scenario_names() -> list[str]:
    """The names of all scenarios."""
    return list(named_files("scenarios"))


def _read(path: Path) -> dict[str, Any]:
    """The table of a file. Raises ConfigError for bad TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML ({error}); mend the file") from error


def _check_names(names: Iterable[str], known: list[str], kind: str) -> None:
    """Raise ConfigError for an unknown name."""
    for name in (name for name in names if name not in known):
        raise unknown(kind, name, known)


def _typed(tree: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """The value of a key. Raises ConfigError for another type."""
    value = tree.get(key, kind())
    if not isinstance(value, kind):
        raise ConfigError(f"{where}: {key} = {value!r}: must be of type {kind.__name__}")
    return value


def _override_sets(tree: Mapping[str, Any], key: str, where: str) -> tuple[tuple[str, ...], ...]:
    """The sets of overrides of a key. Raises ConfigError for anything else."""
    rows = _typed(tree, key, list, where)
    if not all(isinstance(row, list) and all(isinstance(text, str) for text in row) for row in rows):
        raise ConfigError(f'{where}: {key} must be a list of lists of overrides, as in [["guards.warm_up=on"]]')
    return tuple(tuple(row) for row in rows)


def _heals(tree: Mapping[str, Any], where: str) -> tuple[Heal, ...]:
    """The heals of a scenario. Raises ConfigError for anything but tables of a change and its reason."""
    tables = _typed(tree, "heals", list, where)
    if not all(isinstance(table, Mapping) and {*table} == {"change", "why"} for table in tables):
        raise ConfigError(f"{where}: each of [[heals]] takes change, a list of overrides, and why, a text")
    changes = _override_sets({"heals": [table["change"] for table in tables]}, "heals", where)
    return tuple(Heal(change, _typed(table, "why", str, where)) for change, table in zip(changes, tables, strict=True))


def _pop_texts(tree: dict[str, Any], name: str) -> dict[str, str]:
    """Take the texts out of the table. Raises ConfigError for an empty one."""
    for key in (key for key in _TEXTS if not isinstance(tree.get(key), str)):
        raise ConfigError(f"{name}.toml: {key} = {tree.get(key)!r}: every file needs a text there")
    return {key: tree.pop(key) for key in _TEXTS}
