"""torch's process-wide settings: a run sets its own, and the program that embeds the run keeps its own."""

import os
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from grpo_lab.config.sections import RunConfig
from grpo_lab.errors import ConfigError
from grpo_lab.training.snapshots import SMALL

P = ParamSpec("P")
T = TypeVar("T")
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


def num_threads(run: RunConfig, num_parameters: int) -> int:
    """CPU threads of torch in a run: as configured, else one for a small model, to which a second brings nothing."""
    return run.threads or (1 if num_parameters < SMALL else torch.get_num_threads())


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
