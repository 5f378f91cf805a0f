"""Estimators of KL(policy || reference) from one sampled token (http://joschu.net/blog/kl-approx.html).

Each is a function of delta = ref_logprobs - logprobs, in nats. In the loss, the expected gradient of k1 is zero,
that of k2 is the gradient of KL(policy || ref), that of k3 that of KL(ref || policy); the hinge is not a KL.
"""

from __future__ import annotations

from collections.abc import Callable

import torch  # noqa: F401, the doctests use it
from torch import Tensor

from grpo_lab.core.loss import k3
from grpo_lab.core.shapes import Float


def k1(delta: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """-delta: unbiased value, may be negative.

    >>> k1(torch.tensor([0.5]))
    tensor([-0.5000])
    """
    return -delta


def k2(delta: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """delta^2 / 2: biased value, never negative.

    >>> k2(torch.tensor([2.0]))
    tensor([2.])
    """
    return delta.square() / 2


def hinge(delta: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """clamp(delta, 0, 10): the reported "fix" of an exploding k3. It is 0 where the policy is the likelier one.

    >>> hinge(torch.tensor([-3.0, 2.0]))
    tensor([0., 2.])
    """
    return delta.clamp(0, 10)


def exact(log_p: Float[Tensor, "... V"], log_q: Float[Tensor, "... V"]) -> Float[Tensor, "..."]:
    """KL(p || q) = sum p (log p - log q) over the whole vocabulary, in nats; the estimators estimate it.

    >>> exact(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log())
    tensor(0.1438)
    """
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "hinge": hinge}


def estimate(
    logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"], estimator: str = "k3"
) -> Float[Tensor, "B T"]:
    """Per-token KL estimate in nats; k3 is that of DeepSeekMath (eq. 4, https://arxiv.org/abs/2402.03300).

    >>> estimate(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]))
    tensor([[0.]])
    """
    return ESTIMATORS[estimator](ref_logprobs - logprobs)
