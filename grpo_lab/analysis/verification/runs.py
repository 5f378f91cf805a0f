"""The cycles that the checks share, each run when a check first asks for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from grpo_lab.analysis.verification import cycles, oracle
from grpo_lab.analysis.verification.cycles import Cycle, Trainer
from grpo_lab.config import user_code
from grpo_lab.errors import ConfigError, GrpoLabError


class NotChecked(Exception):
    """A trainer does not give what a check needs; the line says so."""


class Wrong(Exception):
    """A trainer left nothing to measure; the line says so and has failed."""


class Runs:
    """Cycles of trainers that `fresh` returns, each in the same first state.

    An attribute raises NotChecked where the trainer does not give what is needed, and any error of the trainer.
    Raises ConfigError for an adapter that cannot be made, or that has no model or no step.
    """

    def __init__(self, fresh: Callable[[], Trainer]) -> None:
        self._fresh = fresh
        self.file = str(getattr(sys.modules.get(getattr(fresh, "__module__", "")), "__file__", ""))
        try:
            self.trainer = fresh()
        except GrpoLabError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise ConfigError(f"making the adapter raised {user_code.said(error, self.file)}; mend it") from error
        for name, form in (("model", "model"), ("step", "step(reward, micro_batches)")):
            if getattr(self.trainer, name, None) is None:
                raise ConfigError(f"the adapter has no `{form}`; docs/verify.md shows one")
        if not isinstance(self.trainer.model, torch.nn.Module):
            raise ConfigError(f"the adapter's `model` is of type {type(self.trainer.model).__name__}; give a module")
        self.half = bool(getattr(self.trainer, "half_precision", False))
        self.objectives: Sequence[str] = getattr(self.trainer, "objectives", ())
        self.turns = len(self.objectives) if getattr(self.trainer, "combination", "") == "alternate" else 1
        """Cycles until every objective has been trained."""

    def cycle(self, reward: Callable[..., Any], micro_batches: int = 1) -> Cycle:
        """The first cycle of a fresh trainer, without its copy of the model."""
        cycle = cycles.run(self._fresh(), reward, micro_batches)
        cycle.model = None  # it may be large
        return cycle

    @cached_property
    def cycles(self) -> list[Cycle]:
        """Cycles of one trainer until it has trained the first objective again, or left weights that are not finite."""
        trainer, found = self._fresh(), []
        while not found or (len(found) <= self.turns and math.isfinite(found[-1].largest_move)):
            found.append(cycles.run(trainer, cycles.varied, number=len(found) + 1))
        return found

    @property
    def turn(self) -> list[Cycle]:
        """The first of these cycles, in which each objective is trained once."""
        return self.cycles[: self.turns]

    @cached_property
    def halves(self) -> Cycle:
        """The first cycle in two micro-batches."""
        return self.cycle(cycles.varied, 2)

    @cached_property
    def equal(self) -> list[Cycle]:
        """Cycles with equal rewards."""
        return self._turn_with(cycles.equal)

    @cached_property
    def every_other(self) -> list[Cycle]:
        """Cycles with equal rewards and with None among them."""
        return self._turn_with(cycles.every_other)

    def _turn_with(self, reward: Callable[..., Any]) -> list[Cycle]:
        trainer = self._fresh()
        found = [cycles.run(trainer, reward) for _ in range(self.turns)]
        for cycle in found:
            cycle.model = None  # it may be large
        return found

    @property
    def first(self) -> Cycle:
        """The first cycle."""
        return self.cycles[0]

    def optional(self, name: str) -> Any:
        """An attribute that an adapter may lack."""
        found = getattr(self.trainer, name, None)
        if found is None:
            raise NotChecked(f"the trainer gives no `{name}`")
        return found

    def tables(self, among: Sequence[Cycle], name: str, objective: str = "") -> list[tuple[Cycle, Mapping[str, Any]]]:
        """The tables of an objective, or of all, that have something which a step may leave out; with their cycles."""
        each = [(cycle, rows) for cycle in among for rows in cycle.objectives]
        found = [(cycle, rows) for cycle, rows in each if not objective or rows.get("objective") == objective]
        found = [(cycle, rows) for cycle, rows in found if rows.get(name) is not None]
        if not found:
            raise NotChecked(f"its step returns no `{name}`" + (f" of {objective}" if objective else ""))
        return found

    def kl(self, objective: str = "") -> Callable[..., Tensor]:
        """The penalty of the loss. Raises NotChecked for an objective without one."""
        if objective and not any(rows["beta"] for _, rows in self.tables(self.turn, "beta", objective)):
            raise NotChecked(f"the beta of {objective} is 0")
        return self.optional("kl")

    @cached_property
    def terminators(self) -> list[int]:
        """Ids that should end a completion: of the adapter and of the model's generation config."""
        of_model = getattr(getattr(self.trainer.model, "generation_config", None), "eos_token_id", None)
        listed = of_model if isinstance(of_model, list) else [of_model]
        ids = {i for i in [*listed, *getattr(self.trainer, "terminators", ())] if i is not None}
        if not ids:
            raise NotChecked("neither the trainer nor its model names `terminators`")
        return sorted(ids)

    def inside(self, rows: Mapping[str, Any]) -> Tensor:
        """(B, T) bool: True up to and including the first terminator."""
        return oracle.until_end(rows["completions"], self.terminators)

    @cached_property
    def favoured(self) -> dict[int, Cycle]:
        """By terminator, the first cycle of a model that gives it about half of the probability at every token."""
        return {token: self._favouring(token) for token in self.terminators}

    def _favouring(self, token: int) -> Cycle:
        trainer = self._fresh()

        def favour(module: Any, inputs: Any, output: Tensor) -> Tensor:
            raised = torch.zeros_like(output)
            raised[..., token] = (output.float().logsumexp(dim=-1) - output[..., token].float()).detach()
            return output + raised

        hook = trainer.model.get_output_embeddings().register_forward_hook(favour)
        try:
            return cycles.run(trainer, cycles.varied)
        finally:
            hook.remove()

    def gradient(self, cycle: Cycle) -> Tensor:
        """(n,) the gradient of a cycle's first optimizer step. Raises Wrong where it is missing, 0 or not finite."""
        if not cycle.optimizer_steps:
            raise Wrong("no optimizer step was made")
        norm = float(cycle.gradient.norm())
        if not 0 < norm < math.inf:
            raise Wrong(f"the norm of the gradient at the first optimizer step is {norm:g}")
        return cycle.gradient

    def parts_of(self, cycle: Cycle) -> dict[str, float]:
        """The parts of a cycle's first gradient, by kind of token. Raises NotChecked where it has no gradient."""
        try:
            self.gradient(cycle)
        except Wrong as reason:
            raise NotChecked(str(reason)) from reason
        return oracle.parts(cycle.model, cycle.objectives, self.terminators, cycle.gradients)

    @cached_property
    def favoured_parts(self) -> dict[int, dict[str, float]]:
        """The parts of the gradient by terminator, where that is frequent."""
        return {token: self.parts_of(cycle) for token, cycle in self.favoured.items()}

    @cached_property
    def parts(self) -> dict[str, float]:
        """The parts of the first cycle's gradient."""
        return self.parts_of(self.first)

    @property
    def enough(self) -> float:
        """The least share of a gradient that the sampled tokens must explain."""
        return 0.9 if self.half else 0.99

    def need_explained(self) -> None:
        """Raise NotChecked where the first gradient is not a sum of the sampled tokens' gradients."""
        if self.parts["all"] < self.enough:
            raise NotChecked("the gradient is not a sum of the sampled tokens' gradients")
