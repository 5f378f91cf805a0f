"""The metrics of a step and the links of the chain, from data/metrics.toml: label, unit, healthy range and meaning."""

from typing import NamedTuple

from grpo_lab.paths import data_tables, rows


class Metric(NamedTuple):
    """How one number of a step is shown and judged."""

    label: str
    unit: str
    low: float
    high: float
    meaning: str


class Link(NamedTuple):
    """How one link is shown: its label, and the magnitude above which it is a warning."""

    label: str
    warning: float


_TABLES = data_tables("metrics")
METRICS: dict[str, Metric] = rows(Metric, _TABLES["metrics"])
OF_THE_MACHINE = frozenset(("step_time", "run.memory", "run.memory_reserved", "judge/time"))
"""Metrics that tell of the machine, and differ between equal runs."""
LINKS: dict[str, Link] = rows(Link, _TABLES["links"])
"""The chain in order; torch.multinomial, its end, shows as a crash."""
OTHER_NAMES: dict[str, tuple[str, ...]] = {name: tuple(others) for name, others in _TABLES["other_names"].items()}
"""For each metric its names in verl, older versions of TRL, and PPO trainers, the closest first."""
