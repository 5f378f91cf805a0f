"""The config of a run as one frozen, validated value: model, data, loss, optimizer, guards and faults.

>>> config = Config().with_("loss.beta=0.04", "guards.clip_gradients.max_norm=0.3")
>>> config.loss.beta, dict(config.guards)
(0.04, {'clip_gradients': {'max_norm': 0.3}})
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from grpo_lab.config import shares
from grpo_lab.config.algorithms import settings_for
from grpo_lab.config.fields import FrozenDict, as_table, build, parse, settings_of, typed, unknown_section
from grpo_lab.config.loss_section import LossConfig
from grpo_lab.config.sections import (
    DataConfig,
    JudgeConfig,
    LoraConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    SftConfig,
)
from grpo_lab.errors import ConfigError, unknown

Switches = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Config:
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
        """Raise ConfigError for guards or faults that are no table, objectives that teach nothing, a group of one
        without a baseline, SFT without data, and prompts that processes cannot share.
        """
        for kind in SWITCHES:
            for name, settings in as_table(getattr(self, kind), kind, OF_SWITCHES).items():
                as_table(settings, f"{kind}.{name}", OF_A_SWITCH)
            object.__setattr__(self, kind, FrozenDict(getattr(self, kind)))
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
        shares.check(self)

    def with_(self, *overrides: str) -> Config:
        """A copy with settings changed: `"loss.beta=0.04"`, `"optimizer.learning_rate=*100"` (times the value there),
        `"guards.warm_up=on"`, `"guards.warm_up=off"`, `"guards.clip_gradients.max_norm=0.3"` (switches it on too).

        Raises ConfigError for a text that is no override, an unknown name or a value outside its limit.
        """
        tree = self.to_dict()
        for override in overrides:
            path, separator, text = override.partition("=")
            _put(tree, _parts(path.strip()) if separator else [], text.strip(), override)
        return Config.from_dict(tree)

    def merged(self, tree: Mapping[str, Any]) -> Config:
        """A copy with a nested dictionary of settings laid over it, as a TOML file gives it.

        Raises ConfigError for an unknown name or a value outside its limit.
        """
        mine = self.to_dict()
        _merge(mine, tree)
        return Config.from_dict(mine)

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
        values = {name: dataclasses.asdict(getattr(self, name)).items() for name in SECTIONS}
        # JSON and TOML know no tuples.
        sections = {name: {k: [*v] if isinstance(v, tuple) else v for k, v in rows} for name, rows in values.items()}
        switches = {kind: {k: dict(v) for k, v in getattr(self, kind).items()} for kind in SWITCHES}
        objectives = [objective.settings() for objective in self.objectives]
        return sections | switches | ({OBJECTIVES: objectives} if objectives else {})

    @staticmethod
    def from_dict(tree: Mapping[str, Any]) -> Config:
        """The inverse of to_dict; missing settings take their defaults.

        Raises ConfigError for an unknown section or setting, with the nearest names.
        """
        for section in as_table(tree, "the config"):
            if section not in KEYS:
                raise unknown_section(section, SECTIONS, KEYS)
        tables = {name: _without_removed(name, tree.get(name, {})) for name in SECTIONS}
        sections = {name: build(cls, tables[name], name) for name, cls in SECTIONS.items()}
        objectives = tuple(
            build(ObjectiveConfig, values, f"{OBJECTIVES}.{name}")
            for name, values in _by_name(tree.get(OBJECTIVES, ())).items()
        )
        return Config(**sections, **{kind: tree[kind] for kind in SWITCHES if kind in tree}, objectives=objectives)

    def changed_live(self, *overrides: str) -> Config:
        """A copy with settings changed that may change while a model trains.

        Raises ConfigError for any other setting, and for what `with_` refuses.
        """
        changed = self.with_(*overrides)
        for section in KEYS:
            if section not in LIVE_SECTIONS and getattr(changed, section) != getattr(self, section):
                raise ConfigError(f"{section}.* is fixed once a run has started; {', '.join(LIVE_SECTIONS)} may change")
        fixed = [
            [getattr(o, name) for o in config.objectives for name in FIXED_OF_OBJECTIVES] for config in (self, changed)
        ]
        if fixed[0] != fixed[1]:
            raise ConfigError(f"objectives.NAME.{'/'.join(FIXED_OF_OBJECTIVES)} are fixed once a run has started")
        return changed


def planned_steps(tree: Mapping[str, Any]) -> dict[str, int]:
    """The steps of each stage of a run, from its config as `Config.to_dict` gives it; a recording may lack stages.

    >>> planned_steps(Config().with_("run.stages=sft,grpo", "sft.data=shown.jsonl").to_dict())
    {'sft': 100, 'grpo': 10}
    """
    run = tree.get("run", {})
    sections = {"sft": tree.get("sft", {}), "grpo": run}
    return {stage: int(sections[stage].get("num_steps", 0)) for stage in run.get("stages", ("grpo",))}


SWITCHES, OBJECTIVES = ("guards", "faults"), "objectives"
OF_SWITCHES = "a table of names with their settings, as in {'warm_up': {}}"
OF_A_SWITCH = "a table of its settings, {} for the usual ones; leave it out to switch it off"
KEYS = tuple(part.name for part in fields(Config))
SECTIONS: dict[str, Any] = {
    part.name: part.default_factory for part in fields(Config) if part.name not in (*SWITCHES, OBJECTIVES)
}
"""The class of each section."""
LIVE_SECTIONS = ("sampling", "loss", "optimizer", "guards", OBJECTIVES)
"""Sections whose settings may change while a model trains; the others are fixed when the run starts."""
FIXED_OF_OBJECTIVES = ("name", "tasks", "rewards", "num_prompts")
"""Settings of an objective that are fixed when the run starts."""


NO_CRITIC = "PPO's critic kept the reward no steadier (docs/claims.md); loss.credit_assignment=reward_to_go needs none"
HTTP_JUDGE = "a judge over HTTP is a file to copy, docs/examples/http_judge.py, and its settings are in it"
REMOVED: dict[str, tuple[Any, str]] = {
    "model.decode": ("eager", "captured graphs for decoding had never run on a GPU"),
    "run.fsdp": (False, "each process has whole weights, so the model must fit one GPU, as with LoRA"),
    "loss.critic": ("none", NO_CRITIC),
    "loss.critic_from": ("", NO_CRITIC),
    "loss.vf_coef": (0.1, NO_CRITIC),
    "loss.cliprange_value": (0.2, NO_CRITIC),
    "loss.lam": (0.95, NO_CRITIC),
    "sft.packing": (False, "SFT pads its rows, which gives the same loss"),
    "judge.url": ("", HTTP_JUDGE),
    "judge.model": ("", HTTP_JUDGE),
    "judge.prompt": (
        "Rate the answer from 0 (wrong) to 10 (perfect). Reply with the number alone.\n\n"
        "Question:\n{prompt}\n\nAnswer:\n{completion}",
        HTTP_JUDGE,
    ),
    "judge.temperature": (None, HTTP_JUDGE),
    "judge.api_key_env": ("", HTTP_JUDGE),
}
"""Settings of earlier versions, each with the value that a run still has, and why the others are gone."""


def _without_removed(section: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A section without settings that are gone. Raises ConfigError for one whose value is gone with it.

    >>> _without_removed("model", {"name": "tiny", "decode": "eager"})
    {'name': 'tiny'}
    """
    gone = {name: REMOVED[f"{section}.{name}"] for name in as_table(table, section) if f"{section}.{name}" in REMOVED}
    for name, (left, why) in gone.items():
        if str(table[name]).lower() != str(left).lower():  # `--set` reads the name none as None
            raise ConfigError(f"{section}.{name} = {table[name]!r} is no longer there: {why}; leave it out")
    return {name: value for name, value in table.items() if name not in gone}


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


def _merge(mine: dict[str, Any], tree: Mapping[str, Any]) -> None:
    """Lay a nested dictionary of settings over another one. Raises ConfigError for an unknown section."""
    for section, values in as_table(tree, "the config").items():
        if section in SECTIONS:
            there = _without_removed(section, as_table(values, section))
            _lay_over(mine[section], there, section, settings_of(SECTIONS[section]))
        elif section in SWITCHES:
            for name, settings in as_table(values, section, OF_SWITCHES).items():
                as_table(settings, f"{section}.{name}", OF_A_SWITCH)
                _lay_over(mine[section].setdefault(name, {}), settings, f"{section}.{name}")
        elif section == OBJECTIVES:
            there = _by_name(mine.setdefault(OBJECTIVES, []))
            for name, settings in _by_name(values).items():
                if name not in there:
                    mine[OBJECTIVES].append(there.setdefault(name, {}))
                _lay_over(there[name], settings, f"{section}.{name}", settings_of(ObjectiveConfig))
        else:
            raise unknown_section(section, SECTIONS, KEYS)


def _lay_over(table: dict[str, Any], values: Any, where: str, known: Mapping[str, Any] | None = None) -> None:
    """Put settings into a table; a text `*2` multiplies the number there. Raises ConfigError for an unknown name."""
    for name, value in as_table(values, where).items():
        if known is not None and name not in known:
            raise unknown(f"setting of {where}", name, known)
        if isinstance(value, Mapping):
            table[name] = dict(table.get(name, {}))
            _lay_over(table[name], value, f"{where}.{name}")
        else:
            starred = isinstance(value, str) and value.startswith("*")
            table[name] = _times(table.get(name), value, f"{where}.{name}") if starred else value


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


def _parts(path: str) -> list[str]:
    """The names on the way to a setting; a user's `file.py:Class` is one of them.

    >>> _parts("loss.beta"), _parts("guards.v1.0/mine.py:Mine.limit")
    (['loss', 'beta'], ['guards', 'v1.0/mine.py:Mine', 'limit'])
    """
    section, _, rest = path.partition(".")
    file, colon, inside = rest.rpartition(":")
    if not colon:
        return path.split(".")
    name, *setting = inside.split(".")
    return [section, f"{file}:{name}", *setting]


def _put(tree: dict[str, Any], path: list[str], text: str, override: str) -> None:
    """Lay one override into the nested dictionary. Raises ConfigError for a text that is no override."""
    if path and path[0] not in KEYS:
        raise unknown_section(path[0], SECTIONS, KEYS)
    match path:
        case [("guards" | "faults") as kind, name]:
            if not isinstance(switched := parse(text), bool):
                raise ConfigError(f"{override!r}: a guard or fault is switched with =on or =off")
            tree[kind].setdefault(name, {}) if switched else tree[kind].pop(name, None)
        case [("guards" | "faults") as kind, name, setting]:
            _merge(tree, {kind: {name: {setting: parse(text)}}})
        case ["objectives", name, *setting]:
            _put_objective(tree, name, setting, text, override)
        case [section, name] if section in SECTIONS:
            setting = settings_of(SECTIONS[section]).get(name)
            _merge(tree, {section: {name: typed(setting, text) if setting else parse(text)}})
        case _:
            raise ConfigError(f"{override!r} is no override; write section.setting=value, as in loss.beta=0.04")


def _put_objective(tree: dict[str, Any], name: str, path: list[str], text: str, override: str) -> None:
    """Lay one override of an objective into the nested dictionary. Raises ConfigError for an unknown objective."""
    there = _by_name(tree.get(OBJECTIVES, []))
    if name not in there:
        raise unknown("objective", name, there)
    match path:
        case [] if parse(text) is False:
            tree[OBJECTIVES].remove(there[name])
        case ["name"]:
            raise ConfigError(f"{override!r}: an objective keeps its name; give it another one in the preset's file")
        case ["sampling", setting]:
            _merge(tree, {OBJECTIVES: [{"name": name, "sampling": {setting: parse(text)}}]})
        case [setting]:
            known = settings_of(ObjectiveConfig).get(setting)
            _merge(tree, {OBJECTIVES: [{"name": name, setting: typed(known, text) if known else text}]})
        case _:
            raise ConfigError(f"{override!r} is no override; write objectives.{name}.weight=2, or =off to remove it")
