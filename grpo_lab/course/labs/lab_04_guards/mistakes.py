"""Known mistakes of lab 4: wrong updates, each with the reason for an answer that gives their results."""

from collections.abc import Callable

from torch.optim import Optimizer

from grpo_lab.course.exercises import Mistake


def _update(accepts: Callable[[float, float], bool], zeroed: bool = False) -> Callable[[Optimizer, float, float], bool]:
    """Update where a norm is accepted; with `zeroed` also where it is not, after the gradients were set to zero."""

    def function(optimizer: Optimizer, norm: float, limit: float) -> bool:
        fine = accepts(norm, limit)
        if zeroed and not fine:
            optimizer.zero_grad(set_to_none=False)
        if zeroed or fine:
            optimizer.step()
        return fine

    return function


UPDATE_OR_SKIP = (
    Mistake(
        "The gradients were set to zero and a step was made: AdamW's first moment still moves the weights. Do not "
        "call step.",
        _update(lambda norm, limit: norm <= limit, zeroed=True),
    ),
    Mistake("A norm of NaN makes a step here: NaN > limit is False.", _update(lambda norm, limit: not norm > limit)),
)
