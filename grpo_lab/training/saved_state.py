"""The state of a run at the top of a step, as plain values and tensors: all that the steps before it have left.

The rest follows from the config: random draws from (seed, step, purpose), prompts and learning rate from the step, the
reference from the model that the run began with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.config.schema import Config, resized
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import RunError
from grpo_lab.training.batches import moved
from grpo_lab.training.interventions import Intervention
from grpo_lab.training.recorder import count_nonfinite
from grpo_lab.training.reference import Reference
from grpo_lab.training.state import Training
from grpo_lab.training.updates import ScaledUpdates

WEIGHTS, MOMENTS = "weights", "moments"


def may_be_taken(training: Training, index: int) -> bool:
    """Whether the state before step `index` can be gone on from, to the bit.

    Its weights and moments are finite, and the step begins with a snapshot, which a later rollback finds again.
    """
    updates = training.updates
    if not (updates.healthy and updates.snapshots.due(index)):
        return False
    return not count_nonfinite([*updates.parameters, *_moments(updates.optimizer.state)])


def check_finite(state: Mapping[str, Any]) -> None:
    """Raise RunError for a state whose weights or moments are not finite."""
    if broken := count_nonfinite([*state[WEIGHTS].values(), *_moments(state[MOMENTS])]):
        raise RunError(f"{broken} of its weights and moments are not finite")


def taken(training: Training) -> dict[str, Any]:
    """The state, with tensors that go on to change: write or copy them before the next step."""
    updates = training.updates
    # After another stage, the reference is not the model that the run began with.
    later = training.steps.start > 0 and isinstance(training.reference, Reference)
    return {
        "updates": updates.count,
        "scaler": updates.scaler.state_dict() if isinstance(updates, ScaledUpdates) else {},
        "verdict": training.last_verdict.name,
        "metrics": training.last_metrics,
        "config": training.config.to_dict(),
        "interventions": {name: each.state_dict() for name, each in _with_memory(training)},
        "reference": list(training.reference.parameters()) if later else [],
        WEIGHTS: {name: p.detach() for name, p in _trained(training)},
        MOMENTS: {name: dict(updates.optimizer.state.get(p, {})) for name, p in _trained(training)},
    }


def put_back(training: Training, state: Mapping[str, Any]) -> None:
    """Give a run at the beginning of a stage the state of a later step in it.

    Raises RunError for weights of other names or shapes.
    """
    config = replace(Config.from_dict(state["config"]), data=training.config.data)  # passes may be smaller than before
    training.configure(resized(config, training.config.run.processes))
    weights, moments = state[WEIGHTS], state[MOMENTS]
    if {name: p.shape for name, p in _trained(training)} != {name: each.shape for name, each in weights.items()}:
        raise RunError("the weights are not those of this run's model")
    with torch.no_grad():
        for name, parameter in _trained(training):
            parameter.copy_(weights[name])
        if state["reference"]:
            for mine, value in zip(training.reference.parameters(), state["reference"], strict=True):
                mine.copy_(value)
    updates = training.updates
    known = {place: moments[name] for place, (name, _) in enumerate(_trained(training)) if moments.get(name)}
    updates.optimizer.load_state_dict({**updates.optimizer.state_dict(), "state": known})
    if isinstance(updates, ScaledUpdates):
        updates.scaler.load_state_dict(state["scaler"])
    updates.count = state["updates"]
    training.last_verdict, training.last_metrics = Verdict[state["verdict"]], dict(state["metrics"])
    for name, intervention in _with_memory(training):
        intervention.load_state_dict(moved(state["interventions"].get(name, {}), training.policy.device))


def _moments(states: Mapping[Any, Mapping[str, Tensor]]) -> list[Tensor]:
    """The moments in AdamW's states; its count of steps, which may be on another device, is left out."""
    return [value for state in states.values() for name, value in state.items() if name != "step"]


def _trained(training: Training) -> Iterator[tuple[str, Tensor]]:
    return zip(training.updates.names, training.updates.parameters, strict=True)


def _with_memory(training: Training) -> Iterator[tuple[str, Intervention]]:
    """Guards and faults by name. Observers keep nothing from one step to the next."""
    for row in training.interventions.values():
        yield from ((f"{kind}s.{each.name}", each) for kind, each in row if kind != "observer")
