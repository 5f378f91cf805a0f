"""Guards in trainers of others: a callback for any Trainer of transformers, a subclass for TRL's GRPOTrainer.

A callback sees gradients and weights; the subclass also sees rewards, advantages, the batch and the loss.
"""

from __future__ import annotations

import inspect
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import TrainerCallback

from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Refused, Stage, Verdict
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.hosted.guards import OF_THE_UPDATE, Guards, Report, check_folder
from grpo_lab.runs import checkpoints
from grpo_lab.training.argument_types import wrong
from grpo_lab.training.batches import moved
from grpo_lab.training.guards import GUARDS, DualClip
from grpo_lab.training.interventions import Step, known

POSSIBLE = [name for name, kind in GUARDS.items() if kind.stage in OF_THE_UPDATE and name != "adaptive_beta"]
"""Guards that the callbacks of a trainer can hold: a callback does not reach the beta of a loss."""
FOLDER = "guards"
"""The folder of the guards' state in a checkpoint of the trainer."""
TRIED = "1.16"
"""The version of TRL with which `guarded` is tested."""
STAGES = (*OF_THE_UPDATE, Stage.REWARDS, Stage.ADVANTAGES, Stage.BATCH, Stage.LOG_RATIO, Stage.KL_DELTA)
"""Stages whose values a guarded trainer has."""
NEEDS = {
    "_calculate_rewards": "reward_funcs",
    "_generate_and_score_completions": "_calculate_rewards advantages prompt_ids prompt_mask completion_ids "
    "completion_mask num_items_in_batch old_per_token_logps ref_per_token_logps",
    "_get_per_token_logps_and_entropies": "logits_to_keep",
    "_compute_loss": "_get_per_token_logps_and_entropies old_per_token_logps ref_per_token_logps advantages beta",
}
"""Methods of the trainer that are overridden, and the names that each must use."""


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
        self.guards = Guards(*names, snapshot_every=snapshot_every)
        found = self.guards.stages.items()
        others = [n for n, at in found if at not in self.stages or (n in GUARDS and n not in self.holds)]
        if others:
            raise ConfigError(f"{', '.join(others)}: {self.reach}")
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

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take part in the trainer's training; where it goes on from a checkpoint, the guards do so too.

        Raises ConfigError for a trainer whose gradients are not those of its model.
        """
        trainer, checkpoint = self._caller()
        refuse(trainer)
        self.leave()
        clip, log, loss = trainer.accelerator.clip_grad_norm_, trainer.log, trainer.compute_loss
        put = self._in_trainer.enter_context
        put(patch.object(trainer.accelerator, "clip_grad_norm_", partial(self._clip_later, trainer, clip)))
        put(patch.object(trainer, "log", partial(self._log, log)))
        if "dual_clip" in self.guards.names and hasattr(trainer.args, "delta"):
            put(patch.object(trainer, "compute_loss", partial(self._clip_dually, trainer, loss)))
        if checkpoint:
            self._go_on(Path(checkpoint), state.global_step, given["model"])
        if self._events and state.is_world_process_zero:
            self.guards.write_to(self._events, over=self.guards.index > 0)

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
        with patch.object(trainer.args, "delta", self.guards.config.guards["dual_clip"].get("delta", DualClip.delta)):
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


def guarded(trainer: type) -> Any:
    """The subclass of TRL's GRPOTrainer that takes `guards=`, and `events=` for `grpo-lab trace`.

        trainer = gl.guarded(GRPOTrainer)(model, rewards, args=args, train_dataset=data, guards="stable")

    `guards` are names with settings, as `gl.Guards` takes them. Where all are silent, training is that of the bare
    trainer to the bit.

    It was tried with TRL 1.16. Raises ConfigError for a class that is not such a trainer, or is that of a version whose
    methods lack what guards need.
    """
    way_out = "give TRL's GRPOTrainer or a subclass"
    if not isinstance(trainer, type):
        raise wrong("trainer", trainer, "a class", way_out)
    if lacks := _lacks(trainer):
        raise ConfigError(
            f"gl.guarded({trainer.__name__}): {lacks}, so that guards would see nothing there; {way_out}, as in TRL "
            f"{TRIED}, with which it was tried. For any other Trainer of transformers use gl.GuardCallback"
        )
    name = trainer.__name__
    return type(f"Guarded{name}", (_Guarded, trainer), {"__doc__": f"{name} with guards; see grpo_lab.guarded."})


def _lacks(trainer: type) -> str:
    """The first thing that a class lacks for guards to see its values, in words; empty where it lacks nothing."""
    for method, words in NEEDS.items():
        defined = [vars(each)[method] for each in trainer.__mro__ if method in vars(each)]
        if not defined:
            return f"it has no {method}"
        source = "".join(map(_source, defined))
        if lost := [word for word in words.split() if word not in source]:
            return f"{method} does not use {', '.join(lost)}"
    return ""


def _source(method: Any) -> str:
    try:
        return inspect.getsource(method)
    except (OSError, TypeError):
        return ""  # of a class without a file, behind which TRL's own is read


class Host(GuardCallback):
    """The callback of a guarded trainer: it begins each step before completions are sampled."""

    holds = tuple(name for name, kind in GUARDS.items() if kind.stage in STAGES)
    stages = STAGES
    reach = (
        "TRL computes log-probabilities and samples without handing out logits, probabilities or sampling settings. "
        "check_weights catches broken weights one step earlier, before they are sampled from; temperature and top_p "
        f"are settings of GRPOConfig. A guarded trainer can hold {', '.join(holds)}"
    )

    def __init__(self, trainer: Any, names: Sequence[str], events: str | Path | None, snapshot_every: int) -> None:
        super().__init__(*names, events=events, snapshot_every=snapshot_every)
        self.trainer, self.beta = trainer, trainer.beta
        self.kls: list[float] = []
        self.watch: Callable[[Tensor], Tensor] | None = None
        if "adaptive_beta" in self.guards.names and not self.beta:
            raise ConfigError("adaptive_beta: the trainer's beta is 0, so there is no KL; set GRPOConfig(beta=0.04)")

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin the step, with the beta that guards give it."""
        self.kls = []
        coefficients = self.begun(given["model"], given["optimizer"], self.trainer.beta).coefficients
        self.beta = known(coefficients, "coefficients").beta

    def measured(self, state: Any) -> dict[str, float]:
        """The KL of this step, over its micro-batches."""
        return {"kl": statistics.fmean(self.kls)} if self.kls else {}

    @contextmanager
    def differences(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Let guards see the log-ratio and the KL's difference while the loss of a micro-batch is computed.

        Raises RunError where TRL took no difference of log-probabilities: guards would have seen nothing.
        """
        seen: dict[Stage, Tensor | None] = {}
        outside = _trained(inputs) == 0
        reference = inputs.get("ref_per_token_logps")

        def see(stage: Stage, difference: Tensor) -> Tensor:
            """The difference (B, T) as guards leave it; the very same one where they are silent."""
            if stage not in seen:
                before = difference.masked_fill(outside, 0.0)
                after = self.guards.at(stage, before)
                seen[stage] = None if after is before else after
            changed = seen[stage]
            return difference if changed is None else changed

        self.watch = lambda logprobs: watched(logprobs, reference, see)
        try:
            yield
        finally:
            self.watch = None
        if Stage.LOG_RATIO not in seen:
            raise RunError(f"gl.guarded: TRL computed its loss without a log-ratio; it was tried with TRL {TRIED}")


class Watched(Tensor):
    """Log-probabilities (B, T) of the policy. Any operation on them gives an ordinary tensor of the same bits.

    `logprobs - old` is passed to `see` as the log-ratio, and `reference - logprobs` as the KL's difference: so guards
    reach both in a loss that somebody else wrote. Value and gradient are those of the guard itself: to shift the
    log-probabilities instead would give inf - inf where one of them is not finite.
    """

    reference: Tensor | None
    see: Callable[[Stage, Tensor], Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute the operation on ordinary tensors, and let a difference be seen."""
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if func not in (Tensor.sub, Tensor.__sub__, torch.sub):
                return result
            left, right = args[:2]
            if isinstance(left, cls):
                return left.see(Stage.LOG_RATIO, result)
            return right.see(Stage.KL_DELTA, result) if left is right.reference else result


def watched(logprobs: Tensor, reference: Tensor | None, see: Callable[[Stage, Tensor], Tensor]) -> Tensor:
    """The log-probabilities (B, T), with the differences from them passed to `see`."""
    made = logprobs.as_subclass(Watched)
    with torch._C.DisableTorchFunctionSubclass():
        made.reference, made.see = reference, see
    return made


class _Guarded(cast(Any, object)):
    """The methods of a guarded trainer; the trainer's own class comes after it."""

    def __init__(
        self,
        *given: Any,
        guards: str | Sequence[str],
        events: str | Path | None = None,
        snapshot_every: int = 0,
        **more: Any,
    ) -> None:
        names: list[str] = [*guards] if isinstance(guards, list | tuple | set) else [cast(str, guards)]
        Guards(*names)  # an unknown name, and a value that is none, is said before a model is loaded
        super().__init__(*given, **more)
        refuse(self)
        if (count := self.accelerator.num_processes) > 1:
            raise ConfigError(
                f"gl.guarded: {count} processes would refuse different steps, each by its own completions; train with "
                "one, or use gl.GuardCallback, whose guards see the gradients of all"
            )
        self.guard_host = Host(self, names, events, snapshot_every)
        self.add_callback(self.guard_host)

    def train(self, *given: Any, **more: Any) -> Any:
        try:
            return super().train(*given, **more)
        except BaseException as error:
            self.guard_host.leave()
            self.guard_host.guards.fail(error)
            raise

    def _calculate_rewards(self, *given: Any, **more: Any) -> Tensor:
        rewards = super()._calculate_rewards(*given, **more)
        return see_rewards(self.guard_host.guards, rewards, self.num_generations) if self.model.training else rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        return see_batch(self.guard_host.guards, output, self.num_generations) if self.model.training else output

    def _get_per_token_logps_and_entropies(self, *given: Any, **more: Any) -> tuple[Any, ...]:
        logprobs, *others = super()._get_per_token_logps_and_entropies(*given, **more)
        watch = self.guard_host.watch
        return (watch(logprobs) if watch else logprobs, *others)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        with patch.object(self, "beta", self.guard_host.beta), self.guard_host.differences(inputs):
            loss = super()._compute_loss(model, inputs)
        self.guard_host.kls += self._metrics["train"]["kl"][-1:]
        return loss


def see_rewards(guards: Guards, rewards: Tensor, size: int) -> Tensor:
    """Rewards (B, functions) as guards leave them, group by group; NaN is TRL's sign for "not scored"."""
    for place in range(rewards.shape[1]):
        values = rewards[:, place].view(-1, size)
        scored = ~values.isnan()
        before = values.masked_fill(~scored, 0.0)
        after = guards.at(Stage.REWARDS, before, scorable=scored)
        if after is not before or guards.scorable is not scored:
            assert guards.scorable is not None
            rewards[:, place] = after.masked_fill(~guards.scorable, torch.nan).flatten()
    return rewards


def see_batch(guards: Guards, output: dict[str, Any], size: int) -> dict[str, Any]:
    """TRL's batch with advantages and rows as guards leave them."""
    before = output["advantages"].view(-1, size)
    after = guards.at(Stage.ADVANTAGES, before)
    if after is not before:
        output = {**output, "advantages": after.flatten()}
    refused, batch = guards.refused, _as_batch(output)
    left = guards.at(Stage.BATCH, batch)
    if left is not batch:
        return without_rows(output, left.group)
    return without_rows(output, left.group[:0]) if guards.refused and not refused else output


def without_rows(output: dict[str, Any], kept: Tensor) -> dict[str, Any]:
    """TRL's batch with all rows but `kept` (b,) masked, so that no token of them is trained.

    They stay in place, because TRL splits the batch into micro-batches of equal size.
    """
    gone = torch.ones(len(output["completion_ids"]), dtype=torch.bool, device=kept.device)
    gone[kept] = False
    masked = dict(output)
    for name in ("completion_mask", "tool_mask", "advantages", "importance_sampling_ratio", *_LOGPROBS):
        if (value := output.get(name)) is not None:
            masked[name] = value.masked_fill(gone.view(-1, *[1] * (value.dim() - 1)), 0)
    masked["num_items_in_batch"] = _trained(masked).sum()
    return masked


_LOGPROBS = ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps")


def _trained(inputs: Mapping[str, Any]) -> Tensor:
    """(B, T): 1 where a token of a completion is trained."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def _as_batch(output: Mapping[str, Any]) -> Batch:
    """TRL's batch as guards read it; each completion is a group of its own. TRL handles NaN of vLLM's own numbers."""
    completions, nothing = output["completion_ids"], output["completion_mask"].float() * 0
    return Batch(
        prompt_ids=output["prompt_ids"],
        prompt_mask=output["prompt_mask"],
        group=torch.arange(len(completions), device=completions.device),
        completions=completions,
        completion_mask=_trained(output).bool(),
        sampling_logprobs=nothing,
        advantages=output["advantages"],
        old_logprobs=output.get("old_per_token_logps"),
        ref_logprobs=output.get("ref_per_token_logps"),
    )
