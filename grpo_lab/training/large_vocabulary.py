"""Log-probabilities over a large vocabulary: `core.logprobs` in less memory, with the same results.

The logits are made a chunk at a time, and again in the backward pass, so that they are never there as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.core.logprobs import Head, Pass, scaled
from grpo_lab.core.shapes import Float, Int
from grpo_lab.training.interventions import Step

CHUNK = 2**24
"""Elements of logits worked on at once on a GPU, or made at once from states: 64 MiB in fp32."""
PIECE = 2**20
"""The same on a CPU, whose cache may hold the temporary tensors of 4 MiB."""
Look = Callable[[Tensor], None]
"""Sees logits, which have no gradient; those of a chunk are overwritten by the next."""


def logprobs(model: Any, run: Pass, batch: Batch, ctx: Step, note: str, look: Look | None = None) -> Tensor:
    """`core.train.Trainer.logprobs`; `look` sees the logits as they are made.

    That is (B, T, V) of all tokens at once, or (n, V) of the trained ones in chunks.
    """
    states, head = run(model, batch)
    mask, temperature = batch.completion_mask, ctx.sampling.temperature
    if in_chunks(head, batch, ctx):

        def seen(logits: Tensor) -> None:
            ctx.recorder.chunk(Stage.LOGITS, logits, ctx.update, note)
            if look:
                look(logits)

        found = head_logprobs(states[mask], head, batch.completions[mask], temperature, seen)
        return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, found)
    logits = ctx.apply(Stage.LOGITS, head(states), note)
    if look:
        look(logits.detach())
    return completion_logprobs(logits, batch.completions, temperature).masked_fill(~mask, 0.0)


def in_chunks(head: Head, batch: Batch, ctx: Step) -> TypeGuard[torch.nn.Linear]:
    """Whether logits are large, and no intervention wants them as a whole.

    A subclass of the head's, such as a quantised layer, multiplies in its own way.
    """
    if isinstance(head, torch.nn.Linear) and type(head) is torch.nn.Linear and Stage.LOGITS not in ctx.interventions:
        return batch.completion_mask.numel() * head.out_features > CHUNK
    return False


def completion_logprobs(
    logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], temperature: float = 1.0
) -> Float[Tensor, "B T"]:
    """`core.logprobs.completion_logprobs`, of which the backward pass makes one tensor of the logits' size, not four.

    >>> completion_logprobs(torch.zeros(1, 1, 4), torch.tensor([[2]]))
    tensor([[-1.3863]])
    """
    flat = cast(Tensor, _SelectedLogSoftmax.apply(logits.flatten(0, 1), tokens.flatten(), temperature))
    return flat.view(tokens.shape)


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


class _HeadLogprobs(torch.autograd.Function):
    """`completion_logprobs` from states and a head: logits are made a chunk at a time in one buffer, twice."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
        look: Look,
    ) -> Tensor:
        logprobs, normalisers = empty_per_row(states)
        for rows, logits in _logits(states, weight, bias):
            look(logits)
            select_logprobs(logits, tokens[rows], temperature, logprobs[rows], normalisers[rows])
        ctx.save_for_backward(states, weight, bias, tokens, normalisers)
        ctx.temperature = temperature
        return logprobs

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        states, weight, bias, tokens, normalisers = ctx.saved_tensors
        sum_type = torch.promote_types(weight.dtype, torch.float32)  # a sum in half precision is rounded at each chunk
        wanted = zip((states, weight, bias), (states.dtype, sum_type, sum_type), ctx.needs_input_grad, strict=False)
        of_states, of_weight, of_bias = (
            torch.zeros_like(tensor, dtype=dtype) if want else None for tensor, dtype, want in wanted
        )
        for rows, logits in _logits(states, weight, bias):
            differentiate_logprobs(logits, tokens[rows], ctx.temperature, normalisers[rows], grad[rows], logits)
            if of_states is not None:
                torch.mm(logits, weight, out=of_states[rows])
            if of_weight is not None:
                _add_product(of_weight, logits.t(), states[rows])
            if of_bias is not None:
                of_bias += logits.sum(dim=0, dtype=sum_type)
        return of_states, of_weight, of_bias, None, None, None


def head_logprobs(
    states: Float[Tensor, "N D"],
    head: torch.nn.Linear,
    tokens: Int[Tensor, " N"],
    temperature: float = 1.0,
    look: Look = lambda logits: None,
) -> Float[Tensor, " N"]:
    """log softmax(head(states) / temperature) at `tokens`, in nats, fp32, without all logits at once.

    >>> head_logprobs(torch.zeros(1, 2), torch.nn.Linear(2, 4, bias=False), torch.tensor([2])).exp()
    tensor([0.2500], grad_fn=<ExpBackward0>)
    """
    device, own = states.device.type, head.weight.dtype
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else own
    bias = None if head.bias is None else head.bias.to(dtype)
    found = _HeadLogprobs.apply(states.to(dtype), head.weight.to(dtype), bias, tokens, temperature, look)
    return cast(Tensor, found)


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of the states (N, D) with their logits (n, V), which lie in one buffer in turns."""
    size = max(1, CHUNK // len(weight))
    linear = torch.mm if bias is None else partial(torch.addmm, bias)
    buffer = states.new_empty(min(size, len(states)), len(weight))
    for first in range(0, len(states), size):
        rows = slice(first, first + size)
        yield rows, linear(states[rows], weight.t(), out=buffer[: len(states[rows])])


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right, of the type of the total or a smaller one, to the total."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def empty_per_row(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors (n,) in fp32 for n rows, each in one piece: small ones between large ones fragment the heap."""
    return rows.new_empty(len(rows), dtype=torch.float32), rows.new_empty(len(rows), dtype=torch.float32)


def select_logprobs(logits: Tensor, tokens: Tensor, temperature: float, logprobs: Tensor, normalisers: Tensor) -> None:
    """Write the log-probability (n,) of each row's token, and the logsumexp (n,) of each row, of logits (n, V)."""
    for scores, chosen, selected, normaliser in zip(*_pieces(logits, tokens, logprobs, normalisers), strict=True):
        divided = scaled(scores, temperature)
        torch.logsumexp(divided, dim=-1, out=normaliser)
        torch.sub(divided.gather(-1, chosen[:, None])[:, 0], normaliser, out=selected)


def differentiate_logprobs(
    logits: Tensor, tokens: Tensor, temperature: float, normalisers: Tensor, grad: Tensor, result: Tensor
) -> None:
    """Write the gradient (n, V) of the log-probabilities, times `grad` (n,); `result` may be the logits themselves."""
    parts = _pieces(logits, tokens, normalisers, grad, result)
    for scores, chosen, normaliser, upstream, out in zip(*parts, strict=True):
        share = (scaled(scores, temperature) - normaliser[:, None]).exp_().mul_(-upstream[:, None])
        share.scatter_add_(-1, chosen[:, None], upstream[:, None])
        out.copy_(scaled(share, temperature))


def _pieces(logits: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    """(N, V) logits and further tensors (N, ...), split alike along N; on a GPU small pieces only cost more kernels."""
    size = max(1, (CHUNK if logits.is_cuda else PIECE) // logits.shape[-1])
    return [tensor.split(size) for tensor in (logits, *others)]
