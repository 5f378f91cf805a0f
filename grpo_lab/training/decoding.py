"""Decoding with a cache: one forward pass for each token, over the completions that have not ended."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import DynamicLayer

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


class _Roomy(DynamicLayer):
    """Keys and values (b, heads, k, d) of one layer, appended in place; transformers copies them at each token."""

    def __init__(self, layer: Any, length: int) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self._buffers = [pad(tensor, (0, 0, 0, length)) for tensor in (layer.keys, layer.values)]
        self.keys, self.values = self._first(layer.keys.shape[2])

    def _first(self, size: int) -> tuple[Tensor, Tensor]:
        return self._buffers[0][:, :, :size], self._buffers[1][:, :, :size]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states (b, heads, t, d) of the next tokens; return all so far."""
        size = self.get_seq_length()
        end = size + key_states.shape[2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, size:end] = states
        self.keys, self.values = found = self._first(end)
        return found

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows of this index (b,)."""
        size = self.get_seq_length()
        self._buffers = [buffer.index_select(0, beam_idx) for buffer in self._buffers]
        self.keys, self.values = self._first(size)


class Growing:
    """Completions of prompts on their way: `logits` (b, 1, V) of the tokens last seen, for the rows that are kept."""

    def __init__(self, model: Any, prompt_ids: Tensor, prompt_mask: Tensor, group: Tensor, length: int) -> None:
        self._model, self._seen = model, prompt_mask.shape[1]
        self._keys, self._positions = pad(prompt_mask.bool(), (0, length), value=True), prompt_mask.sum(1, keepdim=True)
        self.logits, self._cache = prompt_pass(model, prompt_ids, prompt_mask)
        layers = self._cache.layers  # made roomy while they are few, so that nothing is copied twice
        self._cache.layers = [_Roomy(each, length) if type(each) is DynamicLayer else each for each in layers]
        self.keep(group)

    def keep(self, rows: Tensor) -> None:
        """Keep the rows of this index (b,) only, in its order; a row may be repeated."""
        self._cache.reorder_cache(rows)  # batch_select_indices does the same, several times slower on a CPU
        self.logits, self._keys, self._positions = self.logits[rows], self._keys[rows], self._positions[rows]

    def advance(self, tokens: Tensor) -> None:
        """See the next token (b, 1) of each row."""
        self._seen += 1
        self.logits = self._model(
            input_ids=tokens,
            attention_mask=masks.as_attention_takes_it(self._model, self._keys[:, None, : self._seen]),
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
        ).logits
        self._positions = self._positions + 1
