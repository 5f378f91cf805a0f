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

CHUNK = 2**24
"""Elements of logits worked on at once on a GPU, or made at once from states: 64 MiB in fp32."""
PIECE = 2**20
"""The same on a CPU, whose cache may hold the temporary tensors of 4 MiB."""
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
    flat = _SelectedLogSoftmax.apply(logits.flatten(0, 1), tokens.flatten(), temperature)
    return flat.view(tokens.shape)  # type: ignore[union-attr]


class _SelectedLogSoftmax(torch.autograd.Function):
    """log_softmax(logits / temperature)[token] in fp32, forward and backward; only the logits are kept."""

    @staticmethod
    def forward(ctx, logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:  # type: ignore[override]
        logprobs, normalisers = empty_per_row(logits)
        select_logprobs(logits, tokens, temperature, logprobs, normalisers)
        ctx.save_for_backward(logits, tokens, normalisers)
        ctx.temperature = temperature
        return logprobs

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        logits, tokens, normalisers = ctx.saved_tensors
        result = torch.empty_like(logits)
        differentiate_logprobs(logits, tokens, ctx.temperature, normalisers, grad, result)
        return result, None, None


def entropies(logits: Float[Tensor, "... V"], temperature: float = 1.0) -> Float[Tensor, "..."]:
    """Entropy of softmax(logits / temperature) in nats, fp32, without gradient.

    >>> entropies(torch.zeros(1, 2))
    tensor([0.6931])
    """
    with torch.no_grad():
        found = []
        for (scores,) in zip(*_pieces(logits.flatten(0, -2)), strict=True):
            logp = _scaled(scores, temperature).log_softmax(dim=-1)
            # A filtered token has logp = -inf and p = 0: its term is 0, not NaN.
            found.append(-(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(dim=-1))
        return torch.cat(found).view(logits.shape[:-1])


def _scaled(scores: Tensor, temperature: float) -> Tensor:
    """scores / temperature in fp32; the scores themselves, without a copy, where that is the same."""
    return scores.float() if temperature == 1 else scores.float() / temperature


def empty_per_row(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors (n,) in fp32 for n rows, each in one piece: small ones between large ones fragment the heap."""
    return rows.new_empty(len(rows), dtype=torch.float32), rows.new_empty(len(rows), dtype=torch.float32)


def select_logprobs(logits: Tensor, tokens: Tensor, temperature: float, logprobs: Tensor, normalisers: Tensor) -> None:
    """Write the log-probability (n,) of each row's token, and the logsumexp (n,) of each row, of logits (n, V)."""
    for scores, chosen, selected, normaliser in zip(*_pieces(logits, tokens, logprobs, normalisers), strict=True):
        scaled = _scaled(scores, temperature)
        torch.logsumexp(scaled, dim=-1, out=normaliser)
        torch.sub(scaled.gather(-1, chosen[:, None])[:, 0], normaliser, out=selected)


def differentiate_logprobs(
    logits: Tensor, tokens: Tensor, temperature: float, normalisers: Tensor, grad: Tensor, result: Tensor
) -> None:
    """Write the gradient (n, V) of the log-probabilities, times `grad` (n,); `result` may be the logits themselves."""
    parts = _pieces(logits, tokens, normalisers, grad, result)
    for scores, chosen, normaliser, upstream, out in zip(*parts, strict=True):
        share = (_scaled(scores, temperature) - normaliser[:, None]).exp_().mul_(-upstream[:, None])
        share.scatter_add_(-1, chosen[:, None], upstream[:, None])
        out.copy_(_scaled(share, temperature))


def _pieces(logits: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    """(N, V) logits and further tensors (N, ...), split alike along N; on a GPU small pieces only cost more kernels."""
    size = max(1, (CHUNK if logits.is_cuda else PIECE) // logits.shape[-1])
    return [tensor.split(size) for tensor in (logits, *others)]
