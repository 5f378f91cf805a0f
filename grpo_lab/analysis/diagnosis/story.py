"""What happened to a run, in one sentence from its curves alone: the course of the reward, and what moved with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_lab import messages
from grpo_lab.analysis.diagnosis.curves import trend
from grpo_lab.analysis.logs import Log
from grpo_lab.metrics import METRICS

Curve = NDArray[np.float64]
SURE = 3.5
"""Standard errors by which two levels of a curve must differ: they are picked among many."""
TREND = 2.5
"""Standard errors of its slope from which on a curve rises or falls, whatever its levels."""
NAMED = 3
"""Curves that are named together; of more the number is told."""
HIGH = 0.85
"""A mean reward of at most 1 that begins here is solved from the start."""
COMPANIONS = {
    "entropy": ("entropy_up", "entropy_down", 0.5),
    "kl": ("kl_up", "kl_down", 1.0),
    "completions/mean_length": ("length_up", "length_down", 0.35),
}
"""The curves told beside the reward: messages for up and down, and the least relative change."""


class Part(NamedTuple):
    """A part of the sentence: a message diagnosis.story.<key> of data/locale with its values."""

    key: str
    values: dict[str, Any] = {}  # noqa: RUF012  (never changed)

    def said(self, language: str) -> str:
        values = {name: number(value) if isinstance(value, float) else value for name, value in self.values.items()}
        return messages.text_in(language, f"diagnosis.story.{self.key}", **values)


def number(value: float) -> str:
    """A number as a sentence has it.

    >>> number(17098.2), number(0.06361), number(1e-9)
    ('17,098', '0.064', '0')
    """
    if abs(value) < 5e-4:
        return "0"
    if 100 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.3g}"


@dataclass(frozen=True)
class Course:
    """The course of one curve: its levels at both ends, the highest in between, and where it was left."""

    first: float
    last: float
    top: float
    top_step: int
    left: int
    """The first step that is clearly below the highest level."""
    dip: float
    """The lowest level between two higher ones; NaN without such a dip."""
    dip_step: int
    sure: float
    """The least difference of two levels that is none of the curve's noise."""
    trend: float
    """The slope of a straight line, in its standard errors."""

    @property
    def kind(self) -> str:
        """`fell` (by half of its gain, or below its start), `dipped` (and came back), `rose`, `declined` or `flat`."""
        lost, gained = self.top - self.last, self.top - self.first
        large = lost > max(self.sure, 0.1 * abs(self.top))
        if large and (gained <= self.sure or lost > 0.5 * gained):
            return "fell"
        if not math.isnan(self.dip):
            return "dipped"
        if abs(self.last - self.first) <= self.sure and abs(self.trend) <= TREND:
            return "flat"
        return "rose" if self.last > self.first else "declined"


def course(curve: pd.Series) -> Course | None:
    """The course of a curve from its finite values; None for less than six of them."""
    curve = curve.loc[np.isfinite(curve.to_numpy(np.float64))]
    values, steps = curve.to_numpy(np.float64), curve.index.to_numpy()
    if len(values) < 6:
        return None
    width = min(20, max(3, len(values) // 10))
    level = np.convolve(values, np.ones(width) / width, "valid")
    sure = max(SURE * _noise(values) * math.sqrt(2 / width), 0.02 * float(np.abs(level).max()))
    top = int(np.argmax(level))
    lost = level[top] - level[-1]
    still_high = np.flatnonzero(level[top:] >= level[top] - 0.2 * lost)[-1] + top if lost > 0 else len(level) - 1
    left = min(len(values) - 1, int(still_high) + math.ceil(0.8 * width))
    depth = np.minimum(np.maximum.accumulate(level), np.maximum.accumulate(level[::-1])[::-1]) - level
    low = int(np.argmax(depth))
    dipped = depth[low] > max(1.5 * sure, 0.4 * abs(float(level[low] + depth[low])))
    return Course(
        float(level[0]),
        float(level[-1]),
        float(level[top]),
        int(steps[min(top + width // 2, len(steps) - 1)]),
        int(steps[left]),
        float(level[low]) if dipped else math.nan,
        int(steps[low + width // 2]),
        sure,
        trend(values),
    )


def _noise(values: Curve) -> float:
    """The standard deviation of a curve about straight lines through neighbours: a steep course is no noise."""
    bends = values[:-2] - 2 * values[1:-1] + values[2:]
    return float(np.mean(np.abs(bends))) * math.sqrt(math.pi / 12)


def story(log: Log, language: str) -> str:
    """What happened to the run of a log, in one sentence.

    >>> falls = pd.Series([0.8] * 10 + [0.0] * 10, index=range(1, 21))
    >>> story(Log({"reward": falls, "entropy": 3 - 3 * falls}), "en")
    'Reward 0.8 → 0 from step 11: entropy rose 0.6 → 3; it did not recover.'
    """
    main, since = _of_reward(log)
    told = [part.said(language) for part in _companions(log, since)]
    end = [part.said(language) for part in _end(log, main)]
    joined = messages.text_in(language, "diagnosis.comma").join(told)
    said = main.said(language)
    if told:
        said = messages.text_in(language, "diagnosis.story.with", said=said, told=joined)
    return "".join([said, *end]) + messages.text_in(language, "diagnosis.stop")


def _of_reward(log: Log) -> tuple[Part, int | None]:
    """The course of the reward, and the step from which on it fell; None if it did not."""
    curve = log.metrics.get("reward")
    if curve is None or not len(curve):
        return Part("no_reward" if log.metrics else "no_metric"), None
    values = curve.to_numpy(np.float64)
    if not np.isfinite(values).any():
        return Part("reward_nan"), None
    found = course(curve)
    if found is None:
        known = values[np.isfinite(values)]
        ends = {"count": len(known), "first": float(known[0]), "last": float(known[-1])}
        return Part("few" if len(known) > 1 else "one_row", ends), None
    ends = {"first": found.first, "last": found.last}
    if np.ptp(values[np.isfinite(values)]) == 0:
        return Part("same", {"level": found.first}), None
    if found.kind == "fell":
        rose = found.top - found.first > found.sure
        values_of_fall = {"begin": found.first, "top": found.top, "peak": found.top_step, "last": found.last}
        return Part("rose_and_fell" if rose else "fell", {**values_of_fall, "step": found.left}), found.left
    if found.kind == "dipped":
        return Part("dipped", {**ends, "low": found.dip, "step": found.dip_step}), None
    if found.first >= HIGH and float(np.nanmax(values)) <= 1 + 1e-6:
        return Part("solved", ends), None
    return Part(found.kind, ends), None


def _companions(log: Log, since: int | None) -> Iterator[Part]:
    """What moved with the reward: before and after its fall, or from the first steps to the last."""
    for name, (up, down, least) in COMPANIONS.items():
        if (ends := _ends(log, name, since)) is None:
            continue
        first, last, sure = ends
        if abs(last - first) > max(sure, least * abs(first), 0.05 if name == "kl" else 0.02):
            yield Part(up if last > first else down, {"first": first, "last": last})
    if cut := _ends(log, "completions/clipped_ratio", since):
        first, last, _ = cut
        if last >= 0.5:
            yield Part("cut_throughout" if first >= 0.5 else "into_the_limit", {"share": f"{last:.0%}"})
    if ends := _ends(log, "eval/reward", None):
        first, last, sure = ends
        if abs(last - first) > sure:
            yield Part("held_out_up" if last > first else "held_out_down", {"first": first, "last": last})
    norm = log.metrics.get("grad_norm")
    if norm is not None and np.isfinite(norm).any():
        finite = norm.loc[np.isfinite(norm.to_numpy(np.float64))]
        if finite.max() > max(50 * finite.median(), METRICS["grad_norm"].high):
            yield Part("norm_peak", {"peak": float(finite.max()), "step": int(finite.idxmax())})
    yield from _not_finite(log)


def _ends(log: Log, name: str, since: int | None) -> tuple[float, float, float] | None:
    """The levels of a curve before a step and at the end, or at both ends, and the least sure difference."""
    curve = log.metrics.get(name)
    found = course(curve) if curve is not None else None
    if found is None or curve is None:
        return None
    before = curve.loc[(curve.index < since) & np.isfinite(curve.to_numpy(np.float64))] if since is not None else curve
    first = float(before.iloc[-5:].median()) if since is not None and len(before) else found.first
    return first, found.last, found.sure


def _not_finite(log: Log) -> Iterator[Part]:
    """The curves that are not finite to the end, by the step from which on they are not; 0 rows before it: in none."""
    found: dict[tuple[str, int], list[str]] = {}
    for name in (name for name in METRICS if name in log.metrics and name != "reward"):
        curve = log.metrics[name]
        broken = ~np.isfinite(curve.to_numpy(np.float64))
        if len(broken) and broken[-1]:
            place = int(np.flatnonzero(~broken)[-1]) + 1 if not broken.all() else 0
            found.setdefault(("nan_from" if place else "nan_always", int(curve.index[place])), []).append(name)
    for (key, step), names in sorted(found.items(), key=lambda item: item[0][1]):
        more = f" + {len(names) - NAMED}" if len(names) > NAMED else ""
        yield Part(key, {"metric": ", ".join(names[:NAMED]) + more, "step": step})


def _end(log: Log, main: Part) -> Iterator[Part]:
    """Whether the run recovered, and how it ended."""
    if main.key in ("fell", "rose_and_fell"):
        rows = int((log.metrics["reward"].index >= main.values["step"]).sum())
        yield Part("not_recovered" if rows >= 3 else "at_the_end")
    if log.begins_late:
        counted = int(log.steps[0]) <= 1  # the rows have no step, and something else tells that others were before
        yield Part("beginning_missing") if counted else Part("begins_late", {"step": int(log.steps[0])})
    if log.crash:
        yield Part("crashed", {"crash": log.crash})
