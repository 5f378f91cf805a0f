"""What tests of a run share: a step as interventions read it, a view, and events without what differs by machine."""

import json
from collections.abc import Callable
from typing import Any

from grpo_lab.config.schema import Config
from grpo_lab.events import Event, Stepped, to_json
from grpo_lab.metrics import OF_THE_MACHINE
from grpo_lab.runs.session import Session
from grpo_lab.training.interventions import Step
from grpo_lab.training.recorder import Recorder
from grpo_lab.training.trainer import train


def step_of(config: Config, index: int = 0, policy: Any = None, **known: Any) -> Step:
    """A step of a run of this config, with these fields known."""
    given = {"sampling": config.sampling, **known}
    return Step(index=index, seed=config.run.seed, config=config, policy=policy, recorder=Recorder(), **given)


def steps_of(config: Config, **given: Any) -> list[Stepped]:
    """The steps of a run of this config."""
    return [event for event in train(config, **given) if isinstance(event, Stepped)]


class Calls:
    """A view that calls a function with each event of a type."""

    def __init__(self, act: Callable[[Any], Any], kind: type = object) -> None:
        self.act, self.kind = act, kind

    def show(self, event: Event) -> None:
        if isinstance(event, self.kind):
            self.act(event)


def stopping(session: Session, after: int) -> Session:
    """The session with a view that stops it after so many steps."""
    session.views.append(Calls(lambda event: event.step + 1 == after and session.stop(), Stepped))
    return session


def told(event: Event) -> dict[str, Any]:
    """An event as JSON, without the clock and the memory, in which equal runs differ."""
    tree = json.loads(to_json(event))
    for name in OF_THE_MACHINE:
        tree.get("metrics", {}).pop(name, None)
    return tree
