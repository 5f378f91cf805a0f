"""TRL's trainer on the tiny model, for tests of guards in it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

import grpo_lab as gl

OF_TRL = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # TRL sets it itself


def tensors(model, optimizer):
    """Weights and all that the optimizer keeps of them."""
    states = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    return [*model.state_dict().values(), *states]


def equal(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class NanGradient(transformers.TrainerCallback):
    """Makes one gradient of step 2 NaN before the guards see it."""

    def on_pre_optimizer_step(self, args, state, control, **given):
        if state.global_step == 2:
            next(given["model"].parameters()).grad.view(-1)[0] = torch.nan


class Seen(transformers.TrainerCallback):
    """Keeps weights and moments after each step."""

    def __init__(self):
        self.states = []

    def on_step_end(self, args, state, control, **given):
        self.states.append([value.clone() for value in tensors(given["model"], given["optimizer"].optimizer)])


def trained(
    folder, *callbacks, guards=None, steps=3, base=None, reward=None, train=True, events=None, change=None, **arguments
):
    """A trainer of TRL on the tiny model, guarded if there are guards, after training."""
    trl = pytest.importorskip("trl")
    from benchmarks.diagnosis import recipes

    usual = {"num_generations": 4, "max_completion_length": 4, "learning_rate": 1e-4, "logging_steps": 1, "beta": 0.04}
    rewards = (reward or recipes.accuracy(),)
    spec = recipes.Spec(steps, 2, {**usual, **arguments}, rewards, callbacks=lambda: callbacks)
    spec = replace(spec, change=change) if change else spec
    base = base or trl.GRPOTrainer
    make: Any = base if guards is None else lambda **given: gl.guarded(base)(guards=guards, events=events, **given)
    made = recipes.trainer(spec, 0, folder, make)
    if train:
        made.train()
    return made
