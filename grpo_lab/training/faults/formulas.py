"""Formulas by name, the right ones and the wrong ones from the reports; tests use the wrong ones as mutants."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.algorithm import kl
from grpo_lab.algorithm.advantages import SCALES, group_advantages
from grpo_lab.algorithm.batch import Batch
from grpo_lab.config import user_code
from grpo_lab.config.schema import Config


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


def naive_group_advantages(rewards: Tensor, scorable: Tensor | None = None) -> Tensor:
    """Wrong for a group of one: its standard deviation is 0 / 0, and so is every number after it.

    Wrong for equal rewards too, where rounding leaves noise that the division blows up, and for completions that
    nobody scored, which count here as 0.
    """
    deviation = rewards - rewards.mean(dim=1, keepdim=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that one number has no standard deviation
        return deviation / (rewards.std(dim=1, keepdim=True) + 1e-8)


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    **{name: partial(group_advantages, scale=name) for name in SCALES},
    "group_naive": naive_group_advantages,
}


def mask_by_position(batch: Batch, pad: int) -> Tensor:
    """Right: True up to and including the end token, as sampling wrote it down."""
    return batch.completion_mask


def mask_everything(batch: Batch, pad: int) -> Tensor:
    """Wrong: trains the padding after short completions, which nobody sampled."""
    return torch.ones_like(batch.completion_mask)


def mask_by_token(batch: Batch, pad: int) -> Tensor:
    """Wrong where the pad token is the end token: the real end token is never trained either."""
    return batch.completion_mask & (batch.completions != pad)


MASKS: dict[str, Callable[[Batch, Any], Tensor]] = {
    "position": mask_by_position,
    "all": mask_everything,
    "not_pad": mask_by_token,
}


def add_gradients(loss: Tensor, optimizer: Optimizer) -> None:
    """Right: backward adds to the gradients of the micro-batches before."""
    loss.backward()


def overwrite_gradients(loss: Tensor, optimizer: Optimizer) -> None:
    """Wrong (grpo-dual, `copy_` for `add_`): only the last micro-batch's gradient is left."""
    optimizer.zero_grad()
    loss.backward()


def step_inside(loss: Tensor, optimizer: Optimizer) -> None:
    """Wrong (grpo-dual): every micro-batch makes an update of its own, seen by no guard, and nothing is left to add."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def zero_after_backward(loss: Tensor, optimizer: Optimizer) -> None:
    """Wrong: zero_grad between backward and step. The update finds nothing to do."""
    loss.backward()
    optimizer.zero_grad(set_to_none=False)


ACCUMULATIONS: dict[str, Callable[[Tensor, Optimizer], None]] = {
    "add": add_gradients,
    "overwrite": overwrite_gradients,
    "step_inside": step_inside,
    "zeroed": zero_after_backward,
}


FORMULAS: dict[str, dict[str, Callable[..., Any]]] = {
    "log_ratio": LOG_RATIOS,
    "kl_estimator": KL_ESTIMATORS,
    "advantage_scale": ADVANTAGES,
    "completion_mask": MASKS,
    "accumulation": ACCUMULATIONS,
}
"""By the setting of `loss` that names one."""


class Formulas(NamedTuple):
    """The functions that a config names, each by its setting."""

    log_ratio: Any
    kl_estimator: Any
    advantage_scale: Any
    completion_mask: Any
    accumulation: Any


def chosen(config: Config, own: bool = True) -> Formulas:
    """The formulas of a config. Without `own`, the user's files are not run, and None stands for what they define.

    Raises ConfigError for a formula that does not exist, with the nearest names.
    """
    names = {setting: getattr(config.loss, setting) for setting in FORMULAS}
    skipped = {setting for setting, name in names.items() if user_code.is_own(name) and not own}
    found = (
        None if setting in skipped else user_code.named(f"loss.{setting}", names[setting], known)
        for setting, known in FORMULAS.items()
    )
    return Formulas(*found)


def needs_reference(config: Config) -> bool:
    """Whether the loss compares the policy with a reference model, as a log-ratio of the user's own may."""
    log_ratio = config.loss.log_ratio
    return config.loss.beta > 0 or log_ratio in NEEDS_REFERENCE or user_code.is_own(log_ratio)
