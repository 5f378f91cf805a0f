"""A step as interventions read it, for tests of what reads one."""

from typing import Any

from grpo_lab.config.schema import Config
from grpo_lab.training.interventions import Step
from grpo_lab.training.recorder import Recorder


def step_of(config: Config, index: int = 0, policy: Any = None, **known: Any) -> Step:
    """A step of a run of this config, with these fields known."""
    given = {"sampling": config.sampling, **known}
    return Step(index=index, seed=config.run.seed, config=config, policy=policy, recorder=Recorder(), **given)
