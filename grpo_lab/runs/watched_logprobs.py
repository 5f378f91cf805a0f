"""Log-probabilities whose differences are seen: how guards reach the log-ratio in a loss that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_lab.core.hooks import Stage

See = Callable[[Stage, Tensor], Tensor]
"""Answers to a difference (B, T) with the one to go on with."""


class Watched(Tensor):
    """Log-probabilities (B, T) of the policy. Any operation on them gives an ordinary tensor of the same bits.

    `logprobs - old` is passed on as the log-ratio, and `reference - logprobs` as the KL's difference. So value and
    gradient are those of the guard itself: to shift the log-probabilities instead would give inf - inf where one of
    them is not finite.
    """

    reference: Tensor | None
    see: See

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute the operation on ordinary tensors, and let a difference be seen."""
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if func not in (Tensor.sub, Tensor.__sub__, torch.sub):
                return result
            left, right = args[:2]
            if isinstance(left, cls):
                return left.see(Stage.LOG_RATIO, result)
            return right.see(Stage.KL_DELTA, result) if left is right.reference else result


def watched(logprobs: Tensor, reference: Tensor | None, see: See) -> Tensor:
    """The log-probabilities (B, T), with the differences from them passed to `see`."""
    made = logprobs.as_subclass(Watched)
    with torch._C.DisableTorchFunctionSubclass():
        made.reference, made.see = reference, see
    return made
