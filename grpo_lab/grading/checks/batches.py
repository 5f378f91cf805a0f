"""A batch around given log-probabilities, for checks of functions that a run hands one to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from grpo_lab.batch import Batch


def one_group(given: Mapping[str, Tensor]) -> Batch:
    """One prompt and its completions, with these (B, T) fields; `old_logprobs` stands in for those left out.

    >>> one_group({"old_logprobs": torch.zeros(2, 3)}).completion_mask.shape
    torch.Size([2, 3])
    """
    old = given["old_logprobs"]
    rows, width = old.shape
    return Batch(
        prompt_ids=torch.zeros(1, 3, dtype=torch.long),
        prompt_mask=torch.ones(1, 3, dtype=torch.long),
        group=torch.zeros(rows, dtype=torch.long),
        completions=torch.zeros(rows, width, dtype=torch.long),
        completion_mask=given.get("completion_mask", torch.ones(rows, width, dtype=torch.bool)),
        sampling_logprobs=given.get("sampling_logprobs", old),
        entropy=torch.zeros(rows, width),
        old_logprobs=old,
        ref_logprobs=given.get("ref_logprobs", old),
    )


def value_or_gradient(
    function: Callable[..., Any], inputs: Mapping[str, Any], of: Callable[[Tensor], Tensor] = Tensor.sum
) -> Any:
    """`function(logprobs, batch)`, or by `inputs["look"]` the gradient of a number made `of` it by `logprobs`."""
    logprobs = inputs["logprobs"].clone().requires_grad_()
    found = function(logprobs, one_group(inputs))
    if inputs["look"] == "value":
        return found
    if not found.requires_grad:
        return torch.zeros_like(logprobs)
    (gradient,) = torch.autograd.grad(of(found), logprobs)
    return gradient
