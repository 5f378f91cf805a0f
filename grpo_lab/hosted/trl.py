"""Guards inside TRL's GRPOTrainer: a subclass in which they also see rewards, advantages, the batch and the loss."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.hosted.callback import GuardCallback, refuse, temporarily
from grpo_lab.hosted.guards import OF_THE_UPDATE, Guards
from grpo_lab.training.argument_types import wrong
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import known

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
        with temporarily(self, "beta", self.guard_host.beta), self.guard_host.differences(inputs):
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
        entropy=nothing,
        advantages=output["advantages"],
        old_logprobs=output.get("old_per_token_logps"),
        ref_logprobs=output.get("ref_per_token_logps"),
    )
