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
    """How one link is shown: its label, the magnitude above which it is a warning, and what computes it."""

    label: str
    warning: float
    operator: str


_TABLES = data_tables("metrics")
METRICS: dict[str, Metric] = rows(Metric, _TABLES["metrics"])
_SHORTER = {"clip_ratio/region_mean": "clip_ratio"}
"""Metrics with a shorter name for one objective."""
OF_THE_MACHINE = frozenset(("step_time", "run.memory", "run.memory_reserved", "judge/time"))
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
    found = METRICS[of_run(name)]
    return found if name in METRICS else found._replace(label=f"{found.label}, {name.rpartition('/')[2]}")


def of_run(name: str) -> str:
    """The name of the run's metric that a metric of one objective belongs to; the name itself if it is the run's.

    >>> of_run("clip_ratio/H"), of_run("kl/exact")
    ('clip_ratio/region_mean', 'kl/exact')
    """
    base, longer = name.rpartition("/")[0], {short: long for long, short in _SHORTER.items()}
    return name if name in METRICS else longer.get(base, base)
