"""The algorithm of a log: settings beside it, and metrics, as settings of `loss` here."""

import functools
from collections.abc import Mapping
from typing import Any

from grpo_lab.analysis.logs import Log
from grpo_lab.config.algorithms import algorithm_of
from grpo_lab.paths import data_directory, read_toml

FIELDS = ("here", "trl", "verl")
"""The fields of a remedy that name its setting, in each trainer."""
FIELD_OF = {"grpo_lab": "here", "trl": "trl", "ms-swift": "trl", "verl": "verl"}
"""The field of each trainer; ms-swift builds on TRL's."""
OWN = "loss."
NAME, IDLE = "algorithm", "without_effect"
"""The keys of data/diagnosis/algorithms.toml that are no settings of `loss`."""


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
