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
_SHORTER = {"clip_ratio/region_mean": "clip_ratio"}
"""Metrics with a shorter name for one objective."""
OF_THE_MACHINE = frozenset(("step_time", "run.memory", "run.memory_reserved"))
"""Metrics that tell of the machine, and differ between equal runs."""
LINKS: dict[str, Link] = rows(Link, _TABLES["links"])
"""The chain in order; torch.multinomial, its end, shows as a crash."""
OTHER_NAMES: dict[str, tuple[str, ...]] = {name: tuple(others) for name, others in _TABLES["other_names"].items()}
"""For each metric its names in verl, older versions of TRL, and PPO trainers, the closest first."""


def of_objective(name: str, objective: str) -> str:
    """The name of a metric for one objective.

    >>> of_objective("kl", "F"), of_objective("clip_ratio/region_mean", "H")
    ('kl/F', 'clip_ratio/H')
    """
    return f"{_SHORTER.get(name, name)}/{objective}"


def metric(name: str) -> Metric:
    """How a metric is shown and judged, of the run or of one objective. Raises KeyError for a name that is neither.

    >>> metric("kl/F").label
    'KL to reference, F'
    """
    if name in METRICS:
        return METRICS[name]
    longer = {short: long for long, short in _SHORTER.items()}
    base, _, objective = name.rpartition("/")
    whole = METRICS[longer.get(base, base)]
    return whole._replace(label=f"{whole.label}, {objective}")
