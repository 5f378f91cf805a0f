"""The environment of a run: versions, device and threads, as environment.json and `grpo-lab doctor` show them."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from grpo_lab.models.loading import device_type

PACKAGES = ("grpo-lab", "torch", "transformers", "numpy", "pandas", "matplotlib", "safetensors")
IMPORTS = 410 * 2**20
"""Bytes of a process that has imported all that a run needs, before it has a model."""
CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files of the limit and of the usage of memory in a container, by either version of control groups."""


def describe(threads: int = 0, device: str = "auto") -> dict[str, Any]:
    """Versions, device and threads as plain values; `threads` are those of the config.

    For 0 it is torch's own number, of which a run of a model below ten million parameters takes one. For a device
    other than CUDA this process gets no CUDA context.
    """
    cuda = device_type(device) == "cuda" and torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu_count": os.cpu_count(),
        "threads": threads or torch.get_num_threads(),
        "cuda": torch.version.cuda if cuda else None,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "attention": _attention(cuda),
    }


def _attention(cuda: bool) -> str:
    """The kernels of which torch takes the first that can compute an attention; a run switches cuDNN's off."""
    # On CUDA, flash attention takes no mask, and every pass of a run has one.
    kernels = {"flash": not cuda and torch.backends.cuda.flash_sdp_enabled()}
    kernels |= {"memory-efficient": cuda and torch.backends.cuda.mem_efficient_sdp_enabled()}
    kernels |= {"math": torch.backends.cuda.math_sdp_enabled()}
    return f"sdpa: {', '.join(name for name, on in kernels.items() if on)}; cuDNN off"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def free_mib(device: str) -> float | None:
    """MiB that a further process can take on this device, or None where a GPU does not say.

    On a CPU it is the memory available on the machine, or less where a container has a limit. A GPU is asked by a child
    process, so that this one gets no CUDA context; the context of the child is taken off.
    """
    if device_type(device) == "cuda":
        name = "cuda" if device == "auto" else device
        asked = f"import torch; print(torch.cuda.mem_get_info({name!r})[0])"
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
        return int(done.stdout) / 2**20 if not done.returncode else None
    rooms = [psutil.virtual_memory().available]
    for limit, usage in CONTROL_GROUPS:
        with suppress(OSError, ValueError):  # no such group, or no limit ("max")
            rooms.append(int(Path(limit).read_text()) - int(Path(usage).read_text()))
    return min(rooms) / 2**20
