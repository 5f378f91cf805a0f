"""Log-probabilities and token weights, computed from the model itself and not by the trainer under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_lab.core.logprobs import completion_logprobs

COORDINATES = 2**16
"""Gradient elements that the weights are fitted to: enough for some hundred unknowns, of few parameters."""


def until_end(completions: Tensor, terminators: Sequence[int]) -> Tensor:
    """(B, T) bool: True up to and including the first terminator.

    >>> until_end(torch.tensor([[5, 9, 0], [5, 6, 7]]), [9]).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    ends = torch.isin(completions, torch.tensor(terminators, device=completions.device)).long()
    return ends.cumsum(dim=1) - ends == 0


def logits(model: Any, rows: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Logits (B, S + T - 1, V) before each token but the first, and those tokens (B, S + T - 1)."""
    tokens = torch.cat([rows["prompt_ids"], rows["completions"]], dim=1)
    mask = torch.cat([rows["prompt_mask"].long(), torch.ones_like(rows["completions"])], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    found = model(input_ids=tokens, attention_mask=mask, position_ids=positions).logits
    return found[:, :-1], tokens[:, 1:]


@torch.no_grad()
def logprobs(model: Any, rows: Mapping[str, Any], temperature: float) -> Tensor:
    """(B, T) log-probabilities of the completions' tokens, in nats."""
    found, tokens = logits(model, rows)
    return completion_logprobs(found, tokens, temperature)[:, rows["prompt_ids"].shape[1] - 1 :]


def gradient(model: Any, names: Sequence[str], rows: Mapping[str, Any], kl: Callable[..., Tensor] | None) -> Tensor:
    """(n,) the gradient of one objective's loss at the first update, where that of a ratio is its log-probability's."""
    found, tokens = logits(model, rows)
    chosen = completion_logprobs(found, tokens, rows.get("temperature", 1.0))[:, rows["prompt_ids"].shape[1] - 1 :]
    if "old_logprobs" in rows and "log_ratio" in rows:
        # The trainer's own values, to the bit: a penalty may have a kink where the policy is the reference.
        chosen = chosen + (rows["old_logprobs"] + rows["log_ratio"] - chosen).detach()
    per_token = -rows["advantages"][:, None] * chosen
    if rows.get("beta") and kl:
        per_token = per_token + rows["beta"] * kl(chosen, rows["ref_logprobs"].float())
    inside = rows["weights"] != 0
    named = dict(model.named_parameters())
    loss = (rows["weights"][inside] * per_token[inside]).sum()
    parts = torch.autograd.grad(loss, [named[name] for name in names], materialize_grads=True, allow_unused=True)
    return torch.cat([part.flatten() for part in parts])


def added(gradients: Tensor) -> Tensor:
    """(n,) the sum of the objectives' gradients (k, n)."""
    return gradients.sum(dim=0)


def projected(gradients: Tensor) -> Tensor:
    """(n,) the sum of the gradients (k, n), each without its part against another one: PCGrad.

    >>> projected(torch.tensor([[1.0, 0.0], [-1.0, 1.0]]))
    tensor([0.5000, 1.5000])
    """
    total = torch.zeros_like(gradients[0])
    for place, mine in enumerate(gradients):
        for other in (*gradients[:place], *gradients[place + 1 :]):
            mine = mine - (mine @ other).clamp(max=0) / (other @ other).clamp(min=1e-30) * other
        total = total + mine
    return total


COMBINATIONS = {"separate": added, "alternate": added, "pcgrad": projected}
"""The ways to combine gradients that can be told apart; `alternate` has one objective a cycle."""


def counts(gradients: Tensor, total: Tensor) -> Tensor:
    """(k,) the factor of each objective's gradient (k, n) in the total (n,), by least squares, the largest being 1."""
    found = torch.linalg.pinv(gradients @ gradients.T, hermitian=True) @ (gradients @ total)
    return found / found.abs().max().clamp(min=1e-30)


def parts(
    model: Any, objectives: Sequence[Mapping[str, Any]], terminators: Sequence[int], gradients: Mapping[str, Tensor]
) -> dict[str, float]:
    """The parts of a gradient by kind of token, as norms over its own, and `all`, the squared share that they explain.

    The gradient of a policy loss is a sum of weight x gradient of a token's log-probability. Least squares finds a
    weight for the `rest` of each completion, its `end` token, the `padding` after it, and its `prompt`.
    """
    names = _some_parameters(model, gradients)
    columns = [
        column
        for rows in objectives
        for one in _single(rows)
        for column in _columns(model, names, one, terminators, rows.get("temperature", 1.0))
    ]
    target = torch.cat([gradients[name].flatten() for name in names]).double()
    matrix = torch.stack([column for _, column in columns], dim=1)
    lengths = matrix.norm(dim=0).clamp(min=1e-30)
    matrix = matrix / lengths
    weights = torch.linalg.pinv(matrix.T @ matrix, hermitian=True, rtol=1e-7) @ (matrix.T @ target)
    found = {"all": 1 - float((target - matrix @ weights).square().sum() / target.square().sum())}
    for kind in ("rest", "end", "padding", "prompt"):
        chosen = torch.tensor([each == kind for each, _ in columns], device=target.device)
        found[kind] = float((matrix[:, chosen] @ weights[chosen]).norm() / target.norm())
    return found


def _columns(
    model: Any, names: Sequence[str], one: Mapping[str, Tensor], terminators: Sequence[int], temperature: float
) -> Iterator[tuple[str, Tensor]]:
    """Yield each kind of token in one row, with the gradient (n,) of their log-probabilities' sum."""
    scores, tokens = logits(model, one)
    chosen = completion_logprobs(scores, tokens, temperature)[0]
    inside = until_end(one["completions"], terminators)[0]
    last = inside & torch.isin(one["completions"][0], torch.tensor(terminators, device=inside.device))
    of_prompt = len(chosen) - len(inside)
    masks = {"rest": inside & ~last, "end": last, "padding": ~inside}
    masks = {kind: pad(mask, (of_prompt, 0)) for kind, mask in masks.items()}
    masks["prompt"] = torch.arange(len(chosen), device=inside.device) < of_prompt
    named = dict(model.named_parameters())
    parameters = [named[name] for name in names]
    for kind, mask in masks.items():
        if mask.any():
            total = chosen[mask].sum()
            found = torch.autograd.grad(total, parameters, retain_graph=True, materialize_grads=True, allow_unused=True)
            yield kind, torch.cat([gradient.flatten() for gradient in found]).double()


def _single(rows: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Yield each row, with its prompt's padding cut off."""
    names = ("prompt_ids", "prompt_mask", "completions")
    for row in range(len(rows["completions"])):
        start = int(rows["prompt_mask"][row].long().argmax())
        ids, mask, completion = (rows[name][row : row + 1] for name in names)
        yield {"prompt_ids": ids[:, start:], "prompt_mask": mask[:, start:], "completions": completion}


def _some_parameters(model: Any, gradients: Mapping[str, Tensor]) -> list[str]:
    """Names of trained parameters near the head, without embeddings: their gradients are quick to compute."""
    tables = {
        id(p) for module in model.modules() if isinstance(module, torch.nn.Embedding) for p in module.parameters()
    }
    chosen, size = [], 0
    for name, parameter in reversed(list(model.named_parameters())):
        fits = name in gradients and id(parameter) not in tables and parameter.numel() <= COORDINATES
        if fits and size < COORDINATES:
            chosen.append(name)
            size += parameter.numel()
    return chosen
