"""Presets and scenarios: TOML files in data/, and others of one's own, without code.

A preset is a whole configuration with a title. A scenario is the cause of a failure: overrides and faults over a
preset, with its symptoms, the cures that stop it, the heals after which the model learns, and its decoys.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_lab.config.fields import Settings, build, distinct, listed, settings_of
from grpo_lab.config.schema import KEYS, Config, Switches
from grpo_lab.errors import ConfigError, check_known, unknown
from grpo_lab.metrics import LINKS, METRICS, of_objective
from grpo_lab.paths import data_tables, named_file, named_files, read_toml

TEXTS = ("title", "source", "story")
TRIAL: Mapping[str, Any] = {"run": {"num_steps": 60}, "data": {"num_prompts": 16, "num_generations": 8}}
"""Length and batch with which a heal is tried where the scenario's file names no others: enough to learn from."""


@dataclass(frozen=True)
class Entry(Settings):
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
class Expectation(Settings):
    """The symptoms of a scenario without guards. Raises ConfigError for an unknown link."""

    crash: str = ""
    """The operator in which the run crashes, if it does."""
    first_break: str = ""
    """The first link that is not finite, if there is one."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that reach at least this value in some step."""
    falls: Mapping[str, float] = field(default_factory=dict)
    """Metrics that fall to this value in some step."""
    below: Mapping[str, float] = field(default_factory=dict)
    """Metrics that stay below this value in every step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_break and self.first_break not in LINKS:
            raise ConfigError(f"first_break: {unknown('link', self.first_break, LINKS)}")

    def shown(self, operator: str, steps: Sequence[Mapping[str, float]]) -> bool:
        """Whether a run showed the symptoms, by the operator in which it crashed ("" for none) and its steps' metrics.

        An expected crash is enough. Without one, every metric has to be in its expected range.

        >>> Expectation(metrics={"kl": 1.0}).shown("", [{"kl": 0.1}, {"kl": 2.0}])
        True
        """
        if self.crash:
            return operator == self.crash
        reached = all(any(step.get(name, -math.inf) >= value for step in steps) for name, value in self.metrics.items())
        fallen = all(any(step.get(name, math.inf) <= value for step in steps) for name, value in self.falls.items())
        low = all(all(step.get(name, -math.inf) < value for step in steps) for name, value in self.below.items())
        return reached and fallen and low


@dataclass(frozen=True)
class Heal(Settings):
    """The smallest change that removes a cause, so that the model learns; a cure only stops the failure."""

    change: tuple[str, ...]
    """Overrides."""
    why: str


@dataclass(frozen=True)
class Scenario(Entry):
    """One cause of failure."""

    cause: Mapping[str, Any]
    preset: str = "original"
    expect: Expectation = Expectation()
    cures: tuple[tuple[str, ...], ...] = ()
    """Sets of overrides, each of which alone stops the failure."""
    decoys: tuple[tuple[str, ...], ...] = ()
    """Sets of overrides that are recommended against the failure and do not stop it."""
    heals: tuple[Heal, ...] = ()
    """Changes after which the model learns, the recommended one first."""
    trial: Mapping[str, Any] = field(default_factory=lambda: TRIAL)
    """The length, the batch and other settings with which heals are tried, the same with and without the heal."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
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
    tree, where = read_toml(named_file("presets", name)), f"preset {name}"
    texts = {key: tree.pop(key) for key in TEXTS if key in tree}
    check_known(f"key of {where}", tree, KEYS)
    config = Config().merged({"run": {"name": name}}).merged(tree)
    return build(Preset, {**texts, "name": name, "config": config}, where)


def scenario(name: str) -> Scenario:
    """A scenario by name, or from an instructor's own file (`path/to/mine.toml`).

    Raises ConfigError for an unknown name or a mistake in its file; all its overrides are checked here.
    """
    path = named_file("scenarios", name)
    tree, where = read_toml(path), f"scenario {path.stem}"
    check_known(f"key of {where}", tree, [*settings_of(Scenario), *KEYS])
    given = {name: value for name, value in tree.items() if name not in KEYS}
    given |= {"name": path.stem, "cause": {key: tree[key] for key in KEYS if key in tree}}
    found = build(Scenario, given, where)
    config = found.config()
    of_each = [of_objective(metric, each.name) for each in config.objectives for metric in METRICS]
    of_each += [f"rewards/{name}/mean" for name in config.data.rewards]
    expected = (*found.expect.metrics, *found.expect.falls, *found.expect.below)
    check_known("metric in [expect]", expected, [*METRICS, *of_each])
    trial = config.merged(found.trial)
    for overrides in (*found.cures, *found.decoys, *(heal.change for heal in found.heals)):
        trial.with_(*overrides)
    check_known(f"model in [models] of {where}", found.models, model_settings())
    for model in found.models:
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


def guards_named(text: str) -> Switches:
    """The guards that a text names: names, presets and `file.py:Mine` with commas between them, or `none`.

    A guard has the settings that preset `stable` gives it, and one of a preset those of the preset. Raises ConfigError
    for a text without a name, such as that of an empty variable of a shell: `none` asks for a run without guards.

    >>> list(guards_named("original, warm_up")), guards_named("none")
    (['clip_gradients', 'warm_up'], {})
    """
    if not (names := listed(text)):
        raise ConfigError(f"guards {text!r}: no name; give names of guards or presets, or none")
    stable, found = preset("stable").guards, dict[str, Any]()
    for name in names:
        if name in preset_names() or name.endswith(".toml"):
            found |= preset(name).guards
        elif name != "none":
            found[name] = dict(stable.get(name, {}))
    return found
