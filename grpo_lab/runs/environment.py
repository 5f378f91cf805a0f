"""The environment of a run: versions, device and threads, as environment.json and `grpo-lab doctor` show them."""

import os
import platform
from importlib.metadata import distributions
from typing import Any

import torch

from grpo_lab.models.loading import device_type

PACKAGES = ("grpo-lab", "torch", "transformers", "numpy", "pandas", "matplotlib", "safetensors")


def describe(threads: int = 0, device: str = "auto") -> dict[str, Any]:
    """Versions, device and threads as plain values; `threads` are those of the config.

    For 0 it is torch's own number, of which a run of a model below ten million parameters takes one. For a device
    other than CUDA this process gets no CUDA context.
    """
    cuda = device_type(device) == "cuda" and torch.cuda.is_available()
    # Torch takes the first of these kernels that can compute an attention: on CUDA, flash attention takes no mask, and
    # every pass of a run has one. A run switches cuDNN's off.
    kernels = {"flash": not cuda and torch.backends.cuda.flash_sdp_enabled()}
    kernels |= {"memory-efficient": cuda and torch.backends.cuda.mem_efficient_sdp_enabled()}
    kernels |= {"math": torch.backends.cuda.math_sdp_enabled()}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: next((each.version for each in distributions(name=name)), None) for name in PACKAGES},
        "cpu_count": os.cpu_count(),
        "threads": threads or torch.get_num_threads(),
        "cuda": torch.version.cuda if cuda else None,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "attention": f"sdpa: {', '.join(name for name, on in kernels.items() if on)}; cuDNN off",
    }
