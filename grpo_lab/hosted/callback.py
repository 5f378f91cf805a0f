"""Guards in TRL's and transformers' trainers, by their public callbacks."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from grpo_lab.core.hooks import Refused, Stage, Verdict
from grpo_lab.errors import ConfigError
from grpo_lab.hosted.guards import OF_THE_UPDATE, Guards, Report, check_folder
from grpo_lab.runs import checkpoints
from grpo_lab.training.batches import moved
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import Step

POSSIBLE = [name for name, kind in GUARDS.items() if kind.stage in OF_THE_UPDATE and name != "adaptive_beta"]
"""Guards that the callbacks of a trainer can hold: a callback does not reach the beta of a loss."""
DELTA = 3.0
"""The limit of `dual_clip` where it names none."""
FOLDER = "guards"
"""The folder of the guards' state in a checkpoint of the trainer."""


class GuardCallback(TrainerCallback):
    """Guards of a Trainer: `GRPOTrainer(…, callbacks=[GuardCallback("warm_up", "skip_nonfinite", "check_weights")])`.

    A refused step leaves weights, moments and AdamW's count as they were; the trainer's scheduler and `global_step` go
    on, because a callback has no way to hold them. The trainer clips (`max_grad_norm`) after the guards have seen the
    gradients; its arguments are never changed. Its checkpoints hold the state of the guards, and its logs have
    `guards/verdict` (0 keep to 4 stop, the worst since the last row), `guards/refused` (steps so far) and
    `guards/learning_rate` (as applied). `report` tells of the last step, and with `events` `grpo-lab trace` reads all.

    Raises ConfigError for an unknown guard and for one that no callback can hold.
    """

    holds: Sequence[str] = POSSIBLE
    stages: Sequence[Stage] = OF_THE_UPDATE
    """The stages of these guards; own guards must belong to one of them."""
    reach = (
        "a callback of a Trainer does not see what this guard needs; "
        f"it can hold {', '.join(POSSIBLE)}. gl.guarded(GRPOTrainer) can hold more"
    )

    def __init__(self, *names: str, events: str | Path | None = None, snapshot_every: int = 0) -> None:
        if others := self.out_of_reach(Guards(*names)):
            raise ConfigError(f"{', '.join(others)}: {self.reach}")
        self.guards = Guards(*names, snapshot_every=snapshot_every)
        self._events = Path(events) if events else None
        if self._events:
            check_folder(self._events, over=True)  # the trainer may go on from a checkpoint
        self.report: Report | None = None
        self.refused = 0
        """Steps that were refused so far."""
        self._worst = Verdict.KEEP
        self._clip: Callable[[], Any] | None = None
        """The clipping that the trainer has asked for."""
        self._ctx: Step | None = None
        self._rates, self._in_trainer = ExitStack(), ExitStack()

    def out_of_reach(self, guards: Guards) -> list[str]:
        """The guards among these that this host cannot hold: by name, and your own by their stage."""
        return [
            name
            for name, stage in guards.stages.items()
            if stage not in self.stages or (name in GUARDS and name not in self.holds)
        ]

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take part in the trainer's training; where it goes on from a checkpoint, the guards do so too.

        Raises ConfigError for a trainer whose gradients are not those of its model.
        """
        trainer, checkpoint = self._caller()
        refuse(trainer)
        self.leave()
        clip, log, loss = trainer.accelerator.clip_grad_norm_, trainer.log, trainer.compute_loss
        put = self._in_trainer.enter_context
        put(temporarily(trainer.accelerator, "clip_grad_norm_", partial(self._clip_later, trainer, clip)))
        put(temporarily(trainer, "log", partial(self._log, log)))
        if "dual_clip" in self.guards.names and hasattr(trainer.args, "delta"):
            put(temporarily(trainer, "compute_loss", partial(self._clip_dually, trainer, loss)))
        if checkpoint:
            self._go_on(Path(checkpoint), state.global_step, given["model"])
        if self._events and state.is_world_process_zero:
            check_folder(self._events, over=self.guards.index > 0)
            self.guards.write_to(self._events)

    def _caller(self) -> tuple[Any, str | None]:
        """The trainer that calls this callback, and the checkpoint from which it goes on, if it does.

        transformers tells a callback neither. Raises ConfigError where no trainer calls.
        """
        frame = sys._getframe()
        while frame:
            trainer = frame.f_locals.get("self")
            if calls(trainer, self):
                return trainer, frame.f_locals.get("resume_from_checkpoint")
            frame = frame.f_back
        raise ConfigError("GuardCallback: no Trainer of transformers called it; in a loop of your own use gl.Guards")

    def _clip_later(
        self, trainer: Any, clip: Callable[..., Tensor], parameters: Iterable[Tensor], max_norm: float, *norm_type: Any
    ) -> Tensor:
        """The norm of the gradients, as they are; `on_pre_optimizer_step` clips them once the guards have seen them.

        One NaN would otherwise spread to all gradients: transformers clips even where it only asks for the norm.
        """
        parameters = list(parameters)
        if not calls(trainer, self):  # removed from a trainer that failed before
            return clip(parameters, max_norm, *norm_type)
        clips = max_norm > 0 and math.isfinite(max_norm)  # transformers asks for inf where it does not clip
        self._clip = partial(clip, parameters, max_norm, *norm_type) if clips else None
        return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], *norm_type)

    def _log(self, log: Callable[..., None], logs: Mapping[str, float], *given: Any, **more: Any) -> None:
        """Log a row of training with the verdict of the guards, the refused steps and the rate that they applied."""
        row = dict(logs)
        if self.report and "loss" in logs:
            rate = {"guards/learning_rate": self.report.metrics["learning_rate"]}
            row |= {"guards/verdict": int(self._worst), "guards/refused": self.refused, **rate}
            self._worst = Verdict.KEEP
        log(row, *given, **more)

    def _clip_dually(self, trainer: Any, loss: Callable[..., Any], model: Any, *given: Any, **more: Any) -> Any:
        """The loss, in training with the delta of `dual_clip`, unless the trainer has one of its own."""
        if not model.training or trainer.args.delta is not None:
            return loss(model, *given, **more)
        with temporarily(trainer.args, "delta", self.guards.config.guards["dual_clip"].get("delta", DELTA)):
            return loss(model, *given, **more)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Let guards see the gradients; of a refused step none are left, so that AdamW passes over all weights."""
        ctx, optimizer = self.begun(given["model"], given["optimizer"]), _unwrapped(given["optimizer"])
        clip, self._clip = self._clip, None
        if ctx.verdict < Verdict.SKIP_STEP:
            with suppress(Refused):
                self.guards.transaction.before(ctx)
        if ctx.verdict >= Verdict.SKIP_STEP:
            optimizer.zero_grad(set_to_none=True)
        elif clip:
            clip()

    def begun(self, model: Any, optimizer: Any, beta: float | None = None) -> Step:
        """The step that is going on, begun if it was not, with its coefficients in the optimizer."""
        if self._ctx is None:
            inner = _unwrapped(optimizer)
            self._ctx = self.guards.begin_step(model, inner)
            self._rates.enter_context(self.guards.coefficients(self._ctx, inner, beta))
        return self._ctx

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Let guards see the weights, and carry out their verdict."""
        ctx, self._ctx = self._ctx, None
        assert ctx is not None
        if ctx.verdict < Verdict.SKIP_STEP:
            with suppress(Refused):
                self.guards.transaction.after(ctx)
        self._rates.close()
        self.report = self.guards.end_step(ctx, self.measured(state))
        self.refused += self.report.refused
        self._worst = max(self._worst, self.report.verdict)
        if self.report.stop:
            control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the state of the guards into the checkpoint that the trainer has written."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and checkpoint.exists():
            checkpoints.write(checkpoint / FOLDER, {"guards": self.guards.state_dict(), "refused": self.refused})

    def _go_on(self, checkpoint: Path, step: int, model: Any) -> None:
        """Take over the state of the guards from a checkpoint, or warn that it has none.

        Raises RunError for a broken one.
        """
        if not (checkpoint / FOLDER).exists():
            self.guards.index = step
            names = ", ".join(self.guards.names)
            warnings.warn(f"{checkpoint} holds no state of guards: {names} remember nothing of its steps", stacklevel=2)
            return
        state = moved(checkpoints.read(checkpoint / FOLDER), next(model.parameters()).device)
        self.guards.load_state_dict(state["guards"])
        self.refused = state["refused"]

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write down that training is over."""
        self.leave()
        self.guards.close(self.report.reason if self.report and self.report.stop else "")

    def leave(self) -> None:
        """Give the trainer its own methods back, its optimizer its rates, and forget a step that was not ended."""
        self._in_trainer.close()
        self._rates.close()
        self._ctx = self._clip = None
        self.guards.forget_step()

    def measured(self, state: Any) -> dict[str, float]:
        """What guards of the next step read: the KL that the trainer logged last."""
        logged = state.log_history[-1] if state.log_history else {}
        return {"kl": logged["kl"]} if "kl" in logged else {}


@contextmanager
def temporarily(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A block in which an attribute of an object has another value."""
    before = vars(owner).get(name, owner)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is owner:  # it was the class's
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def calls(trainer: Any, callback: TrainerCallback) -> bool:
    """Whether this is a trainer with the callback."""
    handler = getattr(trainer, "callback_handler", None)
    return any(each is callback for each in getattr(handler, "callbacks", ()))


def refuse(trainer: Any) -> None:
    """Refuse a trainer whose gradients are not those of its model, as arguments or accelerate's own config want it.

    Raises ConfigError.
    """
    if trainer.is_deepspeed_enabled:
        raise ConfigError("Guards: DeepSpeed makes the update itself, without callbacks; train without it")
    if trainer.is_fsdp_enabled:
        raise ConfigError(
            "Guards: FSDP gives each process a part of every gradient; train without it, in one process or with DDP"
        )
    if trainer.args.fp16:
        raise ConfigError(
            "Guards: with fp16=True gradients are scaled where a callback sees them; use bf16=True or fp32, "
            "or a loop of your own with gl.Guards(…, scaler=scaler)"
        )


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer of torch inside that of accelerate."""
    return getattr(optimizer, "optimizer", optimizer)
