"""The right formulas that a config selects by name; the wrong ones are in `training/wrong_formulas.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from grpo_lab.algorithm import kl
from grpo_lab.algorithm.advantages import ADVANTAGES
from grpo_lab.algorithm.credit import CREDIT
from grpo_lab.algorithm.importance import CORRECTIONS, LEVELS
from grpo_lab.algorithm.surrogates import SURROGATES
from grpo_lab.core.batch import Batch
from grpo_lab.core.loss import log_ratio_to_old
from grpo_lab.core.train import add_gradients, sampled_tokens


def mask_without_truncated(batch: Batch, pad: int) -> Tensor:
    """(B, T) bool: `sampled_tokens`, and nothing of a completion that was cut off at the length limit.

    The reward of an answer that was not finished says little about it (DAPO, section 3.4,
    https://arxiv.org/abs/2503.14476; TRL's mask_truncated_completions).
    """
    assert batch.ended is not None
    return batch.completion_mask & batch.ended[:, None]


FORMULAS: dict[str, dict[str, Callable[..., Any]]] = {
    "log_ratio": {"old": log_ratio_to_old},
    "kl_estimator": kl.ESTIMATORS,
    "advantage_scale": ADVANTAGES,
    "completion_mask": {"position": sampled_tokens, "not_truncated": mask_without_truncated},
    "accumulation": {"add": add_gradients},
    "credit_assignment": CREDIT,
    "importance_sampling_level": LEVELS,
    "surrogate": SURROGATES,
    "importance_sampling_mode": CORRECTIONS,
}
"""By the setting of `loss` that selects one, then by name."""
