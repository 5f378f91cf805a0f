"""The check of several objectives: whether the optimizer gets their gradients combined as the trainer says."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_lab.analysis.verification import oracle
from grpo_lab.analysis.verification.cycles import Cycle
from grpo_lab.analysis.verification.runs import NotChecked, Runs


def combination(runs: Runs) -> tuple[bool, str, str]:
    """The gradient of each cycle's first update against the combination of the objectives' own."""
    way = runs.optional("combination")
    if way not in oracle.COMBINATIONS:
        known = ", ".join(oracle.COMBINATIONS)
        raise NotChecked(f"`{way}` is none of {known}, which combine gradients; the combination is not verified")
    for name in runs.objectives:
        for needed in ("weights", "advantages"):
            runs.tables(runs.turn, needed, name)
    limit = 0.2 if runs.half else 1e-3
    found = [_compared(runs, c, way) for c in runs.cycles if c.number <= runs.turns or c.optimizer_steps]
    if way == "pcgrad" and max(opposed for *_, opposed in found) <= limit:
        raise NotChecked(f"no gradients oppose each other in {len(found)} cycles, where `pcgrad` is the sum")
    apart, said, _ = max(found, key=lambda each: (not each[0] <= limit, each[0]))  # NaN is too far
    return apart <= limit, f"{apart:.2%} away from `{way}` in {said}", f"<= {limit:.1%}"


def _compared(runs: Runs, cycle: Cycle, way: str) -> tuple[float, str, float]:
    """The distance of a cycle's gradient from what it should be, the count of each objective's, and that of their sum.

    With `alternate`, more than one objective in a cycle are infinitely far.
    """
    total, tables = runs.gradient(cycle), [rows for _, rows in runs.tables([cycle], "weights")]
    kl = runs.optional("kl") if any(rows.get("beta") for rows in tables) else None
    own = torch.stack([oracle.gradient(cycle.model, list(cycle.gradients), rows, kl) for rows in tables])
    wanted = oracle.COMBINATIONS[way](own)
    apart = float("inf") if way == "alternate" and len(tables) > 1 else _distance(total, wanted)
    factors = zip(tables, oracle.counts(own, total).tolist(), strict=True)
    said = ", ".join(f"{rows['objective']} {factor:.2f}" for rows, factor in factors)
    return apart, f"cycle {cycle.number}, where gradients count {said}", _distance(oracle.added(own), wanted)


def _distance(found: Tensor, wanted: Tensor) -> float:
    """The share of a gradient (n,) that the wanted one does not explain, up to a factor, which clipping changes."""
    factor = (found @ wanted / (wanted @ wanted).clamp(min=1e-30)).clamp(min=0)
    return float((found - factor * wanted).norm() / found.norm().clamp(min=1e-30))
