"""Guards of the weights: damage that shows only after the update."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from grpo_lab.config.fields import AtLeast, Between, OneOf
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.training.interventions import Intervention, Outcome, Step, known


@dataclass(frozen=True)
class CheckWeights(Intervention):
    """Checks every weight after the update, and goes back to the last snapshot when one is NaN or inf.

    Stops: NaN in the weights that no gradient check can predict, such as fp16 AdamW's 0/0 at a healthy norm.
    Costs: one norm over the weights. Hides: nothing; `then=warn` is the reported check, which only prints.
    """

    name = "check_weights"
    stage = Stage.WEIGHTS
    may_roll_back = True

    max_move: Annotated[float, Between(0)] = math.inf
    """Largest change of any single weight in one step, measured if a snapshot was taken before the step."""
    then: Annotated[str, OneOf("roll_back", "warn")] = "roll_back"
    """The response: go back to the snapshot, or only record it."""
    patience: Annotated[int, AtLeast(0)] = 5
    """Refused steps in a row before the run stops."""

    def __call__(self, value: Any, step: Step) -> Outcome:
        reason = self._objection(step)
        if not reason:
            return Outcome(value)
        if self.then == "warn":
            return Outcome(value, Verdict.KEEP, reason)
        return self.refuse(value, step, reason, Verdict.ROLL_BACK, self.patience, Verdict.STOP)

    def _objection(self, step: Step) -> str:
        finite = known(step.weight_norms, "weight_norms").isfinite()
        if not bool(finite.all()):
            return f"{int((~finite).sum())} of {len(finite)} weight tensors hold NaN or inf"
        move = step.largest_move() if self.max_move < math.inf else None
        if move is not None and move > self.max_move:
            return f"a weight moved by {move:.3g} > {self.max_move:g}"
        return ""
