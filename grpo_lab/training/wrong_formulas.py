"""Wrong formulas from the reports, by name; tests use them as mutants."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.algorithm.combinations import Gradients
from grpo_lab.core.batch import Batch
from grpo_lab.training.objectives import Combination, all_with_prompts


def log_ratio_to_reference(logprobs: Tensor, batch: Batch) -> Tensor:
    """Compare the policy with the reference instead of the policy that sampled (TRAIN-001): (b, T), in nats.

    It grows with everything that was ever learned: exp(log_ratio) explodes in the end, and clipping binds at once.
    """
    assert batch.ref_logprobs is not None
    return logprobs - batch.ref_logprobs


def k3_exp(delta: Tensor) -> Tensor:
    """exp(delta) - delta - 1, any shape, in nats: rounding makes it negative near 0, where `expm1` does not."""
    return torch.exp(delta) - delta - 1


def naive_group_advantages(rewards: Tensor, scorable: Tensor | None = None) -> Tensor:
    """Advantages (P, G) of rewards (P, G): NaN for a group of one, whose standard deviation is 0 / 0.

    They are noise for equal rewards, because the division magnifies rounding. A completion without a score counts as 0.
    """
    deviation = rewards - rewards.mean(dim=1, keepdim=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that one number has no standard deviation
        return deviation / (rewards.std(dim=1, keepdim=True) + 1e-8)


def mask_everything(batch: Batch, pad: int) -> Tensor:
    """(B, T) bool that trains the padding after short completions, which was never sampled."""
    return torch.ones_like(batch.completion_mask)


def mask_by_token(batch: Batch, pad: int) -> Tensor:
    """(B, T) bool that leaves out every pad token: where it is the end token too, the end is never trained."""
    return batch.completion_mask & (batch.completions != pad)


def mask_with_tool(batch: Batch, pad: int) -> Tensor:
    """(B, T) bool that trains everything up to the last sampled token, and so a tool's output between two turns."""
    return batch.completion_mask.flip(1).cummax(dim=1).values.flip(1)


def overwrite_gradients(loss: Tensor, optimizer: Optimizer) -> None:
    """Keep the gradient of the last micro-batch's loss () only (grpo-dual, `copy_` for `add_`)."""
    optimizer.zero_grad()
    loss.backward()


def step_inside(loss: Tensor, optimizer: Optimizer) -> None:
    """Make an update after every micro-batch's loss () (grpo-dual), which no guard sees; nothing is left to add."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def zero_after_backward(loss: Tensor, optimizer: Optimizer) -> None:
    """Zero the gradients of the loss () between backward and step, so that the update does nothing."""
    loss.backward()
    optimizer.zero_grad(set_to_none=False)


def reference_with_adapters_on(policy: Any) -> AbstractContextManager[None]:
    """A block that leaves a policy's adapters on: its reference is the policy, and the KL is 0 whatever was learned."""
    return nullcontext()


def keep_last(gradients: Sequence[Gradients]) -> Gradients:
    """Keep the gradients of the last objective only (grpo-dual, `copy_` for `add_` in `_set_grads_from_vec`)."""
    return gradients[-1]


FORMULAS: dict[str, dict[str, Callable[..., Any]]] = {
    "log_ratio": {"reference": log_ratio_to_reference},
    "kl_estimator": {"k3_exp": k3_exp},
    "advantage_scale": {"group_naive": naive_group_advantages},
    "completion_mask": {"all": mask_everything, "not_pad": mask_by_token, "with_tool": mask_with_tool},
    "accumulation": {"overwrite": overwrite_gradients, "step_inside": step_inside, "zeroed": zero_after_backward},
}
"""By the setting of `loss` that selects one, then by name."""
COMBINATIONS = {"overwrite": Combination(all_with_prompts, keep_last)}
"""By the setting `loss.combination`."""
