"""docs/metrics.md: every number of a step and every link of the chain."""

from __future__ import annotations

import math

from grpo_lab.analysis.logs.names import OTHER_NAMES
from grpo_lab.metrics import LINKS, METRICS, Metric
from grpo_lab.ui.docs_pages.markdown import table

_INTRO = """# Metrics

What a step says of itself: a column each in `session.records`, a name each in `events.jsonl`. Names are TRL's where TRL
has the metric. *Healthy* is what a run of the shipped tasks keeps to; outside it a number is marked, not judged. NaN is
outside every range. *Elsewhere* are the names under which verl (`actor/…`, `critic/…`, `response_length/…`,
`training/…`, `timing_s/…`, `perf/…`), PPO trainers and older versions of TRL log it, the closest first;
`grpo-lab diagnose` reads them all.

"""
_CHAIN = """## The chain

The links of a step in order, from the sampling probabilities to the weights. For each, `grpo-lab trace` knows how
large it was, how much of it was not finite, and which element was the worst. A link is *broken* when anything in it is
not finite, and a *warning* above the magnitude given here. What breaks first is the cause; what breaks after it is
consequence. After the weights the chain begins again; `torch.multinomial`, which draws from the next step's
probabilities, is where a broken one ends.

"""


def page() -> str:
    """The page."""
    rows = [["metric", "label", "unit", "healthy", "meaning", "elsewhere"]]
    for name, metric in METRICS.items():
        elsewhere = ", ".join(f"`{other}`" for other in OTHER_NAMES.get(name, ()))
        rows.append([f"`{name}`", metric.label, metric.unit, _range(metric), metric.meaning, elsewhere])
    links = [["link", "label", "warning above"]]
    links += [[f"`{name}`", link.label, f"{link.warning:g}"] for name, link in LINKS.items()]
    return _INTRO + table(rows) + "\n" + _CHAIN + table(links)


def _range(metric: Metric) -> str:
    low, high = metric.low, metric.high
    if math.isinf(low) and math.isinf(high):
        return "any"
    if low == high:
        return f"{low:g}"
    if math.isinf(high):
        return f"{low:g} and more"
    return f"{high:g} and less" if math.isinf(low) else f"{low:g} to {high:g}"
