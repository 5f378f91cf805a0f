"""Known mistakes of lab 8: wrong objectives, sums and updates, each with the reason for an answer that gives its
results."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.exercises import Mistake

# The objective -------------------------------------------------------------------------------------------------------

Distance = Callable[[Tensor, Tensor], Tensor]
"""(a difference of log-probabilities (B, T), mask (B, T)) -> that difference as exp takes it."""
Mean = Callable[[Tensor, Tensor], Tensor]


def _bounded(limit: float, below: float | None = None) -> Distance:
    low = -limit if below is None else below
    return lambda gap, mask: gap.masked_fill(mask == 0, 0.0).clamp(low, limit)


def _clamped_alone(limit: float) -> Distance:
    return lambda gap, mask: gap.clamp(-limit, limit)


def _times_mask(limit: float) -> Distance:
    return lambda gap, mask: (gap * mask).clamp(-limit, limit)


def _over_tokens(per_token: Tensor, mask: Tensor) -> Tensor:
    return (per_token * mask).sum() / mask.sum()


def _surrogate(ratio: Tensor, advantages: Tensor) -> Tensor:
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


_RATIO, _DELTA = _bounded(5.0), _bounded(10.0)


def _objective(
    log_ratio: Distance = _RATIO,
    delta: Distance = _DELTA,
    ratio: Callable[[Tensor], Tensor] = torch.exp,
    surrogate: Callable[[Tensor, Tensor], Tensor] = _surrogate,
    k3: Callable[[Tensor], Tensor] = lambda delta: torch.expm1(delta) - delta,
    beta: float = 0.05,
    mean: Mean = _over_tokens,
    to_reference: bool = False,
) -> Callable[..., Tensor]:
    """The objective () of lab 8 with one of its parts replaced; the defaults give the right one."""

    def function(
        logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor, mask: Tensor
    ) -> Tensor:
        r = ratio(log_ratio(logprobs - (ref_logprobs if to_reference else old_logprobs), mask))
        divergence = k3(delta(ref_logprobs - logprobs, mask))
        return mean(surrogate(r, advantages[:, None]) + beta * divergence, mask)

    return function


_NO_REPLACING = (
    "0 · NaN is NaN, in backward too: a mask that is multiplied removes nothing. Replace padding before exp."
)
_AFTER_EXP = "The clamp comes after exp here: where exp overflows, backward multiplies the clamp's 0 by inf."
OBJECTIVE = (
    Mistake(
        "The ratio compares the policy with the reference here, and not with old_logprobs.",
        _objective(to_reference=True),
    ),
    *(
        Mistake(_NO_REPLACING, _objective(log_ratio=one(5.0), delta=other(10.0)))
        for one in (_bounded, _clamped_alone, _times_mask)
        for other in (_bounded, _clamped_alone, _times_mask)
        if one is not _bounded or other is not _bounded
    ),
    Mistake("The log-ratio has no bound here.", _objective(log_ratio=_bounded(math.inf))),
    Mistake("delta has no bound here.", _objective(delta=_bounded(math.inf))),
    Mistake("Neither the log-ratio nor delta has a bound here.", _objective(_bounded(math.inf), _bounded(math.inf))),
    Mistake(_AFTER_EXP, _objective(_bounded(math.inf), ratio=lambda x: x.exp().clamp(max=math.exp(5.0)))),
    Mistake(
        _AFTER_EXP,
        _objective(delta=_bounded(math.inf), k3=lambda delta: torch.expm1(delta).clamp(max=math.expm1(10.0)) - delta),
    ),
    Mistake(
        "The size is right and the sign of the surrogate is not.", _objective(surrogate=lambda r, a: -_surrogate(r, a))
    ),
    Mistake(
        "The larger product is taken here, and not the smaller one.",
        _objective(surrogate=lambda r, a: -torch.max(r * a, r.clamp(0.8, 1.2) * a)),
    ),
    Mistake("The ratio is clipped nowhere here.", _objective(surrogate=lambda r, a: -r * a)),
    Mistake("exp is missing in the ratio here.", _objective(ratio=lambda log_ratio: 1 + log_ratio)),
    Mistake("The KL is missing here.", _objective(beta=0.0)),
    Mistake("The KL is subtracted here.", _objective(beta=-0.05)),
    Mistake(
        "delta is policy minus reference here.",
        _objective(delta=lambda gap, mask: _bounded(10.0)(-gap, mask)),
    ),
    Mistake("The KL is a hinge here, and not k3.", _objective(k3=lambda delta: delta.clamp(min=0))),
    Mistake(
        "The sum is divided by all places here, padding among them.",
        _objective(mean=lambda per_token, mask: (per_token * mask).mean()),
    ),
    Mistake(
        "This is the mean of the completions' means; every trained token counts the same.",
        _objective(mean=lambda per_token, mask: ((per_token * mask).sum(dim=1) / mask.sum(dim=1)).mean()),
    ),
    Mistake("This is a sum: nothing divides it.", _objective(mean=lambda per_token, mask: (per_token * mask).sum())),
)

# The sum of gradients ------------------------------------------------------------------------------------------------

Added = Callable[[Tensor, Tensor], Tensor]


def _set(added: Added, first: Callable[[Tensor], Tensor] = torch.clone) -> Callable[..., None]:
    """The function of lab 8 with another rule for the first gradient of a parameter, or for those after it."""

    def function(parameters: Sequence[Any], gradients: Sequence[Tensor]) -> None:
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = first(g) if p.grad is None else added(p.grad, g)

    return function


_CHANGED = "The sum is right, and a given gradient was changed: it became .grad itself, or was added to in place."
GRADIENTS = (
    Mistake(
        "Only the last micro-batch is left: each one overwrites those before it.", _set(lambda old, new: new.clone())
    ),
    Mistake("Only the first micro-batch is left: the others are not added.", _set(lambda old, new: old)),
    Mistake(_CHANGED, _set(lambda old, new: old.add_(new), lambda g: g)),
    Mistake(_CHANGED, _set(lambda old, new: new.add_(old))),
    Mistake("The later micro-batches are subtracted here.", _set(lambda old, new: old - new)),
    Mistake("The sum is halved with each micro-batch here.", _set(lambda old, new: (old + new) / 2)),
)

# The update ----------------------------------------------------------------------------------------------------------


Share = Callable[[Tensor, int], Tensor]
"""(the loss () of a micro-batch, their number) -> the loss () that is differentiated."""
BETWEEN = 10.0
"""A norm above those of usual batches, and below those of large ones."""


def _accumulate(
    parameters: Any, optimizer: Any, losses: Sequence[Callable[[], Tensor]], share: Share, inside: str
) -> None:
    """Call backward for each micro-batch; `inside` names another call: clear_before, step, clip or clear_after."""
    for loss in losses:
        if inside == "clear_before":
            optimizer.zero_grad()
        share(loss(), len(losses)).backward()
        if inside == "step":
            optimizer.step()
        if inside == "clip":
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        if inside == "clear_after":
            optimizer.zero_grad()


def _update(
    cleared: bool = True,
    share: Share = lambda loss, count: loss / count,
    inside: str = "",
    limit: float = 1.0,
    steps: int = 1,
    fine: Callable[[Tensor], bool | Tensor] = torch.isfinite,
    zeroed: bool = False,
    returned: Callable[[Tensor], float] = float,
) -> Callable[..., float]:
    """The update of lab 8 with one of its parts replaced; `fine` tells from the norm whether a step is made."""

    def function(parameters: Any, optimizer: Any, losses: Sequence[Callable[[], Tensor]]) -> float:
        if cleared:
            optimizer.zero_grad()
        _accumulate(parameters, optimizer, losses, share, inside)
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        if zeroed and not norm.isfinite():
            optimizer.zero_grad(set_to_none=False)
        for _ in range(steps if fine(norm) else 0):
            optimizer.step()
        return returned(norm)

    return function


_INSIDE = "optimizer.step() is in the loop here: it makes an update for every micro-batch."
UPDATE = (
    Mistake("The sum of the micro-batches is taken here, and not their mean.", _update(share=lambda loss, count: loss)),
    Mistake(
        "The gradient of the update before is still in .grad: zero_grad() is missing before the loop.",
        _update(cleared=False),
    ),
    Mistake(
        "Only the last micro-batch is in the gradient: the others were cleared before the step, or left out.",
        _update(inside="clear_before"),
    ),
    *(Mistake(_INSIDE, _update(inside="step", steps=steps)) for steps in (0, 1)),
    Mistake("The gradient was cleared between backward and step.", _update(inside="clear_after")),
    Mistake("The optimizer steps with a gradient of 0 here.", _update(share=lambda loss, count: 0 * loss)),
    Mistake("The gradient is clipped nowhere here.", _update(limit=math.inf)),
    Mistake(
        "The gradient is clipped in the loop too: an incomplete gradient has another norm.", _update(inside="clip")
    ),
    Mistake(
        "The norm after clipping is returned here; the norm before it is wanted.",
        _update(returned=lambda norm: min(float(norm), 1.0)),
    ),
    Mistake(
        "A step was made from a gradient with NaN, and now the weights are NaN. Test whether the norm is finite: "
        "NaN > x is False for every x.",
        _update(fine=lambda norm: True),
    ),
    Mistake(
        "The gradient with NaN was set to zero, and a step was made: AdamW's first moment still moves the weights. "
        "Make no step.",
        _update(fine=lambda norm: True, zeroed=True),
    ),
    Mistake(
        "A large norm makes no step here; it is clipped, and then the step is made.",
        _update(fine=lambda norm: norm < BETWEEN),
    ),
    Mistake(
        "A comparison with a limit decides here: NaN > x is False, so that NaN makes a step, and a large norm makes "
        "none.",
        _update(fine=lambda norm: not norm > BETWEEN),
    ),
    Mistake("optimizer.step() is never called here.", _update(steps=0)),
    Mistake("optimizer.step() is called twice here.", _update(steps=2)),
    Mistake("The size is right and the sign of the gradient is not.", _update(share=lambda loss, count: -loss / count)),
)
