"""A config as TOML: the text, and the config of such a text."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_lab.config.fields import NONE
from grpo_lab.config.schema import OBJECTIVES, SECTIONS, SWITCHES, Config
from grpo_lab.errors import ConfigError
from grpo_lab.paths import read_toml


def dumps(config: Config, whole: bool = True) -> str:
    """The config, or only what differs from the defaults.

    TOML has no None: it is left out where it is the default, and is the text "none" elsewhere.

    >>> print(dumps(Config().with_("loss.beta=0.04", "guards.clip_gradients.max_norm=0.3"), whole=False))
    [loss]
    beta = 0.04
    <BLANKLINE>
    [guards."clip_gradients"]
    max_norm = 0.3
    <BLANKLINE>
    """
    tree, usual = config.to_dict(), Config().to_dict()
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for section in SECTIONS:
        differing = {key: each for key, each in tree[section].items() if each != usual[section][key]}
        named = {key: NONE if each is None else each for key, each in differing.items()}
        if whole or named:
            tables.append((section, tree[section] | named if whole else named))
    tables += [(f"{kind}.{value(name)}", each) for kind in SWITCHES for name, each in tree[kind].items()]
    tables += [(f"[{OBJECTIVES}]", each) for each in tree.get(OBJECTIVES, ())]
    return "\n".join(_table(name, settings) for name, settings in tables)


def load(path: Path) -> Config:
    """The config in a file; settings that it leaves out have their defaults.

    Raises ConfigError for a file that cannot be read, bad TOML, an unknown name and a value outside its limit.
    """
    tree = read_toml(path)
    try:
        return Config.from_dict(tree)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _table(name: str, settings: Mapping[str, Any]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {value(each)}\n" for key, each in settings.items() if each is not None)


def value(each: Any) -> str:
    """A value. JSON writes strings, numbers and truth values as TOML does, but for infinity and the sign DEL."""
    if isinstance(each, Mapping):
        return "{" + ", ".join(f"{value(key)} = {value(v)}" for key, v in each.items() if v is not None) + "}"
    if isinstance(each, list | tuple):
        return "[" + ", ".join(map(value, each)) + "]"
    if isinstance(each, float) and not math.isfinite(each):
        return str(each)
    return json.dumps(each, ensure_ascii=False).replace("\x7f", "\\u007f")
