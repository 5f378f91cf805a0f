"""Log-probabilities of a batch's completions under a model: the pass over shared prompts, the softmax at the tokens."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.packing import pack
from grpo_lab.core.shapes import Float, Int

Head = Callable[[Tensor], Tensor]
Pass = Callable[[Any, Batch], tuple[Tensor, Head]]
"""From a model and a batch: the state before each token, (B, T, D), and the head that makes logits (…, V) of states."""


def shared_pass(model: Any, batch: Batch) -> tuple[Tensor, Head]:
    """Each prompt is run once for the completions of a row; states before tokens outside the mask have no meaning."""
    tokens, positions, mask, predicts = pack(batch, model.config.hidden_size)
    output = model.base_model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False)
    return output.last_hidden_state.flatten(0, 1)[predicts], model.get_output_embeddings()


def completion_logprobs(
    logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], temperature: float = 1.0
) -> Float[Tensor, "B T"]:
    """log softmax(logits / temperature) at `tokens`, in nats, fp32 whatever the dtype of the logits.

    >>> completion_logprobs(torch.zeros(1, 1, 4), torch.tensor([[2]]))
    tensor([[-1.3863]])
    """
    scores = scaled(logits, temperature)
    return scores.gather(-1, tokens[:, :, None])[:, :, 0] - torch.logsumexp(scores, dim=-1)


def scaled(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature in fp32; the logits themselves, without a copy, where that is the same."""
    return logits.float() if temperature == 1 else logits.float() / temperature
