"""What the GPU tests share. `make gpu` runs them; without CUDA every one skips.

GRPO_LAB_GPU_DEVICE=cpu runs their logic, on a smaller model, where there is no GPU.
"""

import json
import os
import time
from pathlib import Path

import pytest
import torch

from grpo_lab.runs import environment

DEVICE = os.environ.get("GRPO_LAB_GPU_DEVICE", "cuda")


@pytest.fixture(scope="session")
def device() -> str:
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA here")
    return DEVICE


@pytest.fixture(scope="session")
def multinomial(device) -> str:
    """What the death in torch.multinomial is called on this device."""
    return "multinomial-cuda-linux" if device == "cuda" else "multinomial-cpu"


@pytest.fixture(scope="session")
def figures(device):
    """Numbers that the tests measure; written to gpu.json at the end, whether or not the tests pass."""
    found = {}
    yield found
    path = Path(os.environ.get("OUT", "benchmarks/results")) / ("gpu.json" if device == "cuda" else "gpu-dry-run.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": "make gpu", "environment": environment.describe()}
    path.write_text(json.dumps({**about, "results": found}, indent=2) + "\n", encoding="utf-8")
