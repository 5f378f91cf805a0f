"""The shared-prompt pass: a prompt and its completions stand in one row, and a mask keeps the completions apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch


@dataclass(frozen=True)
class Packing:
    """R rows of L slots: a prompt, padded on its left, and behind it some of its completions."""

    tokens: Tensor
    """(R, L) int."""
    positions: Tensor
    """(R, L) int: every completion goes on where its prompt ends."""
    segments: Tensor
    """(R, L) int: -1 for padding, 0 for the prompt, b + 1 for completion b."""
    predicts: Tensor
    """(B, T) int: the slot, counted over all rows, whose hidden state predicts the token."""

    def visible(self) -> Tensor:
        """(R, L, L) bool: a token sees its prompt, its own completion so far, and always itself."""
        query, key = self.segments[:, :, None], self.segments[:, None, :]
        seen = (key == 0) | ((key == query) & (key > 0))
        itself = torch.eye(self.segments.shape[1], dtype=torch.bool, device=self.segments.device)
        return seen.tril() | itself


def pack(batch: Batch, hidden_size: int) -> Packing:
    """Lay out the batch: all completions of a prompt in one row, or each in a row of its own if that is less work.

    Work is counted by one rule: of each layer a slot costs about 12 D^2 multiplications, and 2 D for every slot of its
    row, so R rows of L slots cost R L (6 D + L). A completion's last token predicts nothing and is left out, as is
    everything outside the mask. The host lays the rows out: it waits for the device once.
    """
    (size, width), (prompts, start), device = batch.completions.shape, batch.prompt_ids.shape, batch.group.device
    last = (batch.completion_mask * torch.arange(1, width + 1, device=device)).amax(
        dim=1
    )  # place of a completion's last trained token, from 1
    known = torch.cat([batch.prompt_mask.flatten(), batch.group, (last - 1).clamp(min=0)]).cpu()
    mask, group, used = known.split([prompts * start, size, size])
    mask, steps, filled, begins = mask.view(prompts, start), torch.arange(width), [0] * prompts, list[int]()
    for prompt, count in zip(group.tolist(), used.tolist(), strict=True):
        begins.append(filled[prompt])
        filled[prompt] += count
    (prompt_of, row), length = group.unique(return_inverse=True), start + max(filled)
    first, alone = torch.tensor(begins), start + int(used.max())
    if size * alone * (6 * hidden_size + alone) < len(prompt_of) * length * (6 * hidden_size + length):
        prompt_of, row, length, first = group, torch.arange(size), alone, torch.zeros_like(used)
    inside = steps < used[:, None]
    slots = (row * length + start + first)[:, None] + steps
    prompt_end = (row * length + start - 1)[:, None]

    def laid_out(of_prompts: Tensor, of_completions: Tensor) -> Tensor:
        """(R, L): values of the prompts (P, S), behind them those of the completions (B, T), and -1."""
        whole = torch.full((len(prompt_of), length), -1)
        whole[:, :start] = of_prompts[prompt_of]
        whole.view(-1)[slots[inside]] = of_completions[inside]
        return whole

    places = torch.arange(prompts * start + size * width)  # of all tokens, those of the prompts first
    laid = [
        laid_out(mask.cumsum(dim=1) - 1, mask.sum(dim=1)[group][:, None] + steps).clamp(min=0),
        laid_out(mask - 1, torch.arange(1, size + 1)[:, None].expand(size, width)),
        laid_out(places[: prompts * start].view(prompts, start), places[prompts * start :].view(size, width)),
        torch.cat([prompt_end, torch.where(inside, slots, prompt_end)[:, :-1]], dim=1),
    ]
    there = torch.cat([each.flatten() for each in laid]).to(device, non_blocking=True)
    positions, segments, sources, predicts = map(Tensor.view_as, there.split([each.numel() for each in laid]), laid)
    tokens = torch.cat([batch.prompt_ids.flatten(), batch.completions.flatten(), batch.group.new_zeros(1)])
    return Packing(tokens[sources], positions, segments, predicts)  # -1 finds the zero at the end


def causal(keys: Tensor) -> Tensor:
    """(b, k, k): the keys that each position sees, of which `keys` (b, k) is True for real tokens.

    Every position sees itself, padding too, because a row that sees nothing gives NaN.

    >>> causal(torch.tensor([[False, True, True]])).int().tolist()
    [[[1, 0, 0], [0, 1, 0], [0, 1, 1]]]
    """
    key = torch.arange(keys.shape[1], device=keys.device)
    return (key < key[:, None]) & keys[:, None] | (key == key[:, None])


def as_attention_takes_it(model: Any, seen: Tensor) -> Tensor:
    """The mask (b, 1, t, k) of `seen` (b, t, k), the keys that each query sees, in the form of the model's attention.

    transformers takes a mask with four dimensions as it is; to make one itself, it waits for the device.
    """
    mask = seen[:, None]
    if model.config._attn_implementation == "sdpa":
        return mask
    dtype = model.get_input_embeddings().weight.dtype
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
