"""Settings and guards as lists show them: each key of a config with its meaning, a guard's docstring in its parts."""

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_lab.analysis.markdown import one_line
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

    @property
    def written(self) -> str:
        """The default as it is written after `=`."""
        if isinstance(self.default, list):
            return ",".join(map(str, self.default)) or "empty"
        words = {True: "true", False: "false", None: "none", "": "''"}
        is_word = isinstance(self.default, bool) or self.default in (None, "")
        return words[self.default] if is_word else str(self.default).replace("\n", "\\n")


def described(name: str = "") -> list[Described]:
    """The settings of a section, as `loss` or `guards.warm_up`, a single one, those of a bare name, or all of them.

    Raises ConfigError for a name that is neither, with the nearest ones.

    >>> [(each.key, each.limit) for each in described("loss.beta")]
    [('loss.beta', 'at least 0')]
    >>> [each.key for each in described("learning_rate")]
    ['optimizer.learning_rate', 'sft.learning_rate']
    """
    every = [each for section, cls in classes(name.partition(".")[0]).items() for each in settings_in(section, cls)]
    found = [each for each in every if not name or each.key == name or each.key.startswith(f"{name}.")]
    found = found or [each for each in every if each.key.rpartition(".")[2] == name]
    if not found:
        there = [each.key for each in every if each.key.startswith(name.partition(".")[0] + ".")]
        raise unknown("section or setting", name, there or [*SECTIONS, "objectives", *SWITCHES])
    return found


def classes(section: str = "") -> dict[str, type]:
    """The class of each section; guards and faults, whose import takes seconds, only where they are asked for."""
    found: dict[str, type] = {**SECTIONS, "objectives.NAME": ObjectiveConfig}
    if section in SECTIONS or section == "objectives":
        return found
    from grpo_lab.training.faults import FAULTS
    from grpo_lab.training.guards import GUARDS

    found |= {f"guards.{name}": guard for name, guard in GUARDS.items()}
    return found | {f"faults.{name}": fault for name, fault in FAULTS.items()}


def settings_in(section: str, cls: type) -> Iterator[Described]:
    """The settings of a section's class."""
    for each in settings_of(cls).values():
        kind = str(each.kind) if typing.get_args(each.kind) else each.kind.__name__
        kind = "table" if typing.get_origin(each.kind) is Mapping else kind
        default = "required" if each.default is dataclasses.MISSING else plain(each.default)
        yield Described(f"{section}.{each.name}", each.help, kind, str(each.limit or ""), default)


def docstring(guard: type) -> tuple[str, dict[str, str]]:
    """The description of a guard, and its `Stops`, `Costs` and `Hides`, from its docstring.

    >>> from grpo_lab.training.guards import GUARDS
    >>> docstring(GUARDS["clip_gradients"])[1]["Costs"]
    'nothing below max_norm.'
    """
    before, *sections = re.split(r"\b(?=(?:Stops|Costs|Hides): )", one_line(guard.__doc__))
    parts = (section.strip().partition(": ") for section in sections)
    return before.strip(), {word: text for word, _, text in parts}
