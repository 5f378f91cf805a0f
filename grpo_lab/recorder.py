"""The chain recorder: for every link of a step, how large it was and how much of it was not finite.

Notes stay on the device until `flush`, which moves them in one transfer, so that watching costs one synchronisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_lab.events import LinkNote

LOCATE_LIMIT = 2**14
"""Elements up to which the worst one is located too; beyond, finding it costs more than it tells."""


LARGEST = {"grad_norm", "ratio/max", "log_ratio/max", "sampling/sampling_logp_difference/max"}
"""Metrics of which a step keeps the largest; of the others the mean over its updates."""


class _Pending(NamedTuple):
    link: str
    update: int
    note: str
    shape: tuple[int, ...]
    statistics: Tensor
    names: Sequence[str]
    tensors: Sequence[Tensor]
    facts: dict[str, float]


class Recorder:
    """Collects notes of one step in the order in which its values came to be."""

    def __init__(self) -> None:
        self._pending: list[_Pending] = []
        self._metrics: list[tuple[str, int, Tensor]] = []

    def metric(self, name: str, value: Tensor, update: int = 0) -> None:
        """Note one number (0-dim). Micro-batches of one update add up; see LARGEST for several updates."""
        self._metrics.append((name, update, value.detach()))

    def tensor(self, link: str, value: Tensor, update: int = 0, note: str = "") -> None:
        """Note a tensor of values: largest magnitude, elements that are not finite, and where the worst one is."""
        flat = value.detach().flatten()
        if not flat.numel():
            return
        sizes = flat.abs()
        statistics = [sizes.amax(), (~flat.isfinite()).sum()]
        if flat.numel() <= LOCATE_LIMIT:
            statistics.append(sizes.argmax())
        stacked = torch.stack([number.double() for number in statistics])
        self._pending.append(_Pending(link, update, note, tuple(value.shape), stacked, (), (), {}))

    def parameters(
        self,
        link: str,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        update: int = 0,
        facts: dict[str, float] | None = None,
    ) -> Tensor:
        """Note a tensor per parameter by their 2-norms (fp32), and return those norms.

        Elements that are not finite are counted at `flush`, and only where a norm is not finite.
        """
        detached = [tensor.detach() for tensor in tensors]
        norms = torch.stack(torch._foreach_norm(detached, 2, dtype=torch.float32))
        self._pending.append(_Pending(link, update, "", (), norms, names, tensors, facts or {}))
        return norms

    def count_now(self) -> None:
        """Count the last parameters' broken elements before somebody changes them in place."""
        last = self._pending.pop()
        self._pending.append(last._replace(facts={**last.facts, "nonfinite": float(count_nonfinite(last.tensors))}))

    def flush(self) -> tuple[tuple[LinkNote, ...], dict[str, float]]:
        """All notes and metrics since the last flush, moved to the host at once.

        Notes of one link, update and pass are merged.
        """
        pending, self._pending = self._pending, []
        metrics, self._metrics = self._metrics, []
        tensors = [p.statistics.double() for p in pending] + [value.double()[None] for _, _, value in metrics]
        if not tensors:
            return (), {}
        numbers = torch.cat(tensors).cpu().split([len(tensor) for tensor in tensors])
        merged: dict[tuple[str, int, str], LinkNote] = {}
        for note, values in zip(pending, numbers[: len(pending)], strict=True):
            read = _parameters_note(note, values) if note.names else _tensor_note(note, values.tolist())
            key = (note.link, note.update, note.note)
            merged[key] = _worse(merged[key], read) if key in merged else read
        values = [float(value) for value in numbers[len(pending) :]]
        return tuple(merged.values()), _reduce([(name, u, v) for (name, u, _), v in zip(metrics, values, strict=True)])


def _reduce(metrics: list[tuple[str, int, float]]) -> dict[str, float]:
    """One number a name: see Recorder.metric. NaN wins over any number."""
    by_update: dict[str, dict[int, list[float]]] = {}
    for name, update, value in metrics:
        by_update.setdefault(name, {}).setdefault(update, []).append(value)
    reduced = {}
    for name, updates in by_update.items():
        if name in LARGEST:
            values = [value for row in updates.values() for value in row]
            reduced[name] = math.nan if any(map(math.isnan, values)) else max(values)
        else:
            reduced[name] = sum(sum(row) for row in updates.values()) / len(updates)
    return reduced


def count_nonfinite(tensors: Sequence[Tensor]) -> int:
    """Elements that are NaN or inf, counted with one transfer."""
    return int(torch.stack([(~tensor.isfinite()).sum() for tensor in tensors]).sum())


def _tensor_note(note: _Pending, values: list[float]) -> LinkNote:
    magnitude, nonfinite, *worst = values
    where = note.note
    if worst:
        index = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(int(worst[0])), note.shape))
        where = f"{where} [{index}]".strip()
    numel = torch.Size(note.shape).numel()
    return LinkNote(note.link, note.update, magnitude, nonfinite, numel, where, note.facts)


def _parameters_note(note: _Pending, norms: Tensor) -> LinkNote:
    facts = dict(note.facts)
    broken = [i for i, finite in enumerate(norms.isfinite().tolist()) if not finite]
    first = broken[0] if broken else int(norms.argmax())
    nonfinite = facts.pop("nonfinite", None)
    if nonfinite is None:
        nonfinite = float(count_nonfinite([note.tensors[i] for i in broken])) if broken else 0.0
    numel = sum(tensor.numel() for tensor in note.tensors)
    return LinkNote(note.link, note.update, float(norms.norm()), nonfinite, numel, note.names[first], facts)


def _worse(old: LinkNote, new: LinkNote) -> LinkNote:
    """Two notes of one link as one: sizes add up, the worse one says where."""
    worse = new if not old.broken and not (new.magnitude <= old.magnitude) else old
    return LinkNote(
        old.link,
        old.update,
        worse.magnitude,
        old.nonfinite + new.nonfinite,
        old.numel + new.numel,
        worse.where,
        worse.facts,
    )
