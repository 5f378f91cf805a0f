"""Crashes: kind, operator and explanation of an error's text, from data/crashes.toml; how a run goes on after one."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch

from grpo_lab.config.schema import Config
from grpo_lab.core.batch import AT_ONCE
from grpo_lab.events import Checkpointed, Crash, Ended, Event, Resumed
from grpo_lab.paths import data_tables, rows
from grpo_lab.training.objectives import resolve


class _Known(NamedTuple):
    pattern: str
    operator: str
    explanation: str


_CRASHES = rows(_Known, data_tables("crashes"))
"""By kind; the first pattern that matches counts."""
HANG, OUT_OF_MEMORY = "hang", "out-of-memory"
"""The kinds of a run that its watchdog ended, and of one that did not fit."""


def classify_crash(text: str) -> Crash:
    """The crash that an error's text tells of, on the CPU or on CUDA under Linux or Windows.

    >>> classify_crash("TensorCompare.cu:110: block: [0,0,0] Assertion `input[0] != 0` failed.").operator
    'torch.multinomial'
    >>> classify_crash("probability tensor contains either `inf`, `nan` or element < 0").kind
    'multinomial-cpu'
    """
    for kind, (pattern, operator, explanation) in _CRASHES.items():
        if re.search(pattern, text):
            line = next((line for line in text.splitlines() if re.search(pattern, line)), text)
            return Crash(kind, operator, line.strip(), explanation)
    last = text.strip().splitlines()[-1] if text.strip() else "no text"
    return Crash("unknown", "unknown", last, "Not a crash known here; the whole text is in the run folder.")


def context_lost(error: BaseException) -> bool:
    """Whether the CUDA context of this process is lost, with every tensor in it, so that only a new process can go on.

    An assertion fails between two calls, and the error that tells of it may be of any type and come from any later one.
    """
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
    return isinstance(error, torch.AcceleratorError)


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
