"""The chain recorder: for every link of a step, its magnitude and how many elements are not finite.

Notes stay on the device until `flush`, which moves them in one transfer, so that recording costs one synchronisation.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_lab.errors import ModelError
from grpo_lab.events import LinkNote

LOCATE_LIMIT = 2**14
"""Largest number of elements of a tensor whose worst element is located; in larger ones the search is too slow."""


LARGEST = {"grad_norm", "ratio/max", "log_ratio/max", "sampling/sampling_logp_difference/max"}
"""Metrics of which a step keeps the largest value; of the others it keeps the mean over its updates."""


class _Pending(NamedTuple):
    link: str
    update: int
    note: str
    shape: tuple[int, ...]
    statistics: Tensor
    names: Sequence[str]
    tensors: Sequence[Tensor]
    numel: int
    facts: dict[str, float]
    nonfinite: float | None = None


class Recorder:
    """Collects the notes and metrics of one step, in order of time."""

    def __init__(self) -> None:
        self._pending: list[_Pending] = []
        self._metrics: list[tuple[str, int, Tensor]] = []

    def metric(self, name: str, value: Tensor, update: int = 0) -> None:
        """Note one number, a tensor (). Micro-batches of one update add up; see LARGEST for several updates."""
        self._metrics.append((name, update, value.detach()))

    def metrics(self, values: Mapping[str, Tensor], update: int = 0) -> None:
        """Note each of these tensors () as `metric` does."""
        for name, value in values.items():
            self.metric(name, value, update)

    def tensor(self, link: str, value: Tensor, update: int = 0, note: str = "") -> None:
        """Note a tensor of any shape: largest magnitude, number of elements not finite, and place of the worst one."""
        flat = value.detach().flatten()
        if not flat.numel():
            return
        sizes = flat.abs()
        statistics = [sizes.amax(), (~flat.isfinite()).sum()]
        if flat.numel() <= LOCATE_LIMIT:
            statistics.append(sizes.argmax())
        stacked = torch.stack([number.double() for number in statistics])
        self._pending.append(_Pending(link, update, note, tuple(value.shape), stacked, (), (), flat.numel(), {}))

    def note(self, link: str, noted: Tensor, numel: int, update: int, note: str) -> None:
        """Note the `magnitude` (2,) of `numel` elements; several notes of one link, update and pass are merged."""
        self._pending.append(_Pending(link, update, note, (), noted, (), (), numel, {}))

    def parameters(
        self,
        link: str,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        update: int = 0,
        facts: dict[str, float] | None = None,
    ) -> Tensor:
        """Note a tensor per parameter by their 2-norms, and return those norms (tensors,) in fp32.

        Elements that are not finite are counted at `flush`, and only where a norm is not finite.
        Raises ModelError where there is no tensor.
        """
        if not tensors:
            raise ModelError(f"nothing to note for {link}: no parameter has a gradient; is the whole model frozen?")
        detached = [tensor.detach() for tensor in tensors]
        numel = sum(tensor.numel() for tensor in detached)
        norms = torch.stack(torch._foreach_norm(detached, 2, dtype=torch.float32))  # type: ignore[attr-defined]
        self._pending.append(_Pending(link, update, "", (), norms, names, tensors, numel, facts or {}))
        return norms

    def count_now(self) -> None:
        """Count the broken elements of the last parameters before a guard changes them in place, and release these."""
        last = self._pending[-1]
        self._pending[-1] = last._replace(nonfinite=_count_broken(last, last.statistics), tensors=())

    def flush(self) -> tuple[tuple[LinkNote, ...], dict[str, float]]:
        """The notes and metrics since the last flush, moved to the host at once.

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


def magnitude(value: Tensor) -> Tensor:
    """(2,) double: the largest magnitude, and the number of elements that are not finite."""
    return torch.stack([value.abs().amax().double(), (~value.isfinite()).sum().double()])


def named_gradients(policy: Any) -> tuple[list[str], list[Tensor]]:
    """Names and gradients (of the parameter's shape) of all parameters that have one."""
    named = [(name, p.grad) for name, p in policy.named_parameters() if p.grad is not None]
    return [name for name, _ in named], [gradient for _, gradient in named]


def count_nonfinite(tensors: Sequence[Tensor]) -> int:
    """Number of elements of these tensors, of any shape, that are NaN or inf, counted with one transfer."""
    return int(torch.stack([(~tensor.isfinite()).sum() for tensor in tensors]).sum())


def _tensor_note(note: _Pending, values: list[float]) -> LinkNote:
    magnitude, nonfinite, *worst = values
    where = note.note
    if worst and note.shape:
        index = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(int(worst[0])), note.shape))
        where = f"{where} [{index}]".strip()
    return LinkNote(note.link, note.update, magnitude, nonfinite, note.numel, where, note.facts)


def _parameters_note(note: _Pending, norms: Tensor) -> LinkNote:
    sizes = norms.nan_to_num(nan=math.inf)  # the first that is not finite, or else the largest
    nonfinite = _count_broken(note, norms) if note.nonfinite is None else note.nonfinite
    where = note.names[int(sizes.argmax())]
    return LinkNote(note.link, note.update, float(norms.norm()), nonfinite, note.numel, where, note.facts)


def _count_broken(note: _Pending, norms: Tensor) -> float:
    """Number of elements not finite. Only tensors whose norm (tensors,) is not finite are read."""
    finite = norms.isfinite().tolist()
    suspects = [tensor for tensor, fine in zip(note.tensors, finite, strict=True) if not fine]
    return float(count_nonfinite(suspects)) if suspects else 0.0


def _worse(old: LinkNote, new: LinkNote) -> LinkNote:
    """Merge two notes of one link: sizes add up, and the worse note gives magnitude and place."""
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
