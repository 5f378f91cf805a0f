"""docs/settings.md: every key of a config with its meaning, type, limit and default."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_lab.analysis.markdown import first_sentence, render
from grpo_lab.config.fields import plain, settings_of
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
    for each in settings_of(cls).values():
        kind = str(each.kind) if typing.get_args(each.kind) else each.kind.__name__
        kind = "table" if typing.get_origin(each.kind) is Mapping else kind
        default = "required" if each.default is dataclasses.MISSING else plain(each.default)
        yield Described(f"{section}.{each.name}", each.help, kind, str(each.limit or ""), default)


def text(default: Any) -> str:
    """A default as it is written after `=`."""
    if isinstance(default, list):
        return ",".join(map(str, default)) or "empty"
    words = {True: "true", False: "false", None: "none", "": "''"}
    return words[default] if isinstance(default, bool) or default in (None, "") else str(default)


def _code(default: Any) -> str:
    return "`" + text(default).replace("\n", "\\n") + "`"
