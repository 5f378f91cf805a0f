"""docs/settings.md: every key of a config with its meaning, type, limit and default."""

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grpo_lab.analysis.markdown import first_sentence, render
from grpo_lab.config.fields import Setting, settings_of
from grpo_lab.config.schema import SECTIONS, SWITCHES
from grpo_lab.config.sections import ObjectiveConfig
from grpo_lab.errors import unknown


@dataclass(frozen=True)
class Described:
    """A key of a config as lists show it; `objectives.NAME.weight` is a key of each objective."""

    key: str
    meaning: str
    type: str
    limit: str
    default: Any


def page() -> str:
    """The page on settings."""
    sections = [(name, first_sentence(cls.__doc__), list(_of(name, cls))) for name, cls in _classes().items()]
    head = ["key", "meaning", "type", "limit", "default"]
    tables = [
        (name, about, [head, *([f"`{d.key}`", d.meaning, f"`{d.type}`", d.limit, _code(d.default)] for d in found)])
        for name, about, found in sections
    ]
    return render("settings", sections=[each for each in tables if len(each[2]) > 1])


def described(name: str = "") -> list[Described]:
    """The settings of a section, as `loss` or `guards.warm_up`, a single one, those of a bare name, or all of them.

    Raises ConfigError for a name that is neither, with the nearest ones.

    >>> [(each.key, each.limit) for each in described("loss.beta")]
    [('loss.beta', 'at least 0')]
    >>> [each.key for each in described("learning_rate")]
    ['optimizer.learning_rate', 'sft.learning_rate']
    """
    every = [each for section, cls in _classes(name.partition(".")[0]).items() for each in _of(section, cls)]
    found = [each for each in every if not name or each.key == name or each.key.startswith(f"{name}.")]
    found = found or [each for each in every if each.key.rpartition(".")[2] == name]
    if not found:
        there = [each.key for each in every if each.key.startswith(name.partition(".")[0] + ".")]
        raise unknown("section or setting", name, there or [*SECTIONS, "objectives", *SWITCHES])
    return found


def _classes(section: str = "") -> dict[str, type]:
    """The class of each section; guards and faults, whose import takes seconds, only where they are asked for."""
    found: dict[str, type] = {**SECTIONS, "objectives.NAME": ObjectiveConfig}
    if section in SECTIONS or section == "objectives":
        return found
    from grpo_lab.training.faults import FAULTS
    from grpo_lab.training.guards import GUARDS

    found |= {f"guards.{name}": guard for name, guard in GUARDS.items()}
    return found | {f"faults.{name}": fault for name, fault in FAULTS.items()}


def _of(section: str, cls: type) -> Iterator[Described]:
    for setting in settings_of(cls).values():
        limit = "" if setting.limit is None else str(setting.limit)
        default = list(setting.default) if isinstance(setting.default, tuple) else setting.default
        yield Described(f"{section}.{setting.name}", setting.help, _type(setting), limit, _plain(default))


def _type(setting: Setting) -> str:
    """The type in Python's words, a table of settings as `table`."""
    if typing.get_origin(setting.kind) is None and isinstance(setting.kind, type):
        return "table" if issubclass(setting.kind, dict) else setting.kind.__name__
    return str(setting.kind)


def _plain(default: Any) -> Any:
    """The default, or a text where a value has to be given."""
    return "required" if default is dataclasses.MISSING else default


def text(default: Any) -> str:
    """A default as it is written after `=`."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list):
        return ",".join(map(str, default)) or "empty"
    return "none" if default is None else repr(default) if default == "" else str(default)


def _code(default: Any) -> str:
    return "`" + text(default).replace("\n", "\\n") + "`"
