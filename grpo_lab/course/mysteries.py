"""Anonymous runs for diagnosis: recordings with only the content of a log, in an order drawn from a seed.

The eight that ship have seed 0, and any learner can compute their key: they are for practice. For a grade, `make`
others with a secret seed, and judge within `of_seed`. docs/labs.md explains the steps.
"""

import dataclasses
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from grpo_lab import seeds
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Verdict
from grpo_lab.events import Event, Started, Stepped, to_json
from grpo_lab.paths import data_tables

SHIPPED = 0
"""The seed of the runs in data/recordings."""
_RUNS = data_tables("mysteries")
CAUSES = (*_RUNS,)
"""One run each, with the names that `gl.diagnose` uses."""
DECOYS = ("gradient-lost", "stale-rollouts", "nan-reward")
"""Causes that seem to fit, without a run of their own."""


def key(seed: int = SHIPPED) -> dict[int, str]:
    """The cause of each of the runs 1 to 8 of a seed.
    >>> sorted(key().values()) == sorted(CAUSES) and key(1) != key(2)
    True
    """
    order = list(CAUSES)
    random.Random(seeds.derive(seed, 0, "mysteries")).shuffle(order)
    return dict(enumerate(order, start=1))


_ASKED_ABOUT: ContextVar[int | None] = ContextVar("mysteries", default=None)


@contextmanager
def of_seed(seed: int) -> Iterator[None]:
    """Judge lists by the key of this seed in the `with` block. A grader always sets it, also for SHIPPED.
    >>> with of_seed(731):
    ...     key_in_force() == key(731)
    True
    """
    token = _ASKED_ABOUT.set(seed)
    try:
        yield
    finally:
        _ASKED_ABOUT.reset(token)


def key_in_force() -> dict[int, str] | None:
    """The key to judge by, or None where no seed is set and other runs than the shipped ones lie beside the notebook.

    The instructor has the key of those runs.
    """
    seed = _ASKED_ABOUT.get()
    if seed is None and Path(name(1)).exists():  # `recordings.find` prefers it
        return None
    return key(SHIPPED if seed is None else seed)


def name(number: int) -> str:
    """The name of the recording with that number."""
    return f"mystery-{number}"


def make(directory: str | Path, seed: int = SHIPPED) -> None:
    """Train the runs of a seed, about a second each, and write the content of a log to mystery-1 to mystery-8.

    Raises RunError for a folder that holds them already or cannot be written.
    """
    from grpo_lab.course.trials import HERE  # loads transformers, which a key alone does not need
    from grpo_lab.runs import run_folder
    from grpo_lab.runs.session import Session

    for number, cause in key(seed).items():
        told = _RUNS[cause]
        config = scenario(told["scenario"]).config() if "scenario" in told else preset(told["preset"])
        config = config.with_(*told["overrides"], *HERE, f"run.seed={seed}")
        with tempfile.TemporaryDirectory(prefix="grpo-lab-") as scratch:
            session = Session(config, Path(scratch) / "run").run()
            target = Path(directory) / name(number)
            # A log shows the length of the run and the size of its batch; every other setting is missing.
            kept = ("tasks", "num_prompts", "num_generations")
            data = {setting: getattr(session.config.data, setting) for setting in kept}
            shown = {"run": {"name": name(number), "num_steps": session.config.run.num_steps}, "data": data}
            run_folder.begin(target, Config.from_dict(shown))
            (target / run_folder.CONFIG).write_text(json.dumps(shown, indent=2) + "\n", encoding="utf-8")
            lines = (to_json(_stripped(event, shown)) + "\n" for event in session.events)
            (target / run_folder.EVENTS).write_text("".join(lines), encoding="utf-8")
            shutil.copy(session.directory / run_folder.ENVIRONMENT, target)


def _stripped(event: Event, shown: dict[str, Any]) -> Event:
    """The event without settings and without actions, whose names include the faults."""
    if isinstance(event, Started):
        return dataclasses.replace(event, config=shown)
    if isinstance(event, Stepped):
        metrics = {metric: value for metric, value in event.metrics.items() if metric != "beta"}
        return dataclasses.replace(event, actions=(), verdict=Verdict.KEEP, metrics=metrics)
    return event
