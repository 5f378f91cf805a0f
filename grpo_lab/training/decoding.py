"""Decoding with a cache that grows: one forward pass for each token, over the completions that have not ended."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_lab.training import masks


def prompt_pass(model: Any, prompt_ids: Tensor, prompt_mask: Tensor) -> tuple[Tensor, Any]:
    """The last logits (P, 1, V) and the cache of prompts, each run once."""
    keys = prompt_mask.bool()
    output = model(
        input_ids=prompt_ids,
        attention_mask=masks.as_attention_takes_it(model, masks.causal(keys, keys.shape[1])),
        position_ids=(prompt_mask.cumsum(dim=1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits, output.past_key_values


class Growing:
    """Completions of prompts on their way: `logits` (b, t, V) of the tokens last seen, for the rows that are kept."""

    def __init__(self, model: Any, prompt_ids: Tensor, prompt_mask: Tensor, group: Tensor, length: int) -> None:
        self._model, self._keys = model, prompt_mask.bool()
        self.logits, self._cache = prompt_pass(model, prompt_ids, prompt_mask)
        self.keep(group)

    def keep(self, rows: Tensor) -> None:
        """Keep the rows of this index (b,) only, in its order; a row may be repeated."""
        self._cache.reorder_cache(rows)  # batch_select_indices does the same, several times slower on a CPU
        self.logits, self._keys = self.logits[rows], self._keys[rows]

    def advance(self, tokens: Tensor) -> None:
        """See the next tokens (b, t) of each row."""
        positions = self._keys.sum(dim=1, keepdim=True) + torch.arange(tokens.shape[1], device=tokens.device)
        self._keys = torch.cat([self._keys, self._keys.new_ones(tokens.shape)], dim=1)
        self.logits = self._model(
            input_ids=tokens,
            attention_mask=masks.as_attention_takes_it(self._model, masks.causal(self._keys, tokens.shape[1])),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        ).logits
