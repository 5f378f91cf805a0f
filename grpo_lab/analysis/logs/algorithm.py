"""The algorithm that a log is of: settings beside it, and metrics, as settings of `loss` here."""

import functools
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.analysis.logs.rows import Log
from grpo_lab.config.algorithms import algorithm_of
from grpo_lab.paths import data_directory

OWN = "loss."
NAME = "algorithm"
"""The key of data/diagnosis/algorithms.toml for the name that a trainer gives its algorithm."""


def formulas_in(log: Log) -> dict[str, Any]:
    """The formulas of a log's run as settings of `loss`; empty if nothing tells them.

    >>> formulas_in(Log({}, settings={"importance_sampling_level": "sequence"}))
    {'importance_sampling_level': 'sequence'}
    """
    found = {name: value for told in _told(log).values() for name, value in told.items() if name != NAME}
    return found | {name.removeprefix(OWN): value for name, value in log.settings.items() if name.startswith(OWN)}


def algorithm_in(log: Log) -> str:
    """The algorithm of a log's run: that of its formulas, or else the trainer's own name for it; "" if unknown.

    >>> algorithm_in(Log({}, settings={"loss_type": "grpo", "importance_sampling_level": "sequence"}))
    'gspo'
    """
    formulas, named = formulas_in(log), [told[NAME] for told in _told(log).values() if NAME in told]
    known = "surrogate" in formulas or "aggregation" in formulas
    return (algorithm_of(formulas) if known else "") or (named[-1] if named else "")


def algorithm_in_words(log: Log) -> str:
    """The algorithm and the settings that tell it, as "gspo (loss_type=grpo, importance_sampling_level=sequence)"."""
    said = ", ".join(f"{name}={value}" for name, value in settings_that_tell(log).items() if not name.startswith(OWN))
    return algorithm_in(log) + (f" ({said})" if said and algorithm_in(log) else "")


def settings_that_tell(log: Log) -> dict[str, Any]:
    """The settings of a log's run that tell its formulas, under the trainer's own names and under ours."""
    theirs = {name: log.settings[name] for name in _told(log) if name in log.settings}
    return theirs | {OWN + name: value for name, value in formulas_in(log).items()}


def _told(log: Log) -> dict[str, Mapping[str, Any]]:
    """What each setting or metric of a log tells."""
    return {name: told for name, values in _table().items() for told in _of_value(log, name, values)}


def _of_value(log: Log, name: str, values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    given = log.settings.get(name, name in log.metrics or None)
    if given is not None and (told := values.get(str(given), values.get("*"))) is not None:
        yield told


@functools.cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads((data_directory() / "diagnosis" / "algorithms.toml").read_text(encoding="utf-8"))
