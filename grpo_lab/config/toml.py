"""A config as TOML: the text, and the config of such a text."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_lab.config.fields import NONE, read_toml
from grpo_lab.config.schema import OBJECTIVES, SECTIONS, SWITCHES, Config
from grpo_lab.errors import ConfigError


def dumps(config: Config) -> str:
    """The whole config. TOML has no None: it is left out where it is the default, and is the text "none" elsewhere.

    >>> import tomllib
    >>> config = Config().with_("guards.clip_gradients.max_norm=0.3", "loss.beta=0.04")
    >>> Config.from_dict(tomllib.loads(dumps(config))) == config
    True
    """
    tree, usual = config.to_dict(), Config().to_dict()
    for section in SECTIONS:
        named = {key: NONE for key, each in tree[section].items() if each is None and usual[section][key] is not None}
        tree[section] |= named
    lines = [line for section in SECTIONS for line in table(section, tree[section])]
    return "\n".join([*lines, *tables(tree)]).lstrip() + "\n"


def load(path: Path) -> Config:
    """The config in a file; settings that it leaves out have their defaults.

    Raises ConfigError for a file that cannot be read, bad TOML, an unknown name and a value outside its limit.
    """
    tree = read_toml(path)
    try:
        return Config.from_dict(tree)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def tables(tree: Mapping[str, Any]) -> list[str]:
    """The tables of guards, faults and objectives of a config, as `Config.to_dict` gives them."""
    rows = [(f"{kind}.{value(name)}", each) for kind in SWITCHES for name, each in tree[kind].items()]
    rows += [(f"[{OBJECTIVES}]", each) for each in tree.get(OBJECTIVES, ())]
    return [line for name, settings in rows for line in table(name, settings)]


def table(name: str, settings: Mapping[str, Any]) -> list[str]:
    """A table of settings, a line each."""
    return ["", f"[{name}]", *(f"{key} = {value(each)}" for key, each in settings.items() if each is not None)]


def value(each: Any) -> str:
    """A value. JSON writes strings, numbers and truth values as TOML does, but for infinity and the sign DEL."""
    if isinstance(each, Mapping):
        return "{" + ", ".join(f"{value(key)} = {value(v)}" for key, v in each.items() if v is not None) + "}"
    if isinstance(each, list | tuple):
        return "[" + ", ".join(map(value, each)) + "]"
    if isinstance(each, float) and not math.isfinite(each):
        return str(each)
    return json.dumps(each, ensure_ascii=False).replace("\x7f", "\\u007f")
