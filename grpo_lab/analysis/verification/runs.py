"""The cycles that the checks share, each run when a check first asks for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
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
    """A trainer raised, or left nothing to measure; the line says so and has failed."""


class Runs:
    """Cycles of trainers that `fresh` returns, each in the same first state.

    Each attribute raises Wrong where the trainer raises, and NotChecked where it does not give what is needed. Raises
    ConfigError for an adapter without a model or a step.
    """

    def __init__(self, fresh: Callable[[], Trainer]) -> None:
        self._fresh = fresh
        module = sys.modules.get(getattr(fresh, "__module__", ""))
        self._file = str(getattr(module, "__file__", ""))
        try:
            self.trainer = self._call("making the adapter", fresh)
        except Wrong as error:
            raise ConfigError(f"{error}; mend the adapter") from error
        for name, form in (("model", "model"), ("step", "step(reward, micro_batches)")):
            if getattr(self.trainer, name, None) is None:
                raise ConfigError(f"the adapter has no `{form}`; docs/verify.md shows one")
        self.half = bool(getattr(self.trainer, "half_precision", False))

    def _call(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except GrpoLabError:
            raise
        except Exception as error:  # a trainer may raise anything
            raise Wrong(f"{what} raised {user_code.said(error, self._file)}") from error

    def cycle(self, reward: Callable[..., Any], micro_batches: int = 1) -> Cycle:
        """The first cycle of a fresh trainer."""
        return self._call("its step", cycles.run, self._fresh(), reward, micro_batches)

    @cached_property
    def two(self) -> tuple[Cycle, Cycle | None]:
        """Two cycles of one trainer; the second is None where the first left weights that are not finite."""
        trainer = self._fresh()
        first = self._call("the first step", cycles.run, trainer, cycles.varied, 1)
        if not math.isfinite(first.largest_move):
            return first, None
        return first, self._call("the second step", cycles.run, trainer, cycles.varied, 1)

    @cached_property
    def halves(self) -> Cycle:
        """The first cycle in two micro-batches."""
        return self.cycle(cycles.varied, 2)

    @cached_property
    def equal(self) -> Cycle:
        """The first cycle with equal rewards."""
        return self.cycle(cycles.equal)

    @property
    def first(self) -> Cycle:
        """The first of two cycles."""
        return self.two[0]

    def optional(self, name: str) -> Any:
        """An attribute that an adapter may lack."""
        found = getattr(self.trainer, name, None)
        if found is None:
            raise NotChecked(f"the trainer gives no `{name}`")
        return found

    def tensors(self, cycle: Cycle, name: str) -> list[Tensor]:
        """A tensor of each objective that a step may leave out."""
        found = [rows[name] for rows in cycle.objectives if rows.get(name) is not None]
        if not found:
            raise NotChecked(f"its step returns no `{name}`")
        return found

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

        head = self._call("get_output_embeddings", trainer.model.get_output_embeddings)
        hook = head.register_forward_hook(favour)
        try:
            return self._call("its step", cycles.run, trainer, cycles.varied, 1)
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
        return oracle.TokenGradients(cycle.model, cycle.objectives, self.terminators).parts(cycle.gradients)

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
