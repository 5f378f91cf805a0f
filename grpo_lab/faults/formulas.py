"""Formulas by name, the right ones and the wrong ones from the reports; tests use the wrong ones as mutants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lab import kl
from grpo_lab.batch import Batch
from grpo_lab.config import Config
from grpo_lab.errors import unknown


def log_ratio_to_old(logprobs: Tensor, batch: Batch) -> Tensor:
    """Right: the policy against the one that sampled; 0 at the first update, so that clipping means something."""
    assert batch.old_logprobs is not None
    return logprobs - batch.old_logprobs


def log_ratio_to_reference(logprobs: Tensor, batch: Batch) -> Tensor:
    """Wrong (TRAIN-001): the policy against the reference. It grows with all that was ever learned, so that
    exp(log_ratio) explodes in the end and clipping binds from the start."""
    assert batch.ref_logprobs is not None
    return logprobs - batch.ref_logprobs


LOG_RATIOS: dict[str, Callable[[Tensor, Batch], Tensor]] = {
    "old": log_ratio_to_old,
    "reference": log_ratio_to_reference,
}
NEEDS_REFERENCE = {"reference"}
"""Log-ratios that need a reference model even where beta is 0."""


def k3_exp(delta: Tensor) -> Tensor:
    """Wrong by rounding: exp(delta) - delta - 1 goes negative near 0, where expm1 does not."""
    return torch.exp(delta) - delta - 1


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {**kl.ESTIMATORS, "k3_exp": k3_exp}


def check(config: Config) -> None:
    """Raise ConfigError for a formula that does not exist, with the nearest names."""
    for name, value, known in (
        ("log_ratio", config.loss.log_ratio, LOG_RATIOS),
        ("kl_estimator", config.loss.kl_estimator, KL_ESTIMATORS),
    ):
        if value not in known:
            raise unknown(f"loss.{name}", value, known)


def needs_reference(config: Config) -> bool:
    """Whether the loss compares the policy with a reference model."""
    return config.loss.beta > 0 or config.loss.log_ratio in NEEDS_REFERENCE
