"""A healthy run on this device learns."""

import statistics
import time

from grpo_lab.config.catalog import preset
from grpo_lab.events import Stepped
from grpo_lab.training.trainer import train

SECONDS = 30
WINDOW = 10


def test_a_healthy_run_learns(device, figures):
    overrides = ("run.num_steps=100000", f"run.device={device}", "sampling.max_completion_length=5")
    started, rewards = time.perf_counter(), []
    for event in train(preset("stable").with_(*overrides)):
        if isinstance(event, Stepped):
            assert event.metrics["weights/nonfinite"] == 0
            rewards.append(event.metrics["reward"])
        if time.perf_counter() - started > SECONDS:
            break
    first, last = statistics.fmean(rewards[:WINDOW]), statistics.fmean(rewards[-WINDOW:])
    figures["learning, tiny"] = {
        "seconds": SECONDS,
        "steps": len(rewards),
        "reward of the first steps": round(first, 3),
        "reward of the last steps": round(last, 3),
    }
    assert last >= first + 0.2, f"{len(rewards)} steps: reward {first:.3f} -> {last:.3f}"
