"""The evidence of a diagnosis: the curve of each metric, its healthy range, and the step that shows the symptom."""

import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_lab.analysis.diagnosis.findings import Evidence, Findings
from grpo_lab.analysis.diagnosis.report import headline
from grpo_lab.metrics import METRICS, metric, of_run
from grpo_lab.ui.plots import style
from grpo_lab.ui.plots.scales import SCALES, placed, scale_of, set_scale

USUAL = ("reward", "grad_norm", "kl", "entropy", "loss")
"""What is drawn beside the evidence, up to four plots."""
MOST = 6


def figure(found: Findings) -> Figure:
    """A plot for each metric that the first finding has as evidence, and beside them of the usual metrics.

    The healthy range is shaded; a line marks the step of the symptom; crosses at the edge are NaN and inf.
    """
    curves = _curves(found)
    rows = max(1, math.ceil(len(curves) / 2))
    drawn = style.new_figure(1.1 + 2.6 * rows)
    height = drawn.get_size_inches()[1]
    style.write(drawn, 0.3, headline(found), 100, fontsize=style.LARGE)
    plots = drawn.subplots(rows, 2, squeeze=False).ravel()
    drawn.subplots_adjust(left=0.06, right=0.985, top=1 - 0.95 / height, bottom=0.55 / height, hspace=0.55, wspace=0.13)
    for axes, (name, (series, shown)) in zip(plots, curves.items(), strict=False):
        _draw(axes, name, series, shown)
    for axes in plots[len(curves) :]:
        axes.remove()
    return drawn


def in_words(found: Findings) -> str:
    """The alternative text of the figure.

    >>> from grpo_lab import diagnose
    >>> in_words(diagnose([{"reward": 0.1, "grad_norm": 1.0, "loss": 0.1}] * 9)).partition("Curves")[2]
    ': reward, grad_norm, loss.'
    """
    return f"{headline(found)}. Curves: {', '.join(_curves(found)) or 'none'}."


def _curves(found: Findings) -> dict[str, tuple[pd.Series, Evidence | None]]:
    """Each curve to draw with the evidence that it gives."""
    log = found.log
    first = next((finding for finding in found.findings if finding.cause.level != "note"), None)
    known = {**{f"rewards/{name}/mean": series for name, series in log.functions.items()}, **log.metrics}
    shown = {
        each.metric: (known[each.metric], each) for each in (first.evidence if first else ()) if each.metric in known
    }
    usual = {name: (log.metrics[name], None) for name in USUAL if name in log.metrics}
    return dict(
        list({**shown, **{name: usual[name] for name in usual if name not in shown}}.items())[: max(len(shown), 4)][
            :MOST
        ]
    )


def _draw(axes: Axes, name: str, series: pd.Series, shown: Evidence | None) -> None:
    steps, values = series.index.to_numpy(), series.to_numpy(np.float64)
    usual = metric(name) if of_run(name) in METRICS else None
    scale = scale_of(of_run(name) if of_run(name) in SCALES else "kl", values)
    set_scale(axes, scale)
    heights, finite = placed(values, scale)
    if usual and (math.isfinite(usual.low) or math.isfinite(usual.high)):
        axes.axhspan(max(usual.low, scale.low), min(usual.high, scale.high), color=style.GREEN, alpha=0.12, lw=0)
    axes.plot(steps, np.where(finite, heights, np.nan), color=style.BLUE, lw=1.6, marker="o", ms=3)
    axes.plot(steps[~finite], heights[~finite], ls="none", marker="x", color=style.VERMILLION, ms=6, clip_on=False)
    if shown:
        axes.axvline(shown.step, color=style.VERMILLION, lw=1.2, ls="--")
    said = f"{name}: {shown.says}" if shown else name
    axes.set_title(textwrap.shorten(said, 88, placeholder=" …"), fontsize=style.SMALL, loc="left")
    axes.set_xlabel("step", fontsize=style.SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
