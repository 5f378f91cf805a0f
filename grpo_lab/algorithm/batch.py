"""What a step trains on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """P prompts, B completions of them, and all that the loss needs to know of each.

    A completion may leave (`rows`) without its prompt: `group` says which prompt it belongs to.
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
    """(B, T) of the distribution really sampled from."""
    entropy: Tensor
    """(B, T) of the policy's next-token distribution at the temperature of sampling, before any filter."""
    advantages: Tensor | None = None
    """(B,)"""
    old_logprobs: Tensor | None = None
    """(B, T) of the policy that sampled."""
    ref_logprobs: Tensor | None = None
    """(B, T) of the reference, where one is used."""
    weights: Tensor | None = None
    """(B, T): what each token counts in the loss of the whole batch."""

    _PER_ROW = (
        "group",
        "completions",
        "completion_mask",
        "sampling_logprobs",
        "entropy",
        "advantages",
        "old_logprobs",
        "ref_logprobs",
        "weights",
    )

    def rows(self, index: Tensor) -> Batch:
        """The batch with these completions only."""
        present = {name: getattr(self, name) for name in self._PER_ROW if getattr(self, name) is not None}
        return replace(self, **{name: tensor[index] for name, tensor in present.items()})

    def split(self, prompts: int) -> Iterator[Batch]:
        """Micro-batches of whole groups, this many prompts each; 0 gives the batch itself."""
        if not prompts or prompts >= len(self.prompt_ids):
            yield self
            return
        for first in range(0, len(self.prompt_ids), prompts):
            index = ((self.group >= first) & (self.group < first + prompts)).nonzero()[:, 0]
            if len(index):
                part = self.rows(index)
                taken = slice(first, first + prompts)
                yield replace(
                    part,
                    prompt_ids=self.prompt_ids[taken],
                    prompt_mask=self.prompt_mask[taken],
                    group=part.group - first,
                )

    def finite_rows(self) -> Tensor:
        """(B,) bool: completions whose advantage and log-probabilities are finite wherever they are trained."""
        finite = torch.ones(len(self.group), dtype=torch.bool, device=self.group.device)
        for values in (self.old_logprobs, self.ref_logprobs, self.sampling_logprobs):
            if values is not None:
                finite &= (values.isfinite() | ~self.completion_mask).all(dim=1)
        return finite if self.advantages is None else finite & self.advantages.isfinite()
