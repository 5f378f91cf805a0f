"""Known mistakes of lab 3: wrong guards, each with the reason for an answer that gives their verdicts."""

import math
from collections.abc import Callable
from typing import Any

from grpo_lab.core.hooks import Verdict
from grpo_lab.course.exercises import Mistake
from grpo_lab.training.interventions import Outcome


def _guard(accepts: Callable[[float], bool]) -> Callable[[], Callable[[Any, Any], Outcome]]:
    """A guard that skips the update for all other norms, with the norm in its reason."""

    def guard(value: Any, step: Any) -> Outcome:
        fine = accepts(step.grad_norm)
        return Outcome(value) if fine else Outcome(value, Verdict.SKIP_STEP, str(step.grad_norm))

    return lambda: guard


FINITE_FIRST = (
    Mistake("A norm of NaN is accepted here: NaN > 10 is False.", _guard(lambda norm: not norm > 10)),
    Mistake("A norm of inf is accepted here.", _guard(lambda norm: norm <= 10 or norm == math.inf)),
    Mistake("Every norm is refused here.", _guard(lambda norm: False)),
)
