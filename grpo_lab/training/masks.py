"""Attention masks of our own: every position sees itself, padding too, because a row that sees nothing gives NaN.

transformers takes a mask with four dimensions as it is; to make one itself, it waits for the device.
"""

from typing import Any

import torch
from torch import Tensor

from grpo_lab.errors import ConfigError


def causal(keys: Tensor, queries: int) -> Tensor:
    """(b, queries, k): the keys that each of the last `queries` positions sees; `keys` (b, k) is True for real tokens.

    >>> causal(torch.tensor([[False, True, True]]), 2).int().tolist()
    [[[0, 1, 0], [0, 1, 1]]]
    """
    key = torch.arange(keys.shape[1], device=keys.device)
    query = key[len(key) - queries :, None]
    return (key < query) & keys[:, None] | (key == query)


def as_attention_takes_it(model: Any, seen: Tensor) -> Tensor:
    """The mask (b, 1, t, k) of `seen` (b, t, k), the keys that each query sees, in the form of the model's attention.

    Raises ConfigError for an attention that takes no mask.
    """
    kind, mask = model.config._attn_implementation, seen[:, None]
    if kind == "sdpa":
        return mask
    if kind == "eager":
        dtype = model.get_input_embeddings().weight.dtype
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
    raise ConfigError(f"attention {kind!r} takes no mask: load the model with attn_implementation='sdpa'")
