"""The state of a learner at the top of a step, as plain values and tensors: all that the steps before it have left.

The rest follows from the config: random draws from (seed, step, purpose), prompts and learning rate from the step, the
reference from the model that the run began with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.config.schema import Config, resized
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import RunError
from grpo_lab.events import Changed, Event, Started
from grpo_lab.training.interventions import Intervention
from grpo_lab.training.learner import Controls, Learner
from grpo_lab.training.recorder import count_nonfinite
from grpo_lab.training.reference import Reference
from grpo_lab.training.world import moved

WEIGHTS, MOMENTS = "weights", "moments"


def may_be_taken(learner: Learner, index: int) -> bool:
    """Whether the state before step `index` can be gone on from, to the bit.

    Its weights and moments are finite, and the step begins with a snapshot, which a later rollback finds again.
    """
    updates = learner.updates
    if not (updates.healthy and updates.snapshots.due(index)):
        return False
    return not count_nonfinite([*updates.parameters, *_moments(updates.optimizer.state)])


def check_finite(state: Mapping[str, Any]) -> None:
    """Raise RunError for a state whose weights or moments are not finite."""
    if broken := count_nonfinite([*state[WEIGHTS].values(), *_moments(state[MOMENTS])]):
        raise RunError(f"{broken} of its weights and moments are not finite")


def taken(learner: Learner) -> dict[str, Any]:
    """The state, with tensors that go on to change: write or copy them before the next step."""
    updates = learner.updates
    return {
        "updates": updates.count,
        "scaler": updates.scaler.state_dict(),
        "verdict": learner.last_verdict.name,
        "metrics": learner.last_metrics,
        "config": learner.config.to_dict(),
        "interventions": {name: each.state_dict() for name, each in _with_memory(learner)},
        "reference": _reference_of_a_later_stage(learner),
        WEIGHTS: {name: p.detach() for name, p in _trained(learner)},
        MOMENTS: {name: dict(updates.optimizer.state.get(p, {})) for name, p in _trained(learner)},
    }


def put_back(learner: Learner, state: Mapping[str, Any]) -> None:
    """Give a learner at the beginning of a stage the state of a later step in it.

    Raises RunError for weights of other names or shapes.
    """
    config = replace(Config.from_dict(state["config"]), data=learner.config.data)  # passes may be smaller than before
    learner.configure(resized(config, learner.config.run.processes))
    names, weights, moments = {name for name, _ in _trained(learner)}, state[WEIGHTS], state[MOMENTS]
    shapes = {name: p.shape for name, p in _trained(learner)}
    if names != set(weights) or any(weights[name].shape != shape for name, shape in shapes.items()):
        raise RunError("the weights are not those of this run's model")
    with torch.no_grad():
        for name, parameter in _trained(learner):
            parameter.copy_(weights[name])
        if state["reference"]:
            for mine, value in zip(learner.reference.parameters(), state["reference"], strict=True):
                mine.copy_(value)
    updates = learner.updates
    known = {place: moments[name] for place, (name, _) in enumerate(_trained(learner)) if moments.get(name)}
    updates.optimizer.load_state_dict({**updates.optimizer.state_dict(), "state": known})
    updates.scaler.load_state_dict(state["scaler"])
    updates.count = state["updates"]
    learner.last_verdict, learner.last_metrics = Verdict[state["verdict"]], dict(state["metrics"])
    for name, intervention in _with_memory(learner):
        intervention.load_state_dict(moved(state["interventions"].get(name, {}), learner.policy.device))


class NoCheckpoints:
    """A run that begins at its first step and leaves no checkpoint; `runs.checkpoints` has one that does both."""

    def open(self, learner: Learner) -> Iterator[Event]:
        """Yield the event with which the run begins."""
        device, threads = str(learner.policy.device), torch.get_num_threads()
        yield Started(learner.config.to_dict(), learner.updates.num_parameters, device, threads)

    def begin_stage(self, learner: Learner, stage: str) -> range:
        """Begin a stage, and return its steps that are to be made."""
        return learner.begin_stage(stage)

    def offer(self, learner: Learner, index: int) -> Iterator[Event]:
        """Write a checkpoint of the state before step `index` if one is due, and yield its event."""
        yield from ()


NO_CHECKPOINTS = NoCheckpoints()


def before_step(learner: Learner, index: int, checkpoints: NoCheckpoints, controls: Controls) -> Iterator[Event]:
    """Yield what happens at the top of a step: a checkpoint where one is due, then changes of the running model."""
    yield from checkpoints.offer(learner, index)
    try:
        overrides = learner.world.hear(lambda: tuple(controls(index)) if controls else ())
    except Exception:  # stopped, perhaps while it was paused: then no checkpoint was due before
        yield from checkpoints.offer(learner, index)
        raise
    if overrides:
        learner.change(overrides)
        yield Changed(index, overrides)


def _moments(states: Mapping[Any, Mapping[str, Tensor]]) -> list[Tensor]:
    """The moments in AdamW's states; its count of steps, which may be on another device, is left out."""
    return [value for state in states.values() for name, value in state.items() if name != "step"]


def _trained(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    return zip(learner.updates.names, learner.updates.parameters, strict=True)


def _with_memory(learner: Learner) -> Iterator[tuple[str, Intervention]]:
    """Guards and faults by name. Observers keep nothing from one step to the next."""
    for row in learner.interventions.values():
        yield from ((f"{kind}s.{each.name}", each) for kind, each in row if kind != "observer")


def _reference_of_a_later_stage(learner: Learner) -> Sequence[Tensor]:
    """The reference's tensors where they are not those of the model that the run began with: after another stage."""
    later = learner.steps.start > 0 and isinstance(learner.reference, Reference)
    return list(learner.reference.parameters()) if later else []
