"""A healthy run on this device learns."""

import statistics
import time

import pytest

from grpo_lab.config.catalog import preset
from grpo_lab.events import Stepped
from grpo_lab.training.trainer import train

WINDOW = 10


@pytest.mark.slow
def test_a_healthy_run_learns(device, figures):
    seconds, gain = (30, 0.2) if device == "cuda" else (5, 0.05)
    overrides = ("run.num_steps=100000", f"run.device={device}", "sampling.max_completion_length=5")
    started, rewards = time.perf_counter(), []
    for event in train(preset("stable").with_(*overrides)):
        if isinstance(event, Stepped):
            assert event.metrics["weights/nonfinite"] == 0
            rewards.append(event.metrics["reward"])
        if time.perf_counter() - started > seconds and len(rewards) >= 3 * WINDOW:
            break
    first, last = statistics.fmean(rewards[:WINDOW]), statistics.fmean(rewards[-WINDOW:])
    figures["learning, tiny"] = {
        "seconds": seconds,
        "steps": len(rewards),
        "reward of the first steps": round(first, 3),
        "reward of the last steps": round(last, 3),
    }
    assert last >= first + gain, f"{len(rewards)} steps: reward {first:.3f} -> {last:.3f}"
