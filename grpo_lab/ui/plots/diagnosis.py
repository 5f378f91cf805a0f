"""The evidence of a diagnosis: the curve of each metric, its healthy range, and the step that shows the symptom."""

import math
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_lab.analysis.diagnosis.report import Diagnosis, Words
from grpo_lab.analysis.diagnosis.rules import LEVELS, Evidence
from grpo_lab.messages import ENGLISH
from grpo_lab.metrics import METRICS, metric, of_run
from grpo_lab.ui.plots import style
from grpo_lab.ui.plots.curves import SCALES, placed, scale_of, set_scale

USUAL = ("reward", "grad_norm", "kl", "entropy", "loss")
"""What is drawn beside the evidence, up to four plots."""
MOST = 6


def figure(*runs: Diagnosis, names: Sequence[str] = ()) -> Figure:
    """A plot for each metric that the first finding has as evidence, and beside them of the usual metrics.

    The healthy range is shaded; a line marks the step of the symptom; crosses at the edge are NaN and inf. Two runs
    share the plots, which then show the evidence of the first one with a failure, and get a legend of their names.
    """
    curves = _curves(runs)
    rows = max(1, math.ceil(len(curves) / 2))
    head = 0.3 * len(runs) + 0.35 * bool(names)
    drawn = style.new_figure(0.8 + head + 2.6 * rows)
    height = drawn.get_size_inches()[1]
    for number, line in enumerate(_titles(runs, names)):
        style.write(drawn, 0.3 * (number + 1), line, 100, fontsize=style.LARGE)
    if names:
        named = [f"{letter} is {name}" for letter, name in zip("AB", names, strict=True)]
        style.name_runs(drawn, named, 0.01, 0.3 * len(runs) + 0.15, len(named))
    plots = drawn.subplots(rows, 2, squeeze=False).ravel()
    top = 1 - (head + 0.65) / height
    drawn.subplots_adjust(left=0.06, right=0.985, top=top, bottom=0.55 / height, hspace=0.55, wspace=0.13)
    for axes, (name, shown) in zip(plots, curves.items(), strict=False):
        _draw(axes, name, [_known(found)[name] for found in runs if name in _known(found)], shown)
    for axes in plots[len(curves) :]:
        axes.remove()
    return drawn


def _titles(runs: Sequence[Diagnosis], names: Sequence[str]) -> list[str]:
    return [f"{letter}: {run.headline()}" if names else run.headline() for letter, run in zip("AB", runs, strict=False)]


def _known(found: Diagnosis) -> dict[str, pd.Series]:
    return {**{f"rewards/{name}/mean": series for name, series in found.log.functions.items()}, **found.log.metrics}


def _curves(runs: Sequence[Diagnosis]) -> dict[str, Evidence | None]:
    told = [finding for found in runs for finding in found.named]
    told.sort(key=lambda finding: LEVELS.index(finding.cause.level))
    known = {name for found in runs for name in _known(found)}
    shown = {each.metric: each for each in (told[0].evidence if told else ()) if each.metric in known}
    usual = {name: None for name in USUAL if name in known and name not in shown}
    return dict(list({**shown, **usual}.items())[: max(len(shown), 4)][:MOST])


def _draw(axes: Axes, name: str, each: Sequence[pd.Series], shown: Evidence | None) -> None:
    usual = metric(name) if of_run(name) in METRICS else None
    values = np.concatenate([series.to_numpy(np.float64) for series in each])
    scale = scale_of(of_run(name) if of_run(name) in SCALES else "kl", values)
    set_scale(axes, scale)
    if usual and (math.isfinite(usual.low) or math.isfinite(usual.high)):
        axes.axhspan(max(usual.low, scale.low), min(usual.high, scale.high), color=style.GREEN, alpha=0.12, lw=0)
    for series, look in zip(each, style.RUNS, strict=False):
        steps = series.index.to_numpy()
        heights, finite = placed(series.to_numpy(np.float64), scale)
        line = {"color": look.colour, "ls": look.line, "marker": look.marker}
        axes.plot(steps, np.where(finite, heights, np.nan), lw=1.6, ms=3, **line)
        axes.plot(steps[~finite], heights[~finite], ls="none", marker="x", color=style.VERMILLION, ms=6, clip_on=False)
    if shown:
        axes.axvline(shown.step, color=style.VERMILLION, lw=1.2, ls="--")
    said = f"{name}: {Words(ENGLISH).symptom(shown)}" if shown else name
    axes.set_title(textwrap.shorten(said, 88, placeholder=" …"), fontsize=style.SMALL, loc="left")
    axes.set_xlabel("step", fontsize=style.SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
