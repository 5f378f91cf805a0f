"""Settings of a run that lie beside its log."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOT_READ = ("faults", "guards", "run.name")
"""Sections of an own run's config that tell what was planted in it: a diagnosis is made without them."""


def beside(log: Path) -> dict[str, Any]:
    """The settings beside a log file or in its folder, flat, under the framework's own names."""
    folder = log if log.is_dir() else log.parent
    return own(folder / "config.json") if (folder / "events.jsonl").exists() else {}


def own(path: Path) -> dict[str, Any]:
    """The settings of a run of grpo_lab, without what was planted in it."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    found = flat(tree) if isinstance(tree, dict) else {}
    return {name: value for name, value in found.items() if not f"{name}.".startswith(tuple(f"{x}." for x in NOT_READ))}


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of settings as one dictionary.

    >>> flat({"lr": 1e-6, "model": {"dtype": "fp16", "args": {}}})
    {'lr': 1e-06, 'model.dtype': 'fp16'}
    """
    found = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": each for inner, each in flat(value).items()}
        else:
            found[str(name)] = value
    return found
