"""How a run goes on after it was cut off."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_lab.config.schema import Config
from grpo_lab.core.batch import AT_ONCE
from grpo_lab.events import Checkpointed, Ended, Event, Resumed
from grpo_lab.runs.crashes import OUT_OF_MEMORY
from grpo_lab.training.objectives import resolve


class Resume(NamedTuple):
    """The reason, changes of the running model, and the checkpoint to begin with; the newest by default."""

    reason: str = ""
    overrides: tuple[str, ...] = ()
    restarts: int | None = None
    """Restarts so far, each of which changes `run.recover`; None: as many as the checkpoint knows of."""
    below: int | None = None
    """Only a checkpoint of an earlier step than this one."""


def after_a_crash(message: str, restarts: int, events: Sequence[Event]) -> Resume:
    """From the newest checkpoint; from an older one where that checkpoint has led to the crash and to no newer one.

    >>> after_a_crash("OOM", 2, [Resumed(40, kept=3)]).below
    40
    """
    below = None
    for event in events:
        if isinstance(event, Resumed):
            below = event.step
        elif isinstance(event, Checkpointed) and not event.problem:
            below = None
    return Resume(f"restart {restarts} after a crash: {message}", (), restarts, below)


def out_of_memory(ended: Ended) -> bool:
    """Whether memory ran out: by the error, or by a SIGKILL, with which Linux ends a process that takes too much.

    >>> from grpo_lab.events import Crash
    >>> out_of_memory(Ended("crashed", "the child was ended by SIGKILL", Crash("unknown", "", "", "")))
    True
    """
    return ended.crash is not None and (ended.crash.kind == OUT_OF_MEMORY or "SIGKILL" in ended.message)


def in_smaller_passes(config: Config) -> Config | None:
    """The config with half the prompts in a forward-backward pass; None where a pass has one prompt alone.

    >>> found = in_smaller_passes(Config())
    >>> (found.data.micro_batch_prompts, in_smaller_passes(found.with_("data.micro_batch_prompts=1"))) if found else ()
    (8, None)
    """
    half = max(1, prompts_of_a_pass(config) // 2)
    return None if half == config.data.micro_batch_prompts else config.with_(f"data.micro_batch_prompts={half}")


def prompts_of_a_pass(config: Config) -> int:
    """Prompts of the largest forward-backward pass of a process, if completions are as long as they may be.

    Tokens of prompts do not count; where `data.micro_batch_prompts` is 0, long prompts make smaller passes than this.
    """
    asked, found = config.data.micro_batch_prompts, list[int]()
    if "grpo" in config.run.stages:
        for each in resolve(config):
            tokens = config.data.num_generations * each.sampling.max_completion_length
            found.append(min(each.num_prompts // config.run.processes, asked or max(1, AT_ONCE // tokens)))
    if "sft" in config.run.stages:
        rows = config.sft.batch_size // config.run.processes
        found.append(min(rows, asked or rows))
    return max(found)
