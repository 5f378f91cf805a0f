"""An update of the weights, between two stages: guards see the gradients before it and the weights after it.

Clipping is a guard, too: `ClipGradients` in training/guards.py, off unless configured. After SKIP_STEP at GRADIENTS the
update is not made, to weights or moments; at WEIGHTS both keep it. ROLL_BACK and STOP at either stage restore the last
snapshot of both, at the end of the step (training/updates.py).
"""

from typing import Any

from torch.optim import Optimizer

from grpo_lab.core.hooks import Context, Stage


class Updates:
    """Updates of a policy by an optimizer. `committed`: those of this step."""

    def __init__(self, policy: Any, optimizer: Optimizer) -> None:
        self.policy, self.optimizer, self.committed = policy, optimizer, 0

    def begin(self, ctx: Context, update: int) -> None:
        """Begin an update: no gradient yet, and the step's coefficients in the optimizer."""
        assert ctx.coefficients is not None
        ctx.update = update
        self.optimizer.zero_grad()
        for group in self.optimizer.param_groups:
            group["lr"], group["eps"] = ctx.coefficients.learning_rate, ctx.coefficients.adam_eps

    def make(self, ctx: Context) -> None:
        """Make an update by the gradients that are there. Raises Refused where a guard refuses."""
        self.before(ctx)
        self.optimizer.step()
        self.after(ctx)

    def before(self, ctx: Context) -> None:
        """Let guards see the gradients. Raises Refused where one refuses the update."""
        ctx.apply(Stage.GRADIENTS, self.policy)

    def after(self, ctx: Context) -> None:
        """Count an update that was made, and let guards see the weights. Raises Refused where one refuses the step."""
        self.committed += 1
        ctx.apply(Stage.WEIGHTS, self.policy)
