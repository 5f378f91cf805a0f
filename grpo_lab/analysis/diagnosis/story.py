"""What happened to a run, in one sentence from its curves alone: the course of the reward, and what moved with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from grpo_lab import messages
from grpo_lab.analysis.diagnosis.curves import course
from grpo_lab.analysis.logs import Log
from grpo_lab.metrics import METRICS

NAMED = 3
"""Curves that are named together; of more the number is told."""
HIGH = 0.85
"""A mean reward of at most 1 that begins here is solved from the start."""
NO_SPREAD, HUGE = 0.999, 1e4
"""The share of groups without spread, and the gradient norm, that are told where every row has more."""
LEAST_HELD_OUT = 0.15
"""The relative change of a held-out reward that is told."""
COMPANIONS = {
    "entropy": ("entropy_up", "entropy_down", 0.5),
    "kl": ("kl_up", "kl_down", 1.0),
    "completions/mean_length": ("length_up", "length_down", 0.35),
}
"""The curves told beside the reward: messages for up and down, and the least relative change."""


class Part(NamedTuple):
    """A part of the sentence: a message diagnosis.story.<key> of data/locale with its values."""

    key: str
    values: Mapping[str, Any] = MappingProxyType({})

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


def story(log: Log, language: str) -> str:
    """What happened to the run of a log, in one sentence.

    >>> falls = pd.Series([0.8] * 10 + [0.0] * 10, index=range(1, 21))
    >>> story(Log({"reward": falls, "entropy": 3 - 3 * falls}), "en")
    'Reward 0.8 → 0 from step 11: entropy rose 0.6 → 3; it did not recover.'
    """
    main, since = _of_reward(log)
    told = [part.said(language) for part in _companions(log, main, since)]
    end = [part.said(language) for part in _end(log, main)]
    said = main.said(language)
    if told:
        joined = messages.text_in(language, "diagnosis.comma").join(told)
        said = messages.text_in(language, "diagnosis.story.with", said=said, told=joined)
    return "".join([said, *end]) + messages.text_in(language, "diagnosis.stop")


def _of_reward(log: Log) -> tuple[Part, int | None]:
    """The course of the reward, and the step from which on it fell; None if it did not."""
    if "reward" not in log.metrics:
        return Part("no_reward" if log.metrics else "no_metric"), None
    curve = _finite(log, "reward")
    values, steps = curve.to_numpy(np.float64), curve.index.to_numpy(np.int64).tolist()
    if not len(values):
        return Part("reward_nan"), None
    found = course(values)
    if found is None:
        ends = {"count": len(values), "first": float(values[0]), "last": float(values[-1])}
        return Part("few" if len(values) > 1 else "one_row", ends), None
    ends = {"first": found.first, "last": found.last}
    if np.ptp(values) == 0:
        return Part("same", {"level": found.first}), None
    if found.kind == "fell":
        rose = found.top - found.first > found.sure
        told = {"begin": found.first, "top": found.top, "peak": steps[found.peak], "last": found.last}
        return Part("rose_and_fell" if rose else "fell", told | {"step": steps[found.left]}), steps[found.left]
    if found.kind == "dipped":
        return Part("dipped", {**ends, "low": found.dip, "step": steps[found.dip_place]}), None
    if found.first >= HIGH and float(values.max()) <= 1 + 1e-6:
        return Part("solved", ends), None
    return Part(found.kind, ends), None


def _companions(log: Log, main: Part, since: int | None) -> Iterator[Part]:
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
    yield from _held_out(log)
    zero = _finite(log, "frac_reward_zero_std")
    if len(zero) > 1 and zero.min() > NO_SPREAD and main.key != "same":
        yield Part("no_spread")
    norm = _finite(log, "grad_norm")
    if len(norm) and norm.min() > HUGE:
        yield Part("norm_huge", {"level": float(norm.median())})
    if len(norm) and norm.max() > max(50 * norm.median(), METRICS["grad_norm"].high):
        yield Part("norm_peak", {"peak": float(norm.max()), "step": int(norm.index[norm.argmax()])})
    yield from _not_finite(log)


def _held_out(log: Log) -> Iterator[Part]:
    """The held-out reward, which few rows have: from its best value down if half the gain is lost, or up."""
    values = _finite(log, "eval/reward").to_numpy(np.float64)
    if len(values) < 2:
        return
    first, best, last = float(values[0]), float(values.max()), float(values[-1])
    if best - last > max(LEAST_HELD_OUT * abs(best), 0.5 * (best - first), 0.01):
        yield Part("held_out_down", {"first": best, "last": last})
    elif last - first > max(LEAST_HELD_OUT * abs(first), 0.01):
        yield Part("held_out_up", {"first": first, "last": last})


def _finite(log: Log, name: str) -> pd.Series:
    curve = log.metrics.get(name, pd.Series(dtype=np.float64))
    return curve.loc[np.isfinite(curve.to_numpy(np.float64))]


def _ends(log: Log, name: str, since: int | None) -> tuple[float, float, float] | None:
    """The levels of a curve before a step and at the end, or at both ends, and the least sure difference."""
    curve = _finite(log, name)
    found = course(curve.to_numpy(np.float64))
    if found is None:
        return None
    before = curve.loc[curve.index < since] if since is not None else curve.iloc[:0]
    first = float(before.iloc[-5:].median()) if len(before) else found.first
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
