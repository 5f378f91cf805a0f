"""docs/metrics.md and docs/README.md: every metric of a step, every link of the chain, and the table of contents."""

import math

from grpo_lab.analysis.markdown import render
from grpo_lab.config.catalog import scenario_names
from grpo_lab.metrics import LINKS, METRICS, OTHER_NAMES, Metric
from grpo_lab.training.guards import GUARDS


def page() -> str:
    """The page on metrics."""
    rows = [["metric", "label", "unit", "healthy", "meaning", "elsewhere"]]
    for name, metric in METRICS.items():
        elsewhere = ", ".join(f"`{other}`" for other in OTHER_NAMES.get(name, ()))
        rows.append([f"`{name}`", metric.label, metric.unit, _range(metric), metric.meaning, elsewhere])
    links = [[f"`{name}`", link.label, f"{link.warning:g}"] for name, link in LINKS.items()]
    return render("metrics", metrics=rows, links=[["link", "label", "warning above"], *links])


def index() -> str:
    """The table of contents."""
    counts = {"metrics": METRICS, "links": LINKS, "guards": GUARDS, "scenarios": scenario_names()}
    return render("index", **{name: len(each) for name, each in counts.items()})


def _range(metric: Metric) -> str:
    low, high = metric.low, metric.high
    if math.isinf(low) and math.isinf(high):
        return "any"
    if low == high:
        return f"{low:g}"
    if math.isinf(high):
        return f"{low:g} and more"
    return f"{high:g} and less" if math.isinf(low) else f"{low:g} to {high:g}"
