"""The overrides that lead from one config to another."""

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.config.fields import NONE
from grpo_lab.config.schema import Config


def live_changes(old: Config, new: Config) -> tuple[str, ...]:
    """The overrides by which `Config.changed_live` makes the loss, optimizer, sampling and guards of `new` from `old`.

    >>> live_changes(Config(), Config().with_("loss.beta=0.1", "guards.clip_gradients.max_norm=0.3"))
    ('loss.beta=0.1', 'guards.clip_gradients=on', 'guards.clip_gradients.max_norm=0.3')
    """
    mine, wanted = old.to_dict(), new.to_dict()
    sections = [line for name in ("sampling", "loss", "optimizer") for line in _settings(name, mine, wanted)]
    gone = [f"guards.{name}=off" for name in mine["guards"] if wanted["guards"].get(name) != mine["guards"][name]]
    added = [name for name in wanted["guards"] if mine["guards"].get(name) != wanted["guards"][name]]
    switched = [f"guards.{name}=on" for name in added]
    tables = [line for name in added for line in _settings(name, {name: {}}, wanted["guards"], "guards.")]
    return (*sections, *gone, *switched, *tables)


def _settings(name: str, old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The settings of a table that differ, as overrides."""
    for key, value in new[name].items():
        if key not in old[name] or old[name][key] != value:
            yield f"{above}{name}.{key}={NONE if value is None else value}"
