"""Known mistakes of lab 1: wrong formulas, each with the reason for an answer that gives its results."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.exercises import Mistake

Formula = Callable[..., Tensor]

# Advantages ----------------------------------------------------------------------------------------------------------


def _advantages(
    divisor: Callable[[Tensor], Tensor] = lambda centred: _variance(centred).sqrt(),
    dims: tuple[int, ...] = (1,),
    equal: str = "zero",
    sign: float = 1.0,
) -> Callable[[Tensor], Tensor]:
    """The advantages (P, G) of lab 1 with one of its parts replaced.

    `divisor` takes rewards minus their mean over `dims`; `equal` says whether groups of equal rewards get a 0.
    """

    def function(rewards: Tensor) -> Tensor:
        centred = rewards - rewards.mean(dims, keepdim=True)
        found = sign * centred / divisor(centred)
        same = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
        return found.masked_fill(same, 0.0) if equal == "zero" else found

    return function


def _variance(centred: Tensor, dim: int = 1) -> Tensor:
    """Of a sample, without torch's warning about one number: NaN then."""
    return centred.square().sum(dim, keepdim=True) / (centred.shape[dim] - 1)


_REWARD_MINUS_MEAN = "This is reward - mean. Divide it by the standard deviation of the group."
ADVANTAGES = (
    Mistake(
        "The std divides by the size of the group. A sample's std divides by one less, as torch does by default.",
        _advantages(lambda centred: centred.square().mean(dim=1, keepdim=True).sqrt()),
    ),
    Mistake(_REWARD_MINUS_MEAN, _advantages(torch.ones_like)),
    Mistake("The size is right and the sign is not.", _advantages(sign=-1.0)),
    Mistake("This divides by the variance; the standard deviation is its square root.", _advantages(_variance)),
)

# The loss per token --------------------------------------------------------------------------------------------------


def _ratio(new: Tensor, old: Tensor) -> Tensor:
    return (new - old).exp()


def _loss(
    ratio: Formula = _ratio,
    ends: Callable[[float, float], tuple[float, float]] = lambda low, high: (1 - low, 1 + high),
    pick: Callable[[Tensor, Tensor], Tensor] = torch.min,
    sign: float = -1.0,
    of_advantages: Formula = torch.clone,
) -> Formula:
    """The loss (B, T) of lab 1 with one of its parts replaced; the defaults give the right one."""

    def function(
        logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, epsilon: float, epsilon_high: float
    ) -> Tensor:
        r, a = ratio(logprobs, old_logprobs), of_advantages(advantages)[:, None]
        return sign * pick(r * a, r.clamp(*ends(epsilon, epsilon_high)) * a)

    return function


def _log_clipped(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, epsilon: float, epsilon_high: float
) -> Tensor:
    log_ratio, a = logprobs - old_logprobs, advantages[:, None]
    return -torch.min(log_ratio.exp() * a, log_ratio.clamp(-epsilon, epsilon_high).exp() * a)


_NO_EXP = "exp is missing: the ratio is exp(logprobs - old_logprobs)."
POLICY_LOSS = (
    Mistake("The size is right and the sign is not: the loss is minus the smaller product.", _loss(sign=1.0)),
    Mistake("This is the old policy over the new one.", _loss(ratio=lambda new, old: (old - new).exp())),
    Mistake(_NO_EXP, _loss(ratio=lambda new, old: new - old)),
    Mistake(_NO_EXP, _loss(ratio=lambda new, old: 1 + new - old)),
    Mistake("The larger product is taken here, and not the smaller one.", _loss(pick=torch.max)),
    Mistake("The ratio is clipped nowhere here.", _loss(pick=lambda full, clipped: full)),
    Mistake(
        "The clipped product is taken everywhere; it counts only where it is the smaller one.",
        _loss(pick=lambda full, clipped: clipped),
    ),
    Mistake(
        "The range ends at 1 + epsilon here, and not at 1 + epsilon_high.",
        _loss(ends=lambda low, _: (1 - low, 1 + low)),
    ),
    Mistake(
        "The range begins at 1 - epsilon_high here, and not at 1 - epsilon.",
        _loss(ends=lambda _, high: (1 - high, 1 + high)),
    ),
    Mistake("The range has no lower end here.", _loss(ends=lambda _, high: (0.0, 1 + high))),
    Mistake("The range has no upper end here.", _loss(ends=lambda low, _: (1 - low, torch.inf))),
    Mistake("The bounds hold for the ratio; here they bound the log-ratio.", _log_clipped),
    Mistake("The advantage has lost its sign here.", _loss(of_advantages=torch.abs)),
    Mistake(
        "The values are right and have no gradient: something on the way to the loss was detached.",
        lambda **given: _loss()(**given).detach(),
    ),
)

# Aggregation ---------------------------------------------------------------------------------------------------------

_RIGHT: dict[str, Formula] = {
    "token": lambda values, mask: values.sum() / mask.sum(),
    "sequence": lambda values, mask: (values.sum(dim=1) / mask.sum(dim=1)).mean(),
    "constant": lambda values, mask: values.sum() / mask.numel(),
}
_PADDED: dict[str, Formula] = {
    "token": _RIGHT["constant"],
    "sequence": lambda values, _: values.mean(dim=1).mean(),
    "constant": _RIGHT["constant"],
}


def _filled(per_token: Tensor, mask: Tensor) -> Tensor:
    return per_token.masked_fill(mask == 0, 0.0)


def _mean(of: Formula = _filled, **changed: Formula) -> Formula:
    """The mean of lab 1 with the formula of some `how` replaced, or with another way to treat padding."""

    def function(per_token: Tensor, mask: Tensor, how: str) -> Tensor:
        return {**_RIGHT, **changed}[how](of(per_token, mask), mask)

    return function


def _as_given(per_token: Tensor, mask: Tensor) -> Tensor:
    return per_token


def _without_nan(per_token: Tensor, mask: Tensor) -> Tensor:
    return per_token.nan_to_num()


def _minus(how: str) -> Formula:
    return lambda values, mask: -_RIGHT[how](values, mask)


_UNMASKED = "Padding counts in the sum here: the mask is not applied to it."
_NAN_ALONE = "Padding counts in the sum here: only NaN was replaced."
_SIGN = "The size is right and the sign is not."
AGGREGATE = (
    # This comes first: where every case has NaN, the mask may also not be applied at all, and the text holds then too.
    Mistake(
        "NaN of the padding is in the sum. Replace masked numbers before you sum: multiplied by the mask they stay, "
        "because 0 · NaN is NaN.",
        _mean(of=lambda per_token, mask: per_token * mask),
    ),
    *(Mistake(_UNMASKED, _mean(of=_as_given, **divided)) for divided in ({}, _PADDED, {"token": _RIGHT["constant"]})),
    *(Mistake(_NAN_ALONE, _mean(of=_without_nan, **divided)) for divided in ({}, _PADDED)),
    Mistake(
        "'token' and 'constant' are the other way round here.",
        _mean(token=_RIGHT["constant"], constant=_RIGHT["token"]),
    ),
    Mistake(
        "'token' and 'sequence' are the other way round here.",
        _mean(token=_RIGHT["sequence"], sequence=_RIGHT["token"]),
    ),
    Mistake(
        "'token' is divided by all places here, padding among them; only trained tokens count.",
        _mean(token=_RIGHT["constant"]),
    ),
    Mistake(
        "'constant' is divided by the trained tokens here; all places count in it.", _mean(constant=_RIGHT["token"])
    ),
    Mistake("'sequence' is the mean over all trained tokens here.", _mean(sequence=_RIGHT["token"])),
    Mistake("'token' is the mean of the completions' means here.", _mean(token=_RIGHT["sequence"])),
    Mistake(
        "Each completion is divided by the width here, and not by its own length.", _mean(sequence=_PADDED["sequence"])
    ),
    Mistake("'token' is a sum here: nothing divides it.", _mean(token=lambda values, _: values.sum())),
    Mistake(
        "The means of the completions are added here; 'sequence' is the mean of them.",
        _mean(sequence=lambda values, mask: (values.sum(dim=1) / mask.sum(dim=1)).sum()),
    ),
    Mistake(
        "'constant' is divided by the width alone here; the number of completions counts too.",
        _mean(constant=lambda values, mask: values.sum() / mask.shape[1]),
    ),
    Mistake(
        "'constant' is divided by the number of completions alone here; the width counts too.",
        _mean(constant=lambda values, mask: values.sum() / mask.shape[0]),
    ),
    Mistake(_SIGN, _mean(token=_minus("token"), constant=_minus("constant"))),
    Mistake(_SIGN, _mean(**{how: _minus(how) for how in _RIGHT})),
)

# Finite differences --------------------------------------------------------------------------------------------------

_Curve = Callable[[float], float]


def _difference(f: _Curve, x: float, h: float) -> float:
    return f(x + h) - f(x - h)


def _over(distance: Callable[[float], float]) -> Callable[[_Curve, float, float], Any]:
    return lambda f, x, h: _difference(f, x, h) / distance(h)


SLOPE = (
    Mistake("This is the slope from x to x + h: one side alone.", lambda f, x, h: (f(x + h) - f(x)) / h),
    Mistake("This is the slope from x - h to x: one side alone.", lambda f, x, h: (f(x) - f(x - h)) / h),
    Mistake("The difference is divided by h here; the distance between x + h and x - h is 2h.", _over(lambda h: h)),
    Mistake("The difference is divided by 2 here; the distance between x + h and x - h is 2h.", _over(lambda h: 2.0)),
    Mistake("This is the difference of the values; nothing divides it.", _difference),
    Mistake("The size is right and the sign is not.", _over(lambda h: -2 * h)),
)
