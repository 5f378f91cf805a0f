"""What the GPU tests share. `make gpu` runs them on CUDA, in three calls; figures and outcomes go to gpu.json.

Without CUDA, or with GRPO_LAB_GPU_DEVICE=cpu, they run on the CPU, smaller, so that CI tests all of their code.
"""

import gc
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_lab.config.catalog import scenario_names
from grpo_lab.runs import environment

DEVICE = os.environ.get("GRPO_LAB_GPU_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
PRESENT = DEVICE != "cuda" or torch.cuda.is_available()


@pytest.fixture(scope="session")
def device() -> str:
    if not PRESENT:
        pytest.skip("no CUDA here")
    return DEVICE


@pytest.fixture(scope="session")
def multinomial(device) -> str:
    """What the death in torch.multinomial is called on this device."""
    return "multinomial-cuda-linux" if device == "cuda" else "multinomial-cpu"


NAMES = scenario_names() if DEVICE == "cuda" else ["zero-times-infinity"]
"""The scenarios that run on this device."""


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames and metafunc.module.__name__.endswith("test_scenarios"):
        metafunc.parametrize("name", NAMES)


def pytest_collection_modifyitems(items):
    """On the CPU the first variant of each test stands for all: there only the code of the tests is tried."""
    seen, kept = set(), []
    for item in items:
        test = item.nodeid.partition("[")[0]
        if DEVICE == "cuda" or not test.startswith("tests/gpu/") or test not in seen:
            kept.append(item)
        seen.add(test)
    items[:] = kept


@pytest.fixture(scope="session")
def names() -> list[str]:
    return list(NAMES)


@pytest.fixture
def figures(device):
    """Numbers that the test measures; they are in the file as soon as the test is over, whether or not it passed."""
    found: dict[str, Any] = {}
    yield found
    keep({"results": found})


@pytest.fixture(autouse=True)
def empty(device):
    """A function that frees what no one holds and forgets the peaks; no test pays for the memory of the one before."""

    def free():
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    free()
    return free


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Keep the outcome of every test beside the figures, with the text of its error or the reason of its skip."""
    report = yield
    if PRESENT and (report.when == "call" or not report.passed):
        outcome = {"outcome": report.outcome, "seconds": round(report.duration, 2), "date": now(), "text": ""}
        if not report.passed:
            outcome["text"] = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(call.excinfo.value)
        keep({"tests": {item.nodeid.removeprefix("tests/gpu/"): outcome}})
    return report


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def path() -> Path:
    """The file: among the benchmarks' results on CUDA, else in the folder `runs`, one for each worker of pytest."""
    if DEVICE == "cuda":
        return Path(os.environ.get("OUT") or "benchmarks/results") / "gpu.json"
    return Path(os.environ.get("OUT") or "runs") / f"gpu-dry-run{os.environ.get('PYTEST_XDIST_WORKER', '')}.json"


def keep(found: Mapping[str, Any]) -> None:
    """Lay what was found over the file, which holds the tests and calls before."""
    file = path()
    whole = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    merge(whole, {"date": now(), "command": "make gpu", "environment": environment.describe(), **found})
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    new.replace(file)  # at once: a kill leaves the old file or the new one


def merge(whole: dict[str, Any], found: Mapping[str, Any]) -> None:
    """Lay a nested dictionary over another one."""
    for name, value in found.items():
        if isinstance(value, Mapping) and isinstance(whole.get(name), dict):
            merge(whole[name], value)
        else:
            whole[name] = value
