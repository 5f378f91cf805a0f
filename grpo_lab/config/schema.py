"""The config of a run as one frozen, validated value: model, data, loss, optimizer, guards and faults.

>>> config = Config().with_("loss.beta=0.04", "guards.clip_gradients.max_norm=0.3")
>>> config.loss.beta, dict(config.guards)
(0.04, {'clip_gradients': {'max_norm': 0.3}})
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from grpo_lab.config.fields import AtLeast, Between, FrozenDict, OneOf, Settings, build, parse, settings_of, typed
from grpo_lab.errors import ConfigError, unknown


@dataclass(frozen=True)
class RunConfig(Settings):
    """Length, device, seed and reproducibility of a run."""

    name: str = "run"
    """Name of the run in its folder and in plots."""
    seed: Annotated[int, AtLeast(0)] = 0
    """Seed of every random draw, together with the step and the purpose of the draw."""
    num_steps: Annotated[int, AtLeast(1)] = 10
    """Steps to attempt: each samples a batch and updates the policy `loss.num_iterations` times."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:1`."""
    threads: Annotated[int, AtLeast(0)] = 0
    """CPU threads of torch; 0: 1 below ten million parameters, else torch's own choice. The last bits depend on it."""
    deterministic: bool = False
    """Use torch's deterministic kernels on the GPU; on the CPU runs are deterministic anyway."""
    num_eval: Annotated[int, AtLeast(0)] = 0
    """Held-out problems sampled once each at temperature 1 before the first step and after the last; 0 for none."""
    exact_kl: bool = False
    """Also compute KL(policy || reference) over the whole vocabulary, as the metric kl/exact; it costs memory."""
    snapshot_every: Annotated[int, AtLeast(0)] = 0
    """Steps between in-memory snapshots for rollback. 0 picks 1 below ten million parameters; above, where a snapshot
    is a large copy of weights and moments, 10 if a guard may roll back, and else none."""


@dataclass(frozen=True)
class ModelConfig(Settings):
    """The policy, its precision, and how its forward passes are computed."""

    name: str = "tiny"
    """`tiny`, `smollm2-135m` (once it is fetched), a local folder, or a hub id."""
    precision: Annotated[str, OneOf("fp32", "bf16", "fp16", "bf16_pure", "fp16_pure")] = "fp32"
    """`bf16`/`fp16`: fp32 weights under autocast (fp16 with loss scaling). `*_pure`: the weights themselves."""
    prompt_pass: Annotated[str, OneOf("shared", "plain")] = "shared"
    """`shared` runs a prompt once for several completions in its row; `plain` repeats it for every completion."""
    decode: Annotated[str, OneOf("eager", "graph")] = "eager"
    """`graph` replays one captured CUDA graph for each sampled token, at a fixed width; only on CUDA."""


@dataclass(frozen=True)
class DataConfig(Settings):
    """Prompts, rewards and the shape of a batch."""

    tasks: str = "addition"
    """A built-in task, `addition` or `reviews`, or a JSON-lines file with a `prompt` on every line."""
    rewards: tuple[str, ...] = ("exact_match",)
    """Reward functions, summed: built-in names or `file.py:name`, with TRL's signature."""
    num_prompts: Annotated[int, AtLeast(1)] = 16
    """Prompts (groups) a step."""
    num_generations: Annotated[int, AtLeast(1)] = 8
    """Completions sampled for each prompt: the size of a group."""
    micro_batch_prompts: Annotated[int, AtLeast(0)] = 0
    """Prompts a forward-backward pass; gradients accumulate over the batch. 0: as many as have 4,096 tokens."""
    allow_single_generation: bool = False
    """Permit groups of one completion, which have nothing to be compared with; for scenarios that show the failure."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a group of one without `allow_single_generation`."""
        super().__post_init__()
        if self.num_generations == 1 and not self.allow_single_generation:
            raise ConfigError(
                "num_generations = 1: a group of one has nothing to be compared with and teaches nothing; "
                "use at least 2 (data.allow_single_generation=true only to watch it fail)"
            )


@dataclass(frozen=True)
class SamplingConfig(Settings):
    """Temperature, filters and penalties with which completions are sampled."""

    temperature: Annotated[float, Between(0)] = 1.0
    """Logits are divided by it, when sampling and in every log-probability alike."""
    top_p: Annotated[float, Between(0, 1)] = 1.0
    """Keep the smallest set of tokens with this much probability; 1 keeps all."""
    top_k: Annotated[int, AtLeast(0)] = 0
    """Keep this many of the likeliest tokens; 0 keeps all."""
    repetition_penalty: Annotated[float, Between(0)] = 1.0
    """Divides positive and multiplies negative logits of tokens already in the text; 1 changes nothing."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens already in the completion."""
    frequency_penalty: float = 0.0
    """Subtracted once for every time a token is already in the completion."""
    max_completion_length: Annotated[int, AtLeast(1)] = 8
    """Tokens a completion may have at most, its end token included."""


@dataclass(frozen=True)
class LossConfig(Settings):
    """The GRPO objective (DeepSeekMath, eq. 3), with the places where implementations differ."""

    epsilon: Annotated[float, Between(0, 1)] = 0.2
    """The ratio is clipped below at 1 - epsilon."""
    epsilon_high: Annotated[float | None, Between(0)] = None
    """The ratio is clipped above at 1 + epsilon_high; none uses epsilon."""
    beta: Annotated[float, AtLeast(0)] = 0.02
    """Weight of the KL penalty; 0 loads no reference model."""
    kl_estimator: str = "k3"
    """`k1`, `k2`, `k3`, `hinge`, a named wrong formula, or `file.py:name`: (delta) -> penalty, both (b, T)."""
    log_ratio: str = "old"
    """The policy that the current one is compared with: `old` (the one that sampled), a named wrong formula, or
    `file.py:name`: (logprobs, batch) -> log-ratio (b, T)."""
    aggregation: Annotated[str, OneOf("token", "sequence", "constant")] = "token"
    """Mean over tokens, mean over completions of their means, or the sum divided by the number of completions times
    `sampling.max_completion_length`."""
    advantage_scale: str = "group"
    """Standard deviation that divides the advantages: `group`, `batch`, `none`, a named wrong formula, or
    `file.py:name`: (rewards (P, G), scorable=...) -> advantages (P, G)."""
    completion_mask: str = "position"
    """The tokens that are trained: `position` (up to the end token), a named wrong mask, or `file.py:name`:
    (batch, pad) -> mask (B, T)."""
    accumulation: str = "add"
    """How gradients of micro-batches add up: `add`, a wrong way by name, or `file.py:name`: (loss, optimizer)."""
    num_iterations: Annotated[int, AtLeast(1)] = 1
    """Updates on each batch of completions (the mu of the paper)."""


@dataclass(frozen=True)
class OptimizerConfig(Settings):
    """AdamW and its schedule."""

    learning_rate: Annotated[float, AtLeast(0)] = 3e-4
    """Peak learning rate."""
    schedule: Annotated[str, OneOf("constant", "cosine")] = "constant"
    """How the learning rate changes over the run."""
    adam_eps: Annotated[float, AtLeast(0)] = 1e-8
    """Added to the root of the second moment."""
    adam_beta1: Annotated[float, AtLeast(0, 0.99999)] = 0.9
    """Decay of the first moment."""
    adam_beta2: Annotated[float, AtLeast(0, 0.99999)] = 0.999
    """Decay of the second moment."""
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    """Decoupled weight decay."""


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
    guards: Switches = field(default_factory=dict)
    faults: Switches = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ConfigError for guards or faults that are no table."""
        for kind in SWITCHES:
            for name, settings in _table(getattr(self, kind), kind).items():
                _table(settings, f"{kind}.{name}")
            object.__setattr__(self, kind, FrozenDict(getattr(self, kind)))

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

    def with_guards(self, guards: Switches) -> Config:
        """A copy with these guards in place of its own."""
        return dataclasses.replace(self, guards=guards)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries, as config.json holds them."""
        sections = {name: dataclasses.asdict(getattr(self, name)) for name in SECTIONS}
        sections["data"]["rewards"] = list(self.data.rewards)  # JSON and TOML know no tuples
        return sections | {kind: {k: dict(v) for k, v in getattr(self, kind).items()} for kind in SWITCHES}

    @staticmethod
    def from_dict(tree: Mapping[str, Any]) -> Config:
        """The inverse of to_dict; missing settings take their defaults.

        Raises ConfigError for an unknown section or setting, with the nearest names.
        """
        for section in _table(tree, "the config"):
            if section not in SECTIONS and section not in SWITCHES:
                raise unknown("section", section, [*SECTIONS, *SWITCHES])
        sections = {name: build(cls, _table(tree.get(name, {}), name), name) for name, cls in SECTIONS.items()}
        return Config(**sections, **{kind: tree[kind] for kind in SWITCHES if kind in tree})


SWITCHES = ("guards", "faults")
SECTIONS: dict[str, Any] = {part.name: part.default_factory for part in fields(Config) if part.name not in SWITCHES}
"""The class of each section."""
LIVE_SECTIONS = ("sampling", "loss", "optimizer", "guards")
"""Sections whose settings may change while a model trains; the others are fixed when the run starts."""


def _table(value: Any, where: str) -> Mapping[str, Any]:
    """The table itself. Raises ConfigError for any other value."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} = {value!r}: must be a table of names and values, as in {{'beta': 0.04}}")
    return value


def _merge(mine: dict[str, Any], tree: Mapping[str, Any]) -> None:
    """Lay a nested dictionary of settings over another one. Raises ConfigError for an unknown section."""
    for section, values in _table(tree, "the config").items():
        if section in SECTIONS:
            _lay_over(mine[section], values, section, settings_of(SECTIONS[section]))
        elif section in SWITCHES:
            for name, settings in _table(values, section).items():
                _lay_over(mine[section].setdefault(name, {}), settings, f"{section}.{name}")
        else:
            raise unknown("section", section, mine)


def _lay_over(table: dict[str, Any], values: Any, where: str, known: Mapping[str, Any] | None = None) -> None:
    """Put settings into a table; a text `*2` multiplies the number there. Raises ConfigError for an unknown name."""
    for name, value in _table(values, where).items():
        if known is not None and name not in known:
            raise unknown(f"setting of {where}", name, known)
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
    if path and path[0] not in tree:
        raise unknown("section", path[0], tree)
    match path:
        case [("guards" | "faults") as kind, name]:
            if not isinstance(switched := parse(text), bool):
                raise ConfigError(f"{override!r}: a guard or fault is switched with =on or =off")
            tree[kind].setdefault(name, {}) if switched else tree[kind].pop(name, None)
        case [("guards" | "faults") as kind, name, setting]:
            _merge(tree, {kind: {name: {setting: parse(text)}}})
        case [section, name] if section in SECTIONS:
            setting = settings_of(SECTIONS[section]).get(name)
            _merge(tree, {section: {name: typed(setting, text) if setting else text}})
        case _:
            raise ConfigError(f"{override!r} is no override; write section.setting=value, as in loss.beta=0.04")
