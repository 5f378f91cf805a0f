"""The config of a run as one frozen, validated value: model, data, loss, optimizer, guards and faults.

>>> config = Config().with_("loss.beta=0.04", "guards.clip_gradients.max_norm=0.3")
>>> config.loss.beta, dict(config.guards)
(0.04, {'clip_gradients': {'max_norm': 0.3}})
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_lab.config.algorithms import settings_for
from grpo_lab.config.fields import NONE, Settings, as_table, build, parse, plain, settings_of, typed
from grpo_lab.config.sections import (
    DataConfig,
    JudgeConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    SftConfig,
)
from grpo_lab.errors import ConfigError, GrpoLabError, unknown
from grpo_lab.paths import data_tables

Switches = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Config(Settings):
    """Everything a run depends on; it is checked at construction and cannot be changed.

    `guards` and `faults` map a name, or a user's `file.py:Class`, to its settings, in the order in which they act.
    `validated` in `grpo_lab.training` checks their names and settings, because only the classes know them.
    """

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    guards: Switches = field(default_factory=dict)
    faults: Switches = field(default_factory=dict)
    objectives: tuple[ObjectiveConfig, ...] = ()
    """Without any, the run has one, which `data`, `sampling` and `loss` describe."""

    def __post_init__(self) -> None:
        """Raise ConfigError for what no section can check alone."""
        super().__post_init__()
        names = [objective.name for objective in self.objectives]
        if names and not any(objective.weight for objective in self.objectives):
            raise ConfigError(f"objectives: the weights of {', '.join(names)} are all 0; give one of them at least")
        if self.loss.advantage_scale == "leave_one_out" and self.data.num_generations == 1:
            raise ConfigError(
                "data.num_generations = 1 with loss.advantage_scale = 'leave_one_out': a group of one has no others; "
                "use at least 2, or loss.advantage_scale=global, which needs no groups"
            )
        if "sft" in self.run.stages and not self.sft.data:
            raise ConfigError("run.stages has sft, and sft.data names no file; give sft.data=FILE.jsonl")
        if self.model.sampler_weights == "start" and self.lora.reference == "adapters_on":
            raise ConfigError(
                "model.sampler_weights = 'start' with lora.reference = 'adapters_on': that reference has the current "
                "weights, so nothing would be old; show one mistake at a time"
            )
        self._check_processes()

    def _check_processes(self) -> None:
        """Raise ConfigError where processes or streams would not get equal shares of a step, or would drift apart."""
        processes, streams = self.run.processes, self.run.streams or self.run.processes
        if streams % processes:
            raise ConfigError(
                f"run.streams = {streams} with run.processes = {processes}: each process needs the same number of "
                f"streams; use {processes} or a multiple of it"
            )
        if processes > 1 and self.loss.accumulation == "step_inside":
            raise ConfigError(
                f"loss.accumulation = 'step_inside' with run.processes = {processes}: each process would update by its "
                "own gradients, and they would drift apart; show it with one process"
            )
        prompts = {"data.num_prompts": self.data.num_prompts}
        prompts |= {f"objectives.{each.name}.num_prompts": each.num_prompts or 0 for each in self.objectives}
        if "sft" in self.run.stages:
            prompts["sft.batch_size"] = self.sft.batch_size
        for name, count in prompts.items():
            if count % streams:
                over = "more processes than prompts" if count < processes else "unequal shares"
                raise ConfigError(
                    f"{name} = {count} with run.processes = {processes} and {streams} random streams: {over}; "
                    f"use {streams} prompts or a multiple of it"
                )

    def with_(self, *overrides: str) -> Config:
        """A copy with settings changed: `"loss.beta=0.04"`, `"optimizer.learning_rate=*100"` (times the value there),
        `"guards.warm_up=on"`, `"guards.warm_up=off"`, `"guards.clip_gradients.max_norm=0.3"` (switches it on too).

        Raises ConfigError for a text that is no override, an unknown name or a value outside its limit.
        """
        tree = _by_path(self.to_dict())
        for override in overrides:
            _put(tree, override)
        return _of_paths(tree)

    def merged(self, tree: Mapping[str, Any]) -> Config:
        """A copy with a nested dictionary of settings laid over it, as a TOML file gives it.

        Raises ConfigError for an unknown name or a value outside its limit.
        """
        mine = _by_path(self.to_dict())
        _lay_over(mine, _by_path(as_table(tree, "the config")))
        return _of_paths(mine)

    def with_algorithm(self, name: str) -> Config:
        """A copy whose formulas are those of an algorithm: a name of `algorithm_names()`, or a file of one.

        A setting of another algorithm goes back to its default; beta, and a wrong formula that causes a failure, stay.
        Raises ConfigError for an unknown name, with the nearest ones, and for a group of one that has to be compared.

        >>> config = Config().with_algorithm("cispo")
        >>> config.loss.surrogate, config.with_algorithm("gspo").loss.surrogate
        ('cispo', 'clip')
        """
        return self.merged({"loss": settings_for(name, dataclasses.asdict(self.loss))})

    def with_guards(self, guards: Switches) -> Config:
        """A copy with these guards in place of its own."""
        return dataclasses.replace(self, guards=guards)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries, as config.json holds them."""
        tree = plain(self)
        objectives = [{k: v for k, v in each.items() if v is not None} for each in tree.pop(OBJECTIVES)]
        return tree | ({OBJECTIVES: objectives} if objectives else {})

    @staticmethod
    def from_dict(tree: Mapping[str, Any]) -> Config:
        """The inverse of to_dict; missing settings take their defaults.

        Raises ConfigError for an unknown section or setting, with the nearest names.
        """
        parts: dict[str, Any] = dict(as_table(tree, "the config"))
        for section, values in parts.items():
            if section not in KEYS:
                raise _unknown_section(section)
            if section in SECTIONS:
                parts[section] = _without_removed(section, values)
        named = _by_name(parts.get(OBJECTIVES, ())).items()
        parts[OBJECTIVES] = tuple(build(ObjectiveConfig, each, f"{OBJECTIVES}.{name}") for name, each in named)
        return Config(**parts)

    def changed_live(self, *overrides: str) -> Config:
        """A copy with settings changed that may change while a model trains.

        Raises ConfigError for any other setting, and for what `with_` refuses.
        """
        changed = self.with_(*overrides)
        for section in KEYS:
            if section not in LIVE_SECTIONS and getattr(changed, section) != getattr(self, section):
                raise ConfigError(f"{section}.* is fixed once a run has started; {', '.join(LIVE_SECTIONS)} may change")
        fixed = [[[getattr(o, name) for name in FIXED] for o in config.objectives] for config in (self, changed)]
        if fixed[0] != fixed[1]:
            raise ConfigError(f"objectives.NAME.{'/'.join(FIXED)} are fixed once a run has started")
        return changed


SWITCHES, OBJECTIVES = ("guards", "faults"), "objectives"
KEYS = tuple(settings_of(Config))
SECTIONS: dict[str, type[Settings]] = {
    name: each.kind for name, each in settings_of(Config).items() if name not in (*SWITCHES, OBJECTIVES)
}
"""The class of each section."""
LIVE_SECTIONS = ("sampling", "loss", "optimizer", "guards", OBJECTIVES)
"""Sections whose settings may change while a model trains; the others are fixed when the run starts."""
FIXED = ("name", "tasks", "rewards", "num_prompts")
"""Settings of an objective that are fixed when the run starts."""


def planned_steps(tree: Mapping[str, Any]) -> dict[str, int]:
    """The steps of each stage of a run, from its config as `Config.to_dict` gives it; a recording may lack stages.

    >>> planned_steps(Config().with_("run.stages=sft,grpo", "sft.data=shown.jsonl").to_dict())
    {'sft': 100, 'grpo': 10}
    """
    run = tree.get("run", {})
    sections = {"sft": tree.get("sft", {}), "grpo": run}
    return {stage: int(sections[stage].get("num_steps", 0)) for stage in run.get("stages", ("grpo",))}


def resized(config: Config, processes: int | None) -> Config:
    """The config of a run that goes on with another number of processes; None for as many as it has.

    It keeps its random streams, and so the tokens that it samples, where the processes can share them out.
    """
    if processes is None or processes == config.run.processes:
        return config
    streams = config.run.streams or config.run.processes
    kept = streams if processes > 0 and streams % processes == 0 else 0
    return config.with_(f"run.processes={processes}", f"run.streams={kept}")


def live_changes(old: Config, new: Config) -> tuple[str, ...]:
    """The overrides by which `Config.changed_live` makes the loss, optimizer, sampling and guards of `new` from `old`.

    >>> live_changes(Config(), Config().with_("loss.beta=0.1", "guards.clip_gradients.max_norm=0.3"))
    ('guards.clip_gradients=on', 'loss.beta=0.1', 'guards.clip_gradients.max_norm=0.3')
    """
    mine, wanted = old.to_dict(), new.to_dict()
    changed = [name for name, settings in wanted["guards"].items() if mine["guards"].get(name) != settings]
    gone = [name for name, settings in mine["guards"].items() if wanted["guards"].get(name) != settings]
    lines = [f"guards.{name}=off" for name in gone] + [f"guards.{name}=on" for name in changed]
    tables = {section: (mine[section], wanted[section]) for section in ("sampling", "loss", "optimizer")}
    tables |= {f"guards.{name}": ({}, wanted["guards"][name]) for name in changed}
    for where, (before, after) in tables.items():
        differing = [(key, value) for key, value in after.items() if key not in before or before[key] != value]
        lines += [f"{where}.{key}={NONE if value is None else value}" for key, value in differing]
    return tuple(lines)


# Overrides and tables that are laid over a config ---------------------------------------------------------------------


def _by_path(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A config's tables with the list of objectives as a table by name, as overrides name them."""
    return {**tree, OBJECTIVES: _by_name(tree.get(OBJECTIVES, ()))}


def _of_paths(tree: dict[str, Any]) -> Config:
    return Config.from_dict(tree | {OBJECTIVES: [*tree[OBJECTIVES].values()]})


def _by_name(objectives: Any) -> dict[str, Any]:
    """The tables of `[[objectives]]` by name. Raises ConfigError for anything else and for a name that comes twice."""
    if not isinstance(objectives, list | tuple):
        raise ConfigError(f"objectives = {objectives!r}: must be a list of tables; write [[objectives]] above each")
    found: dict[str, Any] = {}
    for table in objectives:
        name = as_table(table, "each of [[objectives]]").get("name")
        if not isinstance(name, str) or name in found:
            raise ConfigError(f"objectives: name = {name!r}: each needs a name of its own")
        found[name] = table
    return found


def _put(tree: dict[str, Any], override: str) -> None:
    """Lay one override over a config's tables. Raises ConfigError for a text that is no override."""
    path, separator, text = (part.strip() for part in override.partition("="))
    parts = _names_in(path) if separator else []
    match parts:
        case [section, *_] if section not in KEYS:
            raise _unknown_section(section)
        case ["objectives", name, *_] if name not in tree[OBJECTIVES]:
            raise unknown("objective", name, tree[OBJECTIVES])
        case [("guards" | "faults"), _] if not isinstance(parse(text), bool):
            raise ConfigError(f"{override!r}: a guard or fault is switched with =on or =off")
        case [("guards" | "faults" | "objectives") as kind, name] if parse(text) is False:
            tree[kind].pop(name, None)
        case [("guards" | "faults") as kind, name]:
            tree[kind].setdefault(name, {})
        case _:
            value = _value(parts, text, override)
            for part in reversed(parts):
                value = {part: value}
            _lay_over(tree, value)


def _value(path: list[str], text: str, override: str) -> Any:
    """The value of an override's text. Raises ConfigError where no setting is at this path."""
    match path:
        case [section, name] if section in SECTIONS:
            return typed(settings_of(SECTIONS[section]).get(name), text)
        case ["objectives", _, "name"]:
            raise ConfigError(f"{override!r}: an objective keeps its name; give it another one in the preset's file")
        case ["objectives", _, name]:
            return typed(settings_of(ObjectiveConfig).get(name), text)
        case [("guards" | "faults"), _, _] | ["objectives", _, "sampling", _]:
            return parse(text)
    raise ConfigError(f"{override!r} is no override; write section.setting=value, as in loss.beta=0.04")


def _names_in(path: str) -> list[str]:
    """The names on the way to a setting; a user's `file.py:Class` is one of them.

    >>> _names_in("loss.beta"), _names_in("guards.v1.0/mine.py:Mine.limit")
    (['loss', 'beta'], ['guards', 'v1.0/mine.py:Mine', 'limit'])
    """
    section, _, rest = path.partition(".")
    file, colon, inside = rest.rpartition(":")
    if not colon:
        return path.split(".")
    name, *setting = inside.split(".")
    return [section, f"{file}:{name}", *setting]


def _lay_over(table: dict[str, Any], values: Mapping[str, Any], where: str = "") -> None:
    """Put settings into a table, and tables into those there; a text `*2` multiplies the number there."""
    for name, value in values.items():
        path = f"{where}.{name}" if where else name
        if isinstance(value, Mapping):
            if not isinstance(table.get(name), dict):
                table[name] = {}
            _lay_over(table[name], value, path)
        # A name that no section has is left for `from_dict` to refuse, which knows the nearest ones.
        elif isinstance(value, str) and value.startswith("*") and (name in table or where not in SECTIONS):
            table[name] = _times(table.get(name), value, path)
        else:
            table[name] = value


def _times(old: Any, text: str, where: str) -> float:
    """The product of both numbers. Raises ConfigError for anything but numbers, and beyond the largest float."""
    factor = parse(text[1:])
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in (old, factor)):
        raise ConfigError(f"{where} = {text!r} multiplies {old!r}: both must be numbers; give the number itself")
    try:
        product = old * factor
        return product if isinstance(product, int) else float(f"{product:.15g}")  # 1e-5 * 30 is 0.0003 here
    except OverflowError:
        raise ConfigError(f"{where} = {text!r}: the product is too large; give the number itself") from None


def _unknown_section(name: str) -> GrpoLabError:
    """The error for a section that does not exist: perhaps it is a setting, which stands in one or more of them."""
    homes: dict[str, list[str]] = {}
    for section, cls in SECTIONS.items():
        for setting in settings_of(cls):
            homes.setdefault(setting, []).append(f"{section}.{setting}")
    if near := difflib.get_close_matches(name, homes, n=1, cutoff=0.9):
        return ConfigError(f"unknown section {name!r}; did you mean {' or '.join(homes[near[0]])}?")
    return ConfigError(f"{unknown('section', name, KEYS)}; a guard is switched by guards.NAME=on")


# Settings of earlier versions -----------------------------------------------------------------------------------------

REMOVED: dict[str, tuple[Any, str]] = {
    name: (left, group["why"]) for group in data_tables("removed")["settings"] for name, left in group["left"].items()
}
"""Settings that are gone, each with the value that a run still has, and why the others are gone."""


def _without_removed(section: str, table: Any) -> dict[str, Any]:
    """A section without settings that are gone. Raises ConfigError for one whose value is gone with it.

    >>> _without_removed("model", {"name": "tiny", "decode": "eager"})
    {'name': 'tiny'}
    """
    kept = dict(as_table(table, section))
    for name in [name for name in kept if f"{section}.{name}" in REMOVED]:
        (left, why), value = REMOVED[f"{section}.{name}"], kept.pop(name)
        if str(value).lower() != str(left).lower():  # `--set` reads the name none as None
            raise ConfigError(f"{section}.{name} = {value!r} is no longer there: {why}; leave it out")
    return kept
