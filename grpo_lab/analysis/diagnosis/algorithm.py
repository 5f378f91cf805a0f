"""The algorithm of a log, told by its settings and metrics, and the remedies that act under it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpo_lab.analysis.logs import Log
from grpo_lab.config.algorithms import PART_OF, algorithm_of, unused
from grpo_lab.paths import data_directory, read_toml

if TYPE_CHECKING:
    from grpo_lab.analysis.diagnosis.causes import Remedy

FIELDS = ("here", "trl", "verl")
"""The fields of a remedy that name its setting, in each trainer."""
_FIELD_OF = {"grpo_lab": "here", "trl": "trl", "ms-swift": "trl", "verl": "verl"}
"""The field of each trainer; ms-swift builds on TRL's."""
OWN = "loss."
NAME, IDLE = "algorithm", "without_effect"
"""The keys of data/diagnosis/algorithms.toml that are no settings of `loss`."""
ELSEWHERE = {
    "delta": ("delta", "actor_rollout_ref.actor.clip_ratio_c"),
    "epsilon": ("epsilon", "actor_rollout_ref.actor.clip_ratio"),
    "kl": ("actor_rollout_ref.actor.kl_loss_type",),
}
"""The settings of other trainers that change a part of the loss."""


def field_of(source: str) -> str:
    """The field of a remedy for the trainer that wrote a log; empty if it is none of those."""
    return _FIELD_OF.get(source, "")


def formulas_in(log: Log) -> dict[str, Any]:
    """The formulas of a log's run as settings of `loss`; empty if nothing tells them.

    >>> formulas_in(Log({}, settings={"importance_sampling_level": "sequence"}))
    {'importance_sampling_level': 'sequence'}
    """
    found = {name: value for told in told_by(log).values() for name, value in told.items() if name not in (NAME, IDLE)}
    return found | {name.removeprefix(OWN): value for name, value in log.settings.items() if name.startswith(OWN)}


def algorithm_in(log: Log) -> str:
    """The algorithm of a log's run: that of its formulas, or else the trainer's own name for it; "" if unknown.

    >>> algorithm_in(Log({}, settings={"loss_type": "grpo", "importance_sampling_level": "sequence"}))
    'gspo'
    """
    formulas, named = formulas_in(log), [told[NAME] for told in told_by(log).values() if NAME in told]
    known = "surrogate" in formulas or "aggregation" in formulas
    return (algorithm_of(formulas) if known else "") or (named[-1] if named else "")


def told_by(log: Log) -> dict[str, Mapping[str, Any]]:
    """What each setting or metric of a log tells, by its name."""
    given = {**dict.fromkeys(log.metrics, True), **log.settings}
    found = {name: values.get(str(given[name]), values.get("*")) for name, values in _table().items() if name in given}
    return {name: told for name, told in found.items() if told is not None}


def settings_that_tell(log: Log) -> dict[str, Any]:
    """The settings of a log's run that tell its formulas, under the trainer's own names and under ours."""
    theirs = {name: log.settings[name] for name in told_by(log) if name in log.settings}
    return theirs | {OWN + name: value for name, value in formulas_in(log).items()}


@functools.cache
def _table() -> Mapping[str, Any]:
    return read_toml(data_directory() / "diagnosis" / "algorithms.toml")


def effective(remedies: Iterable[Remedy], log: Log) -> tuple[Remedy, ...]:
    """The remedies that can change the log's run, each with the settings that can; those without settings stay.

    What the loss of its algorithm does not use, or has already, is not advised.
    """
    beta = {"beta": 1} if log.objectives else {}  # each has its own
    parts = unused({"beta": log.settings.get("beta", 1), **formulas_in(log), **beta})
    idle = {name for told in told_by(log).values() for name in told.get(IDLE, ())}
    idle |= {name for part in parts for name in (f"loss.{part}", *ELSEWHERE.get(part, ()))}
    idle |= {f"guards.{name}" for name, part in PART_OF.items() if part in parts}
    settings = settings_that_tell(log)

    def acts(setting: str) -> bool:
        name, _, value = setting.partition("=")
        return idle.isdisjoint(re.findall(r"[\w.]+", setting)) and str(settings.get(name)) != (value.strip("'") or None)

    own = field_of(log.source)
    found = []
    for remedy in remedies:
        given = {name: text for name in FIELDS if (text := getattr(remedy, name))}
        kept = {name: ", ".join(filter(acts, text.split(", "))) for name, text in given.items()}
        asked = list(given) if not own else [own] if own in given else []
        changed = replace(remedy, **kept)
        if not asked or (any(kept[name] for name in asked) and changed.fits(log.source)):
            found.append(changed)
    return tuple(found)
