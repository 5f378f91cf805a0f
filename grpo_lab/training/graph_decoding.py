"""Decoding on CUDA by one captured forward pass, replayed for each token instead of launched kernel by kernel.

A graph reads and writes the memory that it was captured with. So the width stays: rows that have ended are computed on
and ignored, and the cache has its full length from the start. Logits are filtered and sampled outside of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import StaticCache, StaticLayer

from grpo_lab.errors import ConfigError
from grpo_lab.training import masks
from grpo_lab.training.decoding import Growing, prompt_pass


class _OneType(StaticLayer):
    """Keys and values in one type: under autocast, rotated keys are wider than values."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return super().update(key_states, value_states.to(key_states.dtype), *args, **kwargs)


class Captured:
    """Completions on their way, as `Growing` has them, with a cache of `length` tokens after the prompt."""

    def __init__(self, model: Any, prompt_ids: Tensor, prompt_mask: Tensor, group: Tensor, length: int) -> None:
        logits, grown = prompt_pass(model, prompt_ids, prompt_mask)
        self.logits, self._model, self._written = logits[group], model, prompt_ids.shape[1]
        self._cache: Any = StaticCache(config=model.config, max_cache_len=self._written + length)
        if not all(type(layer) is StaticLayer for layer in self._cache.layers):
            raise ConfigError("model.decode = 'graph' needs full attention in every layer; use model.decode = eager")
        self._cache.layers = [_OneType(self._written + length) for _ in grown.layers]
        for index, layer in enumerate(grown.layers):
            self._cache.update(layer.keys[group], layer.values[group], index)
        self._alive = torch.arange(len(group), device=group.device)
        self._tokens = prompt_ids.new_zeros(len(group), 1)
        self._positions = prompt_mask.sum(dim=1, keepdim=True)[group]
        self._keys = torch.nn.functional.pad(prompt_mask.bool()[group], (0, length))
        self._replay: Callable[[], Tensor] | None = None

    def keep(self, rows: Tensor) -> None:
        """Keep the rows of this index (b,) only; the others are still computed, and not read."""
        self._alive, self.logits = self._alive[rows], self.logits[rows]

    def advance(self, tokens: Tensor) -> None:
        """See the next token (b, 1) of each row."""
        self._tokens[self._alive] = tokens
        self._keys[:, self._written] = True
        if self._replay is None:
            self._replay = captured(self._forward)
            for layer in self._cache.layers:
                layer.cumulative_length.fill_(self._written)  # the warm-up has moved it
        self.logits = self._replay()[self._alive]
        self._positions += 1
        self._written += 1

    def _forward(self) -> Tensor:
        """Logits (B, 1, V) of the tokens in place."""
        mask = masks.as_attention_takes_it(self._model, self._keys[:, None])
        given = {"attention_mask": mask, "position_ids": self._positions, "past_key_values": self._cache}
        return self._model(input_ids=self._tokens, use_cache=True, **given).logits


def captured(forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The forward pass as a CUDA graph: each call runs it again on its input tensors, with their numbers of then."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        forward()  # a warm-up, in which libraries take their memory: none may be taken during capture
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        logits = forward()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


DECODERS: dict[str, Callable[..., Any]] = {"eager": Growing, "graph": Captured}
"""By `model.decode`: completions of prompts, with `logits`, `keep` and `advance`."""


def check(decode: str, device: torch.device) -> None:
    """Raise ConfigError for a way of decoding that this device lacks."""
    if decode == "graph" and device.type != "cuda":
        raise ConfigError(f"model.decode = 'graph' needs a CUDA device, and the model is on {device}; use eager")
