"""Log-probabilities of a batch's completions under a model: the two passes, and the softmax at the tokens."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Context, Stage
from grpo_lab.core.packing import as_attention_takes_it, pack
from grpo_lab.core.shapes import Float, Int

Head = Callable[[Tensor], Tensor]
Pass = Callable[[Any, Batch], tuple[Tensor, Head]]
"""From a model and a batch: the state before each token, (B, T, D), and the head that makes logits (…, V) of states."""


def shared_pass(model: Any, batch: Batch) -> tuple[Tensor, Head]:
    """Each prompt is run once for the completions of a row; states before tokens outside the mask have no meaning."""
    tokens, positions, sees, predicts = pack(batch, model.config.hidden_size)
    mask = as_attention_takes_it(model, sees)
    output = model.base_model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False)
    return output.last_hidden_state.flatten(0, 1)[predicts], model.get_output_embeddings()


def logprobs(model: Any, run: Pass, batch: Batch, ctx: Context, note: str) -> Tensor:
    """Log-probabilities (B, T) of the completions' tokens under a model, in nats; 0 outside the mask.

    `note` names the pass: `old`, `reference` or `current`.
    """
    states, head = run(model, batch)
    logits = ctx.apply(Stage.LOGITS, head(states), note)
    found = completion_logprobs(logits, batch.completions, ctx.sampling.temperature)
    return found.masked_fill(~batch.completion_mask, 0.0)


def completion_logprobs(
    logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], temperature: float = 1.0
) -> Float[Tensor, "B T"]:
    """log softmax(logits / temperature) at `tokens`, in nats, fp32 whatever the dtype of the logits.

    >>> completion_logprobs(torch.zeros(1, 1, 4), torch.tensor([[2]]))
    tensor([[-1.3863]])
    """
    scores = scaled(logits, temperature)
    return scores.gather(-1, tokens[:, :, None])[:, :, 0] - scores.logsumexp(dim=-1)


def entropies(logits: Float[Tensor, "... V"], temperature: float = 1.0) -> Float[Tensor, "..."]:
    """Entropy of softmax(logits / temperature) in nats, fp32.

    >>> entropies(torch.zeros(1, 2))
    tensor([0.6931])
    """
    logp = scaled(logits, temperature).log_softmax(dim=-1)
    # A filtered token has logp = -inf and p = 0: its term is 0, not NaN.
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(dim=-1)


def scaled(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature in fp32; the logits themselves, without a copy, where that is the same."""
    return logits.float() if temperature == 1 else logits.float() / temperature
