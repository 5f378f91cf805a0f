"""Batches of which groups leave, and which are put together, and tensors in parts: for draws, streams, processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch


def of_groups(batch: Batch, index: Tensor) -> Batch:
    """The batch with the prompts of this index (p,) and their completions only."""
    places = torch.full((len(batch.prompt_ids),), -1, device=batch.group.device)
    places[index] = torch.arange(len(index), device=index.device)
    part = batch.rows((places[batch.group] >= 0).nonzero()[:, 0])
    ids, mask = batch.prompt_ids[index], batch.prompt_mask[index]
    return replace(part, prompt_ids=ids, prompt_mask=mask, group=places[part.group])


def joined(batches: Sequence[Batch]) -> Batch:
    """One batch of all prompts and completions, padded to the longest with 0, which no mask shows."""
    if len(batches) == 1:
        return batches[0]
    widths = {name: max(getattr(batch, name).shape[1] for batch in batches) for name in ("prompt_ids", "completions")}
    prompts = [0, *itertools.accumulate(len(batch.prompt_ids) for batch in batches)]
    whole: dict[str, Tensor | None] = {}
    for field in fields(batches[0]):
        tensors = [getattr(batch, field.name) for batch in batches]
        if tensors[0] is None:
            continue
        if field.name == "group":
            tensors = [tensor + begin for tensor, begin in zip(tensors, prompts, strict=False)]
        elif tensors[0].dim() >= 2:
            left = "prompt" in field.name or field.name == "experts_before"
            width = widths["prompt_ids" if left else "completions"]
            tensors = [_padded(tensor, width, left) for tensor in tensors]
        whole[field.name] = torch.cat(tensors)
    return type(batches[0])(**whole)  # pyright: ignore[reportArgumentType]


def moved(value: Any, device: torch.device | str) -> Any:
    """The same nested values with every tensor on this device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Batch):
        return replace(value, **{each.name: moved(getattr(value, each.name), device) for each in fields(value)})
    if isinstance(value, Mapping):
        return {name: moved(each, device) for name, each in value.items()}
    return [moved(each, device) for each in value] if isinstance(value, list) else value


def in_parts(tensors: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Yield neighbours of one type that hold `limit` elements together, or a single tensor that holds more."""
    part, size = list[Tensor](), 0
    for tensor in tensors:
        if part and (size + tensor.numel() > limit or tensor.dtype != part[0].dtype):
            yield part
            part, size = [], 0
        part.append(tensor)
        size += tensor.numel()
    if part:
        yield part


def _padded(tensor: Tensor, width: int, left: bool) -> Tensor:
    missing = width - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (0, 0) * (tensor.dim() - 2) + ((missing, 0) if left else (0, missing)))
