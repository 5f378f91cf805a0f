"""The most memory that a few steps take on this machine, measured in a child process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from grpo_lab.config.schema import Config, planned_steps
from grpo_lab.errors import RunError
from grpo_lab.events import Stepped
from grpo_lab.runs import full_length, memory
from grpo_lab.runs.record import View
from grpo_lab.runs.session import Session

STEPS = 3
"""All memory is in use in the third step: the first update makes the moments, and the next snapshot has them."""
LENGTHS = {"sft": "sft.num_steps", "grpo": "run.num_steps"}
"""The setting of each stage's length."""


def measure(config: Config, views: Sequence[View] = (), stage: str = "grpo") -> float:
    """MiB that a child process takes at most over three steps of a stage; on CUDA its tensors.

    Sampled completions have full length.

    Raises RunError where not one step ended, and the errors of a run.
    """
    model = memory.outline(config)
    never_end = f"faults.{full_length.__file__}:{full_length.NeverEnd.__name__}.end={model.tokenizer.eos_token_id}"
    due_later = 0 < memory.snapshot_interval(config, model) < planned_steps(config.to_dict())[stage]
    every = ["run.snapshot_every=1"] if due_later else []
    with tempfile.TemporaryDirectory() as folder:
        short = config.with_(f"run.stages={stage}", f"{LENGTHS[stage]}={STEPS}", never_end, *every)
        session = Session(short, Path(folder) / "run", child=True)
        session.views.extend(views)
        session.run()
    steps = [event for event in session.events if isinstance(event, Stepped)]
    if not steps or "run.memory" not in steps[-1].metrics:
        ended = session.ended.message if session.ended else "it did not end"
        raise RunError(f"memory was not measured: no step told its memory ({ended}); see the prediction alone")
    return steps[-1].metrics["run.memory"]
