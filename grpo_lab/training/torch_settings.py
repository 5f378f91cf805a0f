"""torch's process-wide settings: a run sets its own, and the program that embeds the run keeps its own.

The memory that the process has used is measured here, too.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from grpo_lab.config.sections import RunConfig
from grpo_lab.errors import ConfigError
from grpo_lab.training.snapshots import SMALL

P = ParamSpec("P")
T = TypeVar("T")
TRIALS = 8
"""Times that each number of threads is tried."""
WORTH = 0.85
"""Share of the time without it that a run with more threads may take, so that they are worth it."""
MATMUL, CUBLAS = torch.backends.cuda.matmul, "CUBLAS_WORKSPACE_CONFIG"


REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


def _reduction(name: str) -> Any:
    """Whether sums of half-precision products may be rounded, with split-k where this torch tells the two apart."""
    allowed, split_k = getattr(MATMUL, name), getattr(MATMUL, f"{name}_split_k", None)
    return allowed if split_k is None else (allowed, split_k)


def _device() -> int:
    """The current GPU; 0, as a context begins, where there is no context."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    *((partial(_reduction, name), partial(setattr, MATMUL, name)) for name in REDUCTIONS),
    (_device, lambda index: torch.cuda.set_device(index)),
)


def num_threads(run: RunConfig, num_parameters: int, device: torch.device) -> int:
    """CPU threads of torch in a run: as configured, else all for a large model, and for a small one the fastest number.

    Several processes of a small model have one each.
    """
    if run.threads or num_parameters >= SMALL:
        return run.threads or torch.get_num_threads()
    return 1 if device.type != "cpu" or run.processes > 1 else fastest(torch.get_num_threads())


def fastest(most: int) -> int:
    """The number of threads, up to `most`, that is fastest now for products of the size that a small model has.

    On an idle core a second thread takes a third off a step; beside other work on that core it can double it. Numbers
    are tried for a few tenths of a second before training, so that a run has one number, and with it its bits.
    """
    best, before = 1, torch.get_num_threads()
    for count in [*(c for c in (2, 4, 8, 16, 32, 64) if c < most), most] if most > 1 else ():
        times = dict.fromkeys((best, count), 0.0)
        for _ in range(TRIALS):
            for each in times:
                times[each] += _seconds(each)
        if times[count] > WORTH * times[best]:
            break
        best = count
    torch.set_num_threads(before)
    return best


def _seconds(threads: int) -> float:
    """The time of some products on this many threads, as for decoded tokens and for a pass of the tiny model."""
    torch.set_num_threads(threads)
    weight, few, many = torch.ones(128, 512), torch.ones(128, 128), torch.ones(512, 128)
    begin = time.perf_counter()
    for _ in range(8):
        for states in (few, few, few, many):
            torch.nn.functional.gelu(states @ weight)
    return time.perf_counter() - begin


def prepare(run: RunConfig, device: torch.device) -> None:
    """Make the settings of a run on this device, apart from its threads.

    Raises ConfigError for a deterministic run on CUDA where cuBLAS is not told to be deterministic.
    """
    # On H100 and H200, torch from 2.11 on gives fp16 and bf16 attention to cuDNN. That makes a plan for each new shape
    # (decoding changes the shape at every token), and returns NaN for rows that attend to nothing, as left-padded
    # prompts have them, and gradients of NaN where length % 128 == 64 (pytorch #196678, trl #7181).
    torch.backends.cuda.enable_cudnn_sdp(False)
    for name in REDUCTIONS:
        setattr(MATMUL, name, False)  # products in half precision add up in fp32, as on the CPU
    if device.index:
        torch.cuda.set_device(device)  # streams, graphs and `synchronize` mean the current one
    if run.deterministic:
        if device.type == "cuda" and os.environ.get(CUBLAS) not in (":4096:8", ":16:8"):
            raise ConfigError(
                f"run.deterministic needs {CUBLAS}=:4096:8 in the environment before CUDA starts; set it and start "
                "again, or train in a child process (child=True), which sets it"
            )
        # use_deterministic_algorithms would load the compiler, for a second
        torch.set_deterministic_debug_mode("error")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # a child process trains several runs


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


def own_settings(events: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Decorate a generator so that torch's process-wide settings are its own while it computes.

    At every event its caller has the caller's settings back, so that an error or a generator that is closed early
    leaves nothing behind, and generators taken in turns do not disturb each other.
    """

    @wraps(events)
    def exchanged(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        inner, own = events(*args, **kwargs), _read()
        while True:
            callers = _read()
            _write(own)
            try:
                event = next(inner)
            except StopIteration:
                return
            finally:
                own = _read()
                _write(callers)
            yield event

    return exchanged


def _read() -> list[Any]:
    return [get() for get, _ in _SETTINGS]


def _write(values: list[Any]) -> None:
    for (get, put), value in zip(_SETTINGS, values, strict=True):
        if get() != value:
            put(value)
