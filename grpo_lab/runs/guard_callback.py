"""Guards in TRL's and transformers' trainers, by their public callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from grpo_lab.errors import ConfigError
from grpo_lab.events import Stage, Verdict
from grpo_lab.runs.hosted_guards import Guards, Report
from grpo_lab.training.attempt import Attempt, Refused
from grpo_lab.training.guards import GUARDS

POSSIBLE = (
    *("warm_up", "adaptive_learning_rate", "representable_epsilon", "dual_clip", "rollback"),
    *("skip_nonfinite", "skip_spikes", "skip_outliers", "clip_gradients", "check_weights"),
)
"""Guards that the callbacks of a trainer can hold."""
STAGES = (Stage.COEFFICIENTS, Stage.GRADIENTS, Stage.WEIGHTS)
"""The stages of these guards; own guards must belong to one of them."""
DELTA = 3.0
"""The limit of `dual_clip` where it names none."""


class GuardCallback(TrainerCallback):
    """Guards of a Trainer: `GRPOTrainer(…, callbacks=[GuardCallback("warm_up", "skip_nonfinite", "check_weights")])`.

    A refused step leaves weights, moments and AdamW's count as they were; the trainer's scheduler and `global_step` go
    on, because a callback has no way to hold them. The trainer's own clipping (`max_grad_norm`) is done here, after the
    guards have seen the norm. `report` tells of the last step, and with `events` `grpo-lab trace` reads all.

    Raises ConfigError for an unknown guard and for one that no callback can hold.
    """

    holds: Sequence[str] = POSSIBLE
    stages: Sequence[Stage] = STAGES
    reach = (
        "a callback of a Trainer does not see what this guard needs; "
        f"it can hold {', '.join(POSSIBLE)}. gl.guarded(GRPOTrainer) can hold more"
    )

    def __init__(self, *names: str, events: str | Path | None = None, snapshot_every: int = 0) -> None:
        if others := self.out_of_reach(Guards(*names)):  # before a folder is made
            raise ConfigError(f"{', '.join(others)}: {self.reach}")
        self.guards = Guards(*names, events=events, snapshot_every=snapshot_every)
        self.report: Report | None = None
        self._clips_at = 0.0
        self._attempt: Attempt | None = None
        self._rates = ExitStack()

    def out_of_reach(self, guards: Guards) -> list[str]:
        """The guards among these that this host cannot hold: by name, and your own by their stage."""
        return [
            name
            for name, stage in guards.stages.items()
            if stage not in self.stages or (name in GUARDS and name not in self.holds)
        ]

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take the trainer's clipping over, and let its logs show NaN.

        Raises ConfigError for a trainer whose gradients are not those of its model.
        """
        refuse(args)
        self._clips_at, args.max_grad_norm = args.max_grad_norm or self._clips_at, 0.0  # 0 where it trains again
        args.logging_nan_inf_filter = False
        dual = self.guards.config.guards.get("dual_clip")
        if dual is not None and getattr(args, "delta", 0) is None:
            args.delta = dual.get("delta", DELTA)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Let guards see the gradients; of a refused step none are left, so that AdamW passes over all weights."""
        model = given["model"]
        attempt, optimizer = self.begun(model, given["optimizer"]), _unwrapped(given["optimizer"])
        if attempt.verdict < Verdict.SKIP_STEP:
            with suppress(Refused):
                self.guards.transaction.before(attempt)
        if attempt.verdict >= Verdict.SKIP_STEP:
            optimizer.zero_grad(set_to_none=True)
        elif self._clips_at:
            torch.nn.utils.clip_grad_norm_(model.parameters(), self._clips_at)

    def begun(self, model: Any, optimizer: Any, beta: float | None = None) -> Attempt:
        """The step that is going on, begun if it was not, with its coefficients in the optimizer."""
        if self._attempt is None:
            inner = _unwrapped(optimizer)
            self._attempt = self.guards.begin_step(model, inner)
            self._rates.enter_context(self.guards.coefficients(self._attempt, inner, beta))
        return self._attempt

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Let guards see the weights, and carry out their verdict."""
        attempt, self._attempt = self._attempt, None
        assert attempt is not None
        if attempt.verdict < Verdict.SKIP_STEP:
            with suppress(Refused):
                self.guards.transaction.after(attempt)
        self._rates.close()
        self.report = self.guards.end_step(attempt, self.measured(state))
        if self.report.stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write down that training is over."""
        self.guards.close(self.report.reason if self.report and self.report.stop else "")

    def measured(self, state: Any) -> dict[str, float]:
        """What guards of the next step read: the KL that the trainer logged last."""
        logged = state.log_history[-1] if state.log_history else {}
        return {"kl": logged["kl"]} if "kl" in logged else {}


def refuse(args: Any) -> None:
    """Refuse a trainer with these arguments if its gradients are not those of its model. Raises ConfigError."""
    if getattr(args, "deepspeed", None):
        raise ConfigError("Guards: DeepSpeed makes the update itself, without callbacks; train without it")
    if getattr(args, "fsdp", None):
        raise ConfigError(
            "Guards: FSDP gives each process a part of every gradient; train without it, in one process or with DDP"
        )
    if getattr(args, "fp16", False):
        raise ConfigError(
            "Guards: with fp16=True gradients are scaled where a callback sees them; use bf16=True or fp32, "
            "or a loop of your own with gl.Guards(…, scaler=scaler)"
        )


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer of torch inside that of accelerate."""
    return getattr(optimizer, "optimizer", optimizer)
