"""The batch of a step: prompts, completions, and their tensors that the loss reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

AT_ONCE = 4096
"""Tokens of prompts and completions in one pass, as far as whole groups allow. More at once take more memory."""


@dataclass(frozen=True)
class Batch:
    """P prompts and B completions of them; `group` names the prompt of each, so that rows may leave (`rows`).

    Log-probabilities, entropies and KL are in nats.
    """

    prompt_ids: Tensor
    """(P, S) int, padded on the left."""
    prompt_mask: Tensor
    """(P, S) int, 1 = a real token."""
    group: Tensor
    """(B,) int, the row of the prompt."""
    completions: Tensor
    """(B, T) int, padded on the right."""
    completion_mask: Tensor
    """(B, T) bool, by position: True up to and including the end token."""
    sampling_logprobs: Tensor
    """(B, T) under the distribution that was sampled from."""
    entropy: Tensor | None = None
    """(B, T) of the policy's next-token distribution at the temperature of sampling, before any filter."""
    advantages: Tensor | None = None
    """(B,): the reward compared with those of its group (core/advantages.py); (B, T) where
    `loss.credit_assignment` gives tokens advantages of their own."""
    old_logprobs: Tensor | None = None
    """(B, T) of the policy that sampled."""
    ref_logprobs: Tensor | None = None
    """(B, T) of the reference, where one is used."""
    weights: Tensor | None = None
    """(B, T): the weight of each token in the loss of the whole batch."""
    penalties: Tensor | None = None
    """(B, T): beta x KL, where the reward pays it."""
    forks: Tensor | None = None
    """(B, T): 1 / their number at the tokens of high entropy, 0 at others; None where all are trained alike."""
    ended: Tensor | None = None
    """(B,) bool: completions that reached their end token; the others were cut off at the length limit."""

    def rows(self, index: Tensor) -> Batch:
        """The batch with the completions of this index (b,) only; its prompts stay."""
        per_row = {field.name: getattr(self, field.name) for field in fields(self) if "prompt" not in field.name}
        return replace(self, **{name: tensor[index] for name, tensor in per_row.items() if tensor is not None})

    def split(self, prompts: int) -> Iterator[Batch]:
        """Yield micro-batches of whole groups, this many prompts each; 0 for as many as AT_ONCE tokens allow."""
        tokens = self.prompt_ids.numel() + self.completions.numel()
        prompts = prompts or max(1, AT_ONCE * len(self.prompt_ids) // tokens)
        if prompts >= len(self.prompt_ids):
            yield self
            return
        rows: dict[int, list[int]] = {}
        for row, group in enumerate(self.group.tolist()):
            rows.setdefault(group // prompts, []).append(row)
        for number in sorted(rows):
            index = torch.tensor(rows[number]).to(self.group.device, non_blocking=True)
            part, first = self.rows(index), number * prompts
            ids, mask = (tensor[first : first + prompts] for tensor in (self.prompt_ids, self.prompt_mask))
            yield replace(part, prompt_ids=ids, prompt_mask=mask, group=part.group - first)
