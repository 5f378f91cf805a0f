"""Metrics of a step beside those of the chain; they change nothing."""

import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from grpo_lab.core.hooks import Stage
from grpo_lab.events import LinkNote
from grpo_lab.training.interventions import ObjectiveCoefficients, Step


def of_updates(ctx: Step, scale: float | None) -> dict[str, float]:
    """The coefficients as used, the loss scale, and the largest change of a weight, as far as each is known."""
    use, move = ctx.coefficients, ctx.largest_move()
    found = {"learning_rate": use.learning_rate, "beta": use.beta} if use else {}
    if isinstance(use, ObjectiveCoefficients):
        each = {f"beta/{name}": beta for name, beta in use.betas.items()}
        found |= {"beta": statistics.fmean(each.values()), **each}
    found |= {} if scale is None else {"loss_scale": scale}
    return found if move is None else {**found, "weights/max_move": move}


def last_weights(links: Sequence[LinkNote]) -> LinkNote | None:
    """The note of the weights after the last update of a step; None where it had none."""
    return next((note for note in reversed(links) if note.link == Stage.WEIGHTS), None)


def memory(device: torch.device) -> dict[str, float]:
    """The most memory in MiB that this process has used so far, by metric; nothing under Windows without CUDA."""
    if device.type == "cuda":
        used, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        return {"run.memory": used / 2**20, "run.memory_reserved": reserved / 2**20}
    if sys.platform == "linux":  # not getrusage, which counts for a child what its parent had before the exec
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        return {"run.memory": int(peak[1]) / 2**10} if peak else {}
    if sys.platform == "win32":
        return {}
    import resource  # Unix only

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return {"run.memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
