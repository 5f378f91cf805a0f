"""Log-probabilities of chosen tokens, and entropies, without a second (B, T, V) tensor in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_lab.algorithm.shapes import Float, Int

CHUNK = 2**24
"""Elements of logits worked on at once: 64 MiB in fp32. Linux takes back pieces above 32 MiB as soon as they are
free; smaller ones stay with the process, and often fit no later chunk."""


class _SelectedLogSoftmax(torch.autograd.Function):
    """log_softmax(logits / temperature)[token], in fp32 chunks forward and backward; only the logits are kept."""

    @staticmethod
    def forward(ctx, logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:  # type: ignore[override]
        chunks = zip(*_chunks(logits, tokens), strict=True)
        normalisers, selected = [], []
        for scores, chosen in chunks:
            scaled = _scaled(scores, temperature)
            normalisers.append(scaled.logsumexp(dim=-1))
            selected.append(scaled.gather(-1, chosen[:, None])[:, 0] - normalisers[-1])
        ctx.save_for_backward(logits, tokens, torch.cat(normalisers))
        ctx.temperature = temperature
        return torch.cat(selected)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        logits, tokens, normalisers = ctx.saved_tensors
        result = torch.empty_like(logits)
        parts = _chunks(logits, tokens, normalisers, grad, result)
        for scores, chosen, normaliser, upstream, out in zip(*parts, strict=True):
            share = (_scaled(scores, ctx.temperature) - normaliser[:, None]).exp_().mul_(-upstream[:, None])
            share.scatter_add_(-1, chosen[:, None], upstream[:, None])
            out.copy_(_scaled(share, ctx.temperature))
        return result, None, None


def completion_logprobs(
    logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], temperature: float = 1.0
) -> Float[Tensor, "B T"]:
    """log softmax(logits / temperature) at `tokens`, in nats, fp32 whatever the dtype of the logits.

    >>> completion_logprobs(torch.zeros(1, 1, 4), torch.tensor([[2]]))
    tensor([[-1.3863]])
    """
    flat = _SelectedLogSoftmax.apply(logits.flatten(0, 1), tokens.flatten(), temperature)
    return flat.view(tokens.shape)  # type: ignore[union-attr]


def entropies(logits: Float[Tensor, "... V"], temperature: float = 1.0) -> Float[Tensor, "..."]:
    """Entropy of softmax(logits / temperature) in nats, fp32, without gradient.

    >>> entropies(torch.zeros(1, 2))
    tensor([0.6931])
    """
    with torch.no_grad():
        found = []
        for (scores,) in zip(*_chunks(logits.flatten(0, -2)), strict=True):
            logp = _scaled(scores, temperature).log_softmax(dim=-1)
            # A filtered token has logp = -inf and p = 0: its term is 0, not NaN.
            found.append(-(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(dim=-1))
        return torch.cat(found).view(logits.shape[:-1])


def _scaled(scores: Tensor, temperature: float) -> Tensor:
    """scores / temperature in fp32; the scores themselves, without a copy, where that is the same."""
    return scores.float() if temperature == 1 else scores.float() / temperature


def _chunks(logits: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    """(N, V) logits and further tensors (N, ...), split alike along N."""
    size = max(1, CHUNK // logits.shape[-1])
    return [tensor.split(size) for tensor in (logits, *others)]
