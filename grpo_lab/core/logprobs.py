"""Log-probabilities of a batch's completions under a model: the two passes, and the softmax at the tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Context, Stage
from grpo_lab.core.packing import as_attention_takes_it, causal, pack
from grpo_lab.core.shapes import Float, Int

Head = Callable[[Tensor], Tensor]
Pass = Callable[[Any, Batch], tuple[Tensor, Head]]
"""From a model and a batch: the state before each token, (B, T, D), and the head that makes logits (…, V) of states."""


def shared_pass(model: Any, batch: Batch) -> tuple[Tensor, Head]:
    """Each prompt is run once for the completions of a row; states before tokens outside the mask have no meaning."""
    packing = pack(batch, model.config.hidden_size)
    mask = as_attention_takes_it(model, packing.visible())
    given = {"input_ids": packing.tokens, "attention_mask": mask, "position_ids": packing.positions}
    states = model.base_model(**given, use_cache=False).last_hidden_state
    return states.flatten(0, 1)[packing.predicts], model.get_output_embeddings()


def plain_pass(model: Any, batch: Batch) -> tuple[Tensor, Head]:
    """The usual way: every prompt is repeated for each completion, and the model itself makes the logits."""
    prompt_mask = batch.prompt_mask[batch.group]
    mask = torch.cat([prompt_mask, prompt_mask.new_ones(batch.completions.shape)], dim=1)
    output = model(
        input_ids=torch.cat([batch.prompt_ids[batch.group], batch.completions], dim=1),
        attention_mask=as_attention_takes_it(model, causal(mask.bool())),
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=batch.completions.shape[1] + 1,
    )
    return output.logits[:, :-1], lambda logits: logits


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
    scores = logits.float() / temperature
    return scores.gather(-1, tokens[..., None])[..., 0] - scores.logsumexp(dim=-1)


def entropies(logits: Float[Tensor, "... V"], temperature: float = 1.0) -> Float[Tensor, "..."]:
    """Entropy of softmax(logits / temperature) in nats, fp32, without gradient.

    >>> entropies(torch.zeros(1, 2))
    tensor([0.6931])
    """
    logp = (logits.detach().float() / temperature).log_softmax(dim=-1)
    # A filtered token has logp = -inf and p = 0: its term is 0, not NaN.
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(dim=-1)
