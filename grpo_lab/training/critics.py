"""Critics: a model that expects the reward before each token, trained beside the policy (PPO)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_lab.algorithm.credit import value_loss
from grpo_lab.config.loss_section import LossConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.loss import LossOutput, weighted_sum
from grpo_lab.errors import ModelError
from grpo_lab.models import loading
from grpo_lab.training import passes
from grpo_lab.training.interventions import Step
from grpo_lab.training.world import ALONE, World


class NoCritic:
    """No critic: the advantages of a batch need no values, and its loss has no part for them."""

    def beside(self, policy: Any) -> Any:
        """The module whose weights are trained."""
        return policy

    def judge(self, ctx: Step, batch: Batch, micro_batch_prompts: int, world: World = ALONE) -> Batch:
        """The batch with the values that the critic gives it before the updates."""
        return batch

    def add_loss(self, output: LossOutput, batch: Batch, loss: LossConfig, num_tokens: Tensor) -> LossOutput:
        """The loss of a micro-batch with the part of the critic."""
        return output


class Critic(NoCritic):
    """A value model: the policy's trunk, or one of its own, with a head of one number.

    The head begins as 0, so that the first advantages are those without a critic.
    """

    def __init__(self, policy: Any, run: passes.Pass, own_trunk: bool, start: str = "") -> None:
        self._run = run
        self.model = _own(policy) if own_trunk else _sharing(policy)
        head = torch.nn.Linear(policy.config.hidden_size, 1, device=policy.device, dtype=policy.dtype)
        for parameter in head.parameters():
            torch.nn.init.zeros_(parameter)
        self.model.set_output_embeddings(head)
        if start:
            _begin_as(self.model, head, start)
        self.model.eval()

    def beside(self, policy: Any) -> Any:
        """Policy and critic as one module, so that one optimizer trains both and guards see the gradients of both."""
        return PolicyAndCritic(policy, self.model)

    @torch.no_grad()
    def judge(self, ctx: Step, batch: Batch, micro_batch_prompts: int, world: World = ALONE) -> Batch:
        """The batch with `values` (B, T), computed one micro-batch at a time."""
        with world.meeting(ctx) as meeting:
            meeting.say([self._values(part) for part in world.own(batch, micro_batch_prompts)])
        return replace(batch, values=torch.cat([row for rows in meeting.heard for row in rows]))

    def add_loss(self, output: LossOutput, batch: Batch, loss: LossConfig, num_tokens: Tensor) -> LossOutput:
        """The loss plus vf_coef times `value_loss`, weighted as the policy's tokens are, and the critic's metrics."""
        assert batch.values is not None and batch.returns is not None and batch.weights is not None
        values, mask = self._values(batch), batch.completion_mask
        per_token = value_loss(values, batch.values, batch.returns, loss.cliprange_value)
        moved = ((values.detach() - batch.values).abs() > loss.cliprange_value) & mask
        metrics = {
            "critic/vf_loss": per_token.detach().masked_fill(~mask, 0.0).sum() / num_tokens,
            "critic/vf_clipfrac": moved.sum() / num_tokens,
            "critic/values/mean": batch.values.sum() / num_tokens,
            "critic/returns/mean": batch.returns.masked_fill(~mask, 0.0).sum() / num_tokens,
        }
        value_part = loss.vf_coef * weighted_sum(per_token, batch.weights)
        return LossOutput(output.loss + value_part.to(output.loss.dtype), {**output.metrics, **metrics})

    def _values(self, batch: Batch) -> Tensor:
        """(b, T): the reward that the critic expects before each token; 0 outside of the mask."""
        hidden, head = self._run(self.model, batch)
        return head(hidden)[..., 0].float().masked_fill(~batch.completion_mask, 0.0)


class PolicyAndCritic(torch.nn.Module):
    """Both models, for what needs the weights that are trained; a trunk that they share is there once."""

    def __init__(self, policy: Any, critic: Any) -> None:
        super().__init__()
        self.policy, self.critic, self.device = policy, critic, policy.device


def _own(policy: Any) -> Any:
    """A copy of the policy; what is frozen exists once."""
    frozen = {id(parameter): parameter for parameter in policy.parameters() if not parameter.requires_grad}
    return copy.deepcopy(policy, frozen)


def _sharing(policy: Any) -> Any:
    """The policy's modules under another model, whose head can be replaced."""
    model = copy.copy(policy)
    model._modules = dict(policy._modules)
    return model


def _begin_as(model: Any, head: Any, folder: str) -> None:
    """Give trunk and head the weights of a reward model of the policy's kind.

    Raises ModelError for a folder that holds none, and for one whose weights have other shapes.
    """
    from transformers import AutoModelForSequenceClassification

    try:
        with loading.quiet():
            given = AutoModelForSequenceClassification.from_pretrained(Path(folder).expanduser(), local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        cause = str(error).splitlines()[0]
        raise ModelError(
            f"loss.critic_from = {folder!r}: no reward model can be loaded ({cause}); save one there "
            "with save_pretrained, as AutoModelForSequenceClassification with num_labels=1"
        ) from error
    pairs = (("trunk", model.base_model, given.base_model), ("value head", head, given.score))
    for what, mine, theirs in pairs:
        state, known = theirs.state_dict(), mine.state_dict()
        for name, tensor in known.items():
            shape = tuple(state[name].shape) if name in state else None
            if shape != tuple(tensor.shape) and not (what == "value head" and name == "bias" and shape is None):
                raise ModelError(
                    f"loss.critic_from = {folder!r}: {what}, {name} has the shape {shape}, and this policy's critic "
                    f"needs {tuple(tensor.shape)}; give a reward model of the policy's kind with num_labels=1"
                )
        mine.load_state_dict(known | {name: state[name] for name in known if name in state})


CRITICS: dict[str, Callable[..., NoCritic]] = {
    "none": lambda policy, run, start: NoCritic(),
    "trunk": lambda policy, run, start: Critic(policy, run, own_trunk=False, start=start),
    "own": lambda policy, run, start: Critic(policy, run, own_trunk=True, start=start),
}
"""From a policy, its pass and the folder of a reward model to a critic, by the setting `loss.critic`."""
