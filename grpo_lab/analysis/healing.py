"""From a run that broke to a config that learns: the scenario with the cause that its config holds, and its heal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_lab.analysis.diagnosis import diagnose
from grpo_lab.analysis.diagnosis.report import wrapped
from grpo_lab.analysis.logs import from_events
from grpo_lab.config import toml
from grpo_lab.config.catalog import Heal, Scenario, scenario, scenario_names
from grpo_lab.config.schema import OBJECTIVES, SECTIONS, SWITCHES, Config
from grpo_lab.events import Event
from grpo_lab.messages import spoken, text

_ABSENT = object()
_OF_OBJECTIVES = {f"data.{name}": name for name in ("tasks", "rewards", "num_prompts")} | {"loss.beta": "beta"}
"""Settings of a run that an objective may set for itself, beside those of `sampling`."""


@dataclass(frozen=True)
class Suggestion:
    """A cause that a config holds, the change that stops the failure, and the change after which the model learns."""

    case: Scenario
    heal: Heal
    config: Config
    """The config of the run, healed."""

    @property
    def stop(self) -> tuple[str, ...]:
        """The first cure of the scenario: overrides that stop the failure and may leave the cause."""
        cure = self.case.cures[0] if self.case.cures else ()
        return tuple(_placed(cure, self.config, {}))


def suggest(config: Config, events: Sequence[Event] = ()) -> Suggestion | None:
    """The heal of the cause that a config holds, or None if it holds no known one.

    Of several causes, the scenario that the run is named after comes first, then those that the metrics of its events
    show, then the cause with the most settings.

    >>> from grpo_lab.config.catalog import preset
    >>> suggest(scenario("train-001").config()).heal.change
    ('loss.log_ratio=old',)
    >>> suggest(preset("stable")) is None
    True
    """
    held = [case for case in map(scenario, scenario_names()) if case.heals and holds(config, case)]
    if not held:
        return None
    findings = diagnose(from_events(events)).findings if events else ()
    shown = {name for found in findings for name in found.cause.scenarios}
    # The change of each at the places where the config holds the cause.
    changes = {case.name: tuple(_placed(case.heals[0].change, config, _of_heal(case))) for case in held}
    case = min(held, key=lambda each: (each.name != config.run.name, each.name not in shown, -len(changes[each.name])))
    change = changes[case.name]
    return Suggestion(case, replace(case.heals[0], change=change), config.with_(*change))


def _placed(overrides: Sequence[str], config: Config, ill: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield each override at every place where a config has its setting, and has it as `ill` says if that is known."""
    flat = _flat(config.to_dict())
    for override in overrides:
        path, mark, value = override.partition("=")
        places = _places(config, path)
        sick = [place for place in places if path in ill and _as_ill(flat.get(place, _ABSENT), *ill[path])]
        yield from (f"{place}{mark}{value}" for place in sick or places)


def _places(config: Config, path: str) -> list[str]:
    """The paths at which a config has a setting: those of objectives with their own, and the run's where it counts."""
    section, _, name = path.partition(".")
    if section == OBJECTIVES:
        return [path] if name.partition(".")[0] in [each.name for each in config.objectives] else []
    own = path if section == "sampling" else _OF_OBJECTIVES.get(path)
    of_each = [f"{OBJECTIVES}.{each.name}.{own}" for each in config.objectives if own]
    set_there = [place for place in of_each if place in _flat(config.to_dict())]
    return set_there if of_each and len(set_there) == len(of_each) else [*set_there, path]


def holds(config: Config, case: Scenario) -> bool:
    """Whether every setting that the scenario's first heal changes is in a config as in the scenario.

    A number counts as well if it is farther from the healed value than the scenario's. A setting that objectives have
    for themselves counts where one of them has it as in the scenario.
    """
    changes, mine = _of_heal(case), _flat(config.to_dict())
    return bool(changes) and all(
        any(_as_ill(mine.get(place, _ABSENT), *values) for place in _places(config, path))
        for path, values in changes.items()
    )


def _of_heal(case: Scenario) -> dict[str, tuple[Any, Any]]:
    """By path, the value before and after of every setting that the scenario's first heal changes."""
    ill = case.config()
    old, new = _flat(ill.to_dict()), _flat(ill.with_(*case.heals[0].change).to_dict())
    return {p: (old.get(p, _ABSENT), new.get(p, _ABSENT)) for p in old | new if old.get(p) != new.get(p)}


def _as_ill(value: Any, sick: Any, well: Any) -> bool:
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in (value, sick, well)):
        return value == sick
    return value >= sick > well or value <= sick < well


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their path; a guard or fault is on, whatever its settings."""
    flat = {f"{section}.{name}": value for section in SECTIONS for name, value in tree[section].items()}
    for one in tree.get("objectives", ()):
        own = {**one, **{f"sampling.{name}": value for name, value in one["sampling"].items()}}
        flat |= {f"objectives.{one['name']}.{name}": value for name, value in own.items() if name != "sampling"}
    return flat | {f"{kind}.{name}": True for kind in SWITCHES for name in tree[kind]}


def in_words(found: Suggestion, width: int = 80) -> str:
    """The change that stops and the change that heals, a line each, and why, in lines of `width` columns."""
    changes = {"stop": found.stop, "heal": found.heal.change}
    lines = [text(f"heal.{key}", change=", ".join(change)) for key, change in changes.items() if change]
    why = spoken(found.heal.why)
    return "\n".join([*lines, *wrapped(why, 0, text("heal.why"), width)])


def write_preset(config: Config, path: Path, title: str, why: str) -> None:
    """Write a config as a preset's file: `grpo-lab train --preset FILE` trains it."""
    texts = {"title": title, "source": "suggest", "story": why}
    lines = [f"{name} = {toml.value(text)}\n" for name, text in texts.items()]
    path.write_text("".join([*lines, "\n", toml.dumps(config, whole=False)]), encoding="utf-8")
