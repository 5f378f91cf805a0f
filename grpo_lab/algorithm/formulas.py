"""The right formulas that a config selects by name; the wrong ones are in `training/faults/formulas.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.algorithm import kl
from grpo_lab.algorithm.advantages import ADVANTAGES
from grpo_lab.algorithm.credit import CREDIT
from grpo_lab.algorithm.importance import CORRECTIONS, LEVELS
from grpo_lab.algorithm.surrogates import SURROGATES
from grpo_lab.core.batch import Batch
from grpo_lab.core.loss import log_ratio_to_old


def mask_by_position(batch: Batch, pad: int) -> Tensor:
    """(B, T) bool: True up to and including the end token, as sampling recorded it."""
    return batch.completion_mask


def mask_without_truncated(batch: Batch, pad: int) -> Tensor:
    """(B, T) bool: `mask_by_position`, and nothing of a completion that was cut off at the length limit.

    The reward of an answer that was not finished says little about it (DAPO, section 3.4,
    https://arxiv.org/abs/2503.14476; TRL's mask_truncated_completions).
    """
    assert batch.ended is not None
    return batch.completion_mask & batch.ended[:, None]


def add_gradients(loss: Tensor, optimizer: Optimizer) -> None:
    """Add the gradients of a loss () to those of the micro-batches before."""
    loss.backward()


FORMULAS: dict[str, dict[str, Callable[..., Any]]] = {
    "log_ratio": {"old": log_ratio_to_old},
    "kl_estimator": kl.ESTIMATORS,
    "advantage_scale": ADVANTAGES,
    "completion_mask": {"position": mask_by_position, "not_truncated": mask_without_truncated},
    "accumulation": {"add": add_gradients},
    "credit_assignment": CREDIT,
    "importance_sampling_level": LEVELS,
    "surrogate": SURROGATES,
    "importance_sampling_mode": CORRECTIONS,
}
"""By the setting of `loss` that selects one, then by name."""
