"""AdamW, loss scale and snapshots: each update is a transaction, refused without a trace or undone by a rollback."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from grpo_lab.algorithm.combinations import Gradients, cosine
from grpo_lab.config.schema import Config
from grpo_lab.errors import ModelError
from grpo_lab.events import Stage, Verdict
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.training.attempt import Attempt
from grpo_lab.training.interventions import Coefficients, Step, known
from grpo_lab.training.objectives import resolve
from grpo_lab.training.snapshots import Snapshots

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * min(1.0, done))),
}
"""Learning rate as a factor, from the share of updates that were committed."""


class Updates:
    """The updates of one policy. `count` of them are in its weights; `committed` of them by the current step.

    Raises ModelError for a policy without a trainable weight.
    """

    def __init__(self, policy: Any, config: Config) -> None:
        trained = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
        if not trained:
            raise ModelError(f"model {config.model.name!r} has no weight that requires a gradient: unfreeze some")
        self.policy = policy
        self.names, self.parameters = zip(*trained, strict=True)
        self.num_parameters = sum(p.numel() for p in self.parameters)
        # Settings are those of each update. The fused kernel computes in fp32, which would hide fp16 weights' failures.
        fused = all(p.dtype == torch.float32 for p in self.parameters) or None  # None: as torch chooses
        self.optimizer = torch.optim.AdamW(self.parameters, fused=fused)
        self.scaler = torch.amp.GradScaler(policy.device.type, enabled=PRECISIONS[config.model.precision].scaler)
        self.snapshots = Snapshots(self.parameters, self.optimizer)
        self.count, self.committed, self.healthy, self._unscaled = 0, 0, True, False
        self._set_aside: list[Gradients] = []
        self._moved: tuple[tuple[int, int], float | None] = (-1, 0), None

    def coefficients(self, config: Config) -> Coefficients:
        """The step's coefficients as configured and scheduled, before any guard."""
        loss, optimizer = config.loss, config.optimizer
        share = self.count / (config.run.num_steps * loss.num_iterations)
        rate = optimizer.learning_rate * SCHEDULES[optimizer.schedule](share)
        named = [objective for objective in resolve(config) if objective.name]
        betas = {objective.name: objective.beta for objective in named}
        bands = {objective.name: objective.band for objective in named if objective.band}
        general = (rate, loss.beta, loss.epsilon, loss.epsilon_high, optimizer.adam_eps)
        return Coefficients(*general, betas=betas, kl_bands=bands)

    def begin_step(self, index: int) -> None:
        """Take a snapshot if one is due and the weights are healthy."""
        self.committed, self._unscaled = 0, False
        if self.healthy:
            self.snapshots.take(index, self.count)

    def begin(self, attempt: Attempt, update: int) -> None:
        """Begin an update: no gradient yet, and the step's coefficients in the optimizer."""
        attempt.replace(update=update, grad_norm=None, weight_norms=None)
        self._set_aside = []
        use, configured = known(attempt.step.coefficients, "coefficients"), attempt.step.config.optimizer
        self.optimizer.zero_grad()
        for group in self.optimizer.param_groups:
            group["lr"], group["eps"] = use.learning_rate, use.adam_eps
            group["betas"] = (configured.adam_beta1, configured.adam_beta2)
            group["weight_decay"] = configured.weight_decay

    def set_aside(self) -> None:
        """Take one objective's gradients out of the policy, so that those of the next begin with none."""
        self._set_aside.append([p.grad for p in self.parameters])
        self.optimizer.zero_grad()

    def commit(self, attempt: Attempt, way: Callable[[Sequence[Gradients]], Gradients]) -> None:
        """Make an update by the combined gradients, with stage GRADIENTS before it and WEIGHTS after it."""
        self._combine(attempt, way)
        self.scaler.unscale_(self.optimizer)
        self._unscaled = True
        attempt.apply(Stage.GRADIENTS, self.policy)
        self._apply(attempt)
        attempt.apply(Stage.WEIGHTS, self.policy)

    def _combine(self, attempt: Attempt, way: Callable[[Sequence[Gradients]], Gradients]) -> None:
        """Give the policy the combined gradients, and note the smallest cosine between two objectives' gradients."""
        attempt.turn_to(None)
        if pairs := list(itertools.combinations(self._set_aside, 2)):
            smallest = torch.stack([cosine(*pair) for pair in pairs]).min()
            attempt.step.recorder.metric("gradients/cosine", smallest, attempt.step.update)
        for parameter, gradient in zip(self.parameters, way(self._set_aside), strict=True):
            parameter.grad = gradient
        self._set_aside = []

    def _apply(self, attempt: Attempt) -> None:
        """Make one AdamW update. GradScaler (fp16) leaves out one with inf gradients."""
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._unscaled = False
        if self.scaler.get_scale() < before:
            reason = f"inf at loss scale {before:g}; update left out"
            attempt.record_action("grad_scaler", Stage.GRADIENTS, Verdict.CHANGED, reason)
            return
        self.committed += 1
        eps = known(attempt.step.coefficients, "coefficients").adam_eps
        facts = {"adam_eps": eps, "adam_eps_in_weights_dtype": float(torch.tensor(eps, dtype=self.parameters[0].dtype))}
        states = [self.optimizer.state[p] for p in self.parameters if p in self.optimizer.state]
        moments = [state["exp_avg"] for state in states] + [state["exp_avg_sq"] for state in states]
        names = [*self.names, *self.names]
        attempt.step.recorder.parameters("moments", names, moments, attempt.step.update, facts)

    def end_step(self, verdict: Verdict, healthy: bool | None) -> None:
        """Carry out the step's verdict. `healthy` says whether its last weights were finite; None if it had none.

        Raises RunError for a rollback where no snapshot was taken.
        """
        self.healthy = self.healthy if healthy is None else healthy
        self.optimizer.zero_grad()
        if self._unscaled:
            self.scaler.update()
        if verdict >= Verdict.ROLL_BACK:
            self.count = self.snapshots.restore()
            self.healthy, self.committed = True, 0
        self.count += self.committed

    def largest_move(self, index: int) -> float | None:
        """Largest change of any single weight since step `index` began, measured once an update; None if unknown."""
        if self._moved[0] != (index, self.committed):
            self._moved = (index, self.committed), self.snapshots.largest_move(index)
        return self._moved[1]

    def metrics(self, step: Step) -> dict[str, float]:
        """The coefficients as used, the loss scale, and the largest change of a weight, as far as each is known."""
        use, move = step.coefficients, step.largest_move()
        found = {"learning_rate": use.learning_rate, "beta": use.beta} if use else {}
        if use and use.betas:
            each = {f"beta/{name}": beta for name, beta in use.betas.items()}
            found |= {"beta": statistics.fmean(each.values()), **each}
        found |= {"loss_scale": self.scaler.get_scale()} if self.scaler.is_enabled() else {}
        return found if move is None else {**found, "weights/max_move": move}
