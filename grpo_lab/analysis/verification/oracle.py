"""Log-probabilities and token weights, computed from the model itself and not by the trainer under test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_lab.algorithm.logprobs import completion_logprobs

COORDINATES = 2**16
"""Gradient elements that the weights are fitted to: enough for some hundred unknowns, of few parameters."""


def until_end(completions: Tensor, terminators: Sequence[int]) -> Tensor:
    """(B, T) bool: True up to and including the first terminator.

    >>> until_end(torch.tensor([[5, 9, 0], [5, 6, 7]]), [9]).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    ends = torch.isin(completions, torch.tensor(list(terminators), device=completions.device)).long()
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


class TokenGradients:
    """The gradients of the sampled tokens' log-probabilities, of which the gradient of a policy loss is a sum.

    A column for the `rest` of each completion, its `end` token, the `padding` after it, and its prompt.
    """

    def __init__(self, model: Any, objectives: Sequence[Mapping[str, Any]], terminators: Sequence[int]) -> None:
        self._model, self._names = model, _some_parameters(model)
        self._columns: dict[tuple[int, str], Tensor] = {}
        ends = torch.tensor(list(terminators))
        each = [(rows, one) for rows in objectives for one in _single(rows)]
        for row, (rows, one) in enumerate(each):
            for kind, column in self._of_one(one, ends, rows.get("temperature", 1.0)):
                self._columns[row, kind] = column.double()

    def _of_one(self, one: Mapping[str, Tensor], ends: Tensor, temperature: float) -> Iterator[tuple[str, Tensor]]:
        scores, tokens = logits(self._model, one)
        chosen = completion_logprobs(scores, tokens, temperature)[0]
        inside = until_end(one["completions"], ends.tolist())[0]
        last = inside & torch.isin(one["completions"][0], ends.to(inside.device))
        of_prompt = len(chosen) - len(inside)
        parts = {"rest": inside & ~last, "end": last, "padding": ~inside}
        masks = {kind: pad(mask, (of_prompt, 0)) for kind, mask in parts.items()}
        masks["prompt"] = torch.arange(len(chosen), device=inside.device) < of_prompt
        parameters = [dict(self._model.named_parameters())[name] for name in self._names]
        for kind, mask in masks.items():
            if mask.any():
                grads = torch.autograd.grad(chosen[mask].sum(), parameters, retain_graph=True)
                yield kind, torch.cat([gradient.flatten() for gradient in grads])

    def parts(self, gradients: Mapping[str, Tensor]) -> dict[str, float]:
        """The shares of the gradient that the best sum of all columns gives to each kind of token, as norms.

        `all` is the share of the squared gradient that the sum explains, at most 1.
        """
        target = self._target(gradients)
        keys = list(self._columns)
        matrix = torch.stack([self._columns[key] for key in keys], dim=1)
        weights = _least_squares(matrix, target)
        found = {"all": _explained(matrix, weights, target)}
        for kind in ("rest", "end", "padding", "prompt"):
            chosen = torch.tensor([each == kind for _, each in keys])
            found[kind] = float((matrix[:, chosen] @ weights[chosen]).norm() / target.norm())
        return found

    def _target(self, gradients: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([gradients[name].flatten() for name in self._names]).double()


def _least_squares(matrix: Tensor, target: Tensor) -> Tensor:
    lengths = matrix.norm(dim=0).clamp(min=1e-30)
    columns = matrix / lengths
    return torch.linalg.pinv(columns.T @ columns, hermitian=True, rtol=1e-7) @ (columns.T @ target) / lengths


def _explained(matrix: Tensor, weights: Tensor, target: Tensor) -> float:
    return 1 - float((target - matrix @ weights).square().sum() / target.square().sum())


def _single(rows: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Yield each row, with its prompt's padding cut off."""
    names = ("prompt_ids", "prompt_mask", "completions")
    for row in range(len(rows["completions"])):
        start = int(rows["prompt_mask"][row].long().argmax())
        ids, mask, completion = (rows[name][row : row + 1] for name in names)
        yield {"prompt_ids": ids[:, start:], "prompt_mask": mask[:, start:], "completions": completion}


def _some_parameters(model: Any) -> list[str]:
    """Names of trained parameters near the head, without embeddings: their gradients are quick to compute."""
    tables = {
        id(p) for module in model.modules() if isinstance(module, torch.nn.Embedding) for p in module.parameters()
    }
    chosen, size = [], 0
    for name, parameter in reversed(list(model.named_parameters())):
        fits = parameter.requires_grad and id(parameter) not in tables and parameter.numel() <= COORDINATES
        if fits and size < COORDINATES:
            chosen.append(name)
            size += parameter.numel()
    return chosen
