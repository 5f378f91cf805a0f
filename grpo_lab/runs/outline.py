"""A model as shapes: its parameters, and what its passes keep, without any of its weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from grpo_lab.config.schema import Config
from grpo_lab.config.sections import LoraConfig, ModelConfig
from grpo_lab.core import packing
from grpo_lab.core.batch import Batch
from grpo_lab.models import adapters, loading
from grpo_lab.models.precision import PRECISIONS


class Outline:
    """A model as shapes: torch's fake tensors have the types, sizes and kernels of the CPU's, and no memory."""

    def __init__(self, config: ModelConfig, lora: LoraConfig) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode  # here, because it imports sympy

        self._fake, self._autocast = FakeTensorMode(), PRECISIONS[config.precision].autocast
        self._shared = config.prompt_pass == "shared"
        model, self.tokenizer = loading.outline(config.name, config.precision)
        model = adapters.prepared(model, lora, seed=0)  # peft cannot put them into fake tensors
        with self._fake:
            _on_the_cpu(model)
        self.model: Any = model
        everything = list(model.parameters())
        trained = [parameter for parameter in everything if parameter.requires_grad]
        self.parameters, self.trained = (sum(p.numel() for p in each) for each in (everything, trained))
        self.weights, self.gradients = (sum(p.nbytes for p in each) for each in (everything, trained))
        head: Any = self.model.get_output_embeddings().weight
        self.vocabulary, self.width = head.shape
        self.logit = (self._autocast or head.dtype).itemsize
        """Bytes of a logit."""
        self.head = head.nbytes if head.requires_grad else 0
        """Bytes of the gradient of the head's weight."""
        self.tied = head is self.model.get_input_embeddings().weight

    @functools.cached_property
    def cached(self) -> list[int]:
        """Bytes of one token of one completion in each tensor of the cache: keys and values of each layer."""
        with self._passing(), torch.no_grad():
            token = torch.ones(1, 1, dtype=torch.long)
            layers = self.model(input_ids=token, use_cache=True).past_key_values.layers
            return [tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values)]

    @functools.cached_property
    def casts(self) -> int:
        """Bytes of the weights of products that autocast keeps in its own type while tokens are sampled."""
        modules = [module for module in self.model.modules() if not isinstance(module, torch.nn.Embedding)]
        weights = [getattr(module, "weight", None) for module in modules] if self._autocast else []
        return sum(w.numel() * self.logit for w in weights if w is not None and w.ndim == 2 and w.requires_grad)

    def sequences(self, batch: Batch) -> tuple[int, ...]:
        """Number and length of the sequences in which the model runs a micro-batch."""
        if self._shared:
            return tuple(packing.pack(batch, self.width).tokens.shape)
        return len(batch.completions), batch.prompt_ids.shape[1] + batch.completions.shape[1]

    def activations(self, batch: Batch, sequences: tuple[int, ...]) -> list[int]:
        """Bytes of each tensor that a forward pass over this micro-batch keeps for its backward, without logits."""
        rows, length = sequences
        weights = {parameter.untyped_storage()._cdata for parameter in self.model.parameters()}
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            return kept.setdefault(tensor.untyped_storage()._cdata, tensor)

        with self._passing(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            ids, mask = torch.zeros(rows, length).long(), torch.ones(rows, 1, length, length).bool()
            self.model.base_model(input_ids=ids, attention_mask=mask, position_ids=ids, use_cache=False)
        found = [tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in weights]
        # The states before the tokens: as a tensor of the completions, without its padding, and their gradient.
        return found + [batch.completions.numel() * self.width * self.logit] * 3

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """Passes under the run's mixed precision, with fake tensors."""
        with self._fake, torch.autocast("cpu", dtype=self._autocast, enabled=self._autocast is not None):
            yield


def _on_the_cpu(model: torch.nn.Module) -> None:
    """Replace tensors on the device `meta` by tensors of the CPU, which are fake where that mode is on."""
    made: dict[int, Any] = {}  # by the tensor replaced, because a head may be the embedding too
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, old in [(name, tensor) for name, tensor in tensors.items() if tensor is not None]:
                new: Any = torch.empty(old.shape, dtype=old.dtype)
                new = torch.nn.Parameter(new, old.requires_grad) if isinstance(old, torch.nn.Parameter) else new
                tensors[name] = made.setdefault(id(old), new)


def outline(config: Config) -> Outline:
    """The outline of a config's model, made once."""
    return _outline(config.model, config.lora)


@functools.lru_cache(maxsize=4)
def _outline(config: ModelConfig, lora: LoraConfig) -> Outline:
    return Outline(config, lora)
