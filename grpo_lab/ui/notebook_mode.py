"""The mode of a notebook: interactive or headless (`GRPO_LAB_HEADLESS=1`), in full or short (`GRPO_LAB_FAST=1`), with
model answers or without (`GRPO_LAB_NO_ANSWERS=1`)."""

import os
import sys
from typing import Any

from grpo_lab.config.schema import Config

SHORT, FEW = 12, 16
"""Steps of a run, and held-out problems that it is measured on, when `GRPO_LAB_FAST` is set."""


def _asked(*names: str) -> bool:
    return any(os.environ.get(name, "0") not in ("", "0") for name in names)


def ipython() -> Any:
    """The IPython shell of this process, or None: where there is one, IPython has been imported."""
    module = sys.modules.get("IPython")
    return module and module.get_ipython()


def headless() -> bool:
    """Whether no button can be pressed: by request, in grading, or without a Jupyter kernel."""
    return _asked("GRPO_LAB_HEADLESS", "NBGRADER_EXECUTION") or getattr(ipython(), "kernel", None) is None


def without_answers() -> bool:
    """Whether an instructor hides the model answers."""
    return _asked("GRPO_LAB_NO_ANSWERS")


def shortened(config: Config) -> Config:
    """The config, with at most 12 steps and 16 held-out problems if runs are cut short."""
    if not _asked("GRPO_LAB_FAST"):
        return config
    least = {"num_steps": min(SHORT, config.run.num_steps), "num_eval": min(FEW, config.run.num_eval)}
    return config.with_(*(f"run.{name}={value}" for name, value in least.items()))


def settled(config: Config) -> Config:
    """The config as a notebook runs it: with a number of threads, and cut short if runs are.

    One core stays free for the live plot. The tiny model has one thread, so that a lab has the same bits everywhere.

    >>> settled(Config()).run.threads
    1
    """
    if not config.run.threads:
        threads = 1 if config.model.name == "tiny" else max(1, (os.cpu_count() or 1) - 1)
        config = config.with_(f"run.threads={threads}")
    return shortened(config)
