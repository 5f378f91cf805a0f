"""A CUDA device for tests that exists in Python alone: the CPU computes, torch believes that it is a GPU.

A `CudaTensor` says that it is on cuda:0 and holds a CPU tensor. Autograd, autocast, optimizers and the package see a
tensor of CUDA; below them every operator comes to `SimulatedCuda`, which refuses those that mix devices as CUDA would,
counts where the host waits for the device, and counts the operators that launch a kernel.

    with simulated_cuda() as gpu:
        for event in train(preset("stable").with_("run.device=cuda", "run.num_steps=2")):
            waits, launches = gpu.waits.copy(), gpu.launches.total()
            gpu.waits.clear(), gpu.launches.clear()
    assert waits.total() <= 50 and launches < 1600, waits.most_common()

It needs g++, for what torch's C++ asks about CUDA. It cannot tell speed, rounding, memory, the kernels that CUDA takes,
races of streams, or what is wrong in CUDA itself. One device; tensors in the thread of the block alone.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode

ATTENTION = torch.nn.functional.scaled_dot_product_attention
MOVES = {"_to_copy", "copy_", "copy", "_foreach_copy_"}  # may read one device and write the other
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_"}
NUMBERS = {"fill", "fill_", "masked_fill", "masked_fill_", "where"}  # take a number () of the CPU, as pointwise ones
NO_KERNEL = {"_local_scalar_dense", "lift_fresh", "detach", "empty", "empty_like", "empty_strided", "new_empty"}
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive"}
"""Operators of which the host must know the result, or its shape; an index by a mask is another one."""
NESTED = (tuple, list, dict)
ASSERTED = {"multinomial": "probability tensor contains", "embedding": "out of range", "gather": "out of bounds"}
"""What the CPU refuses at once; on CUDA an assertion fails, of which the host hears when it waits next."""


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same lists, tuples and dictionaries, with each leaf changed; torch's pytree takes three times as long."""
    if type(value) is dict:
        return {name: _mapped(each, change) for name, each in value.items()}
    if type(value) not in NESTED:
        return change(value)
    made = [_mapped(each, change) if type(each) in NESTED else change(each) for each in value]
    return made if type(value) is list else tuple(made)


def _leaves(*values: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(values, found.append)
    return found


def _held(value: Any) -> Any:
    return value.held if isinstance(value, CudaTensor) else value


class CudaTensor(torch.Tensor):
    """A tensor that says it is on cuda:0; `held` has its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Any:
        layout: Any = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made: Any = torch.Tensor._make_wrapper_subclass(cls, held.shape, device="cuda:0", **layout)  # type: ignore
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return SimulatedCuda.current.run(func, args, kwargs or {})

    def _take(self, value: Any) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.held = value.held

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = CudaTensor(self.held.clone()).requires_grad_(self.requires_grad)
            memo[id(self)]._is_param = getattr(self, "_is_param", False)
        return memo[id(self)]

    data = property(torch.Tensor.data.__get__, _take)  # type: ignore[attr-defined,assignment]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"on cuda:0, {self.held}"

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()


class Generator(torch._C.Generator):
    """A generator that knows its device, and draws as the CPU's of its seed. An operator is told its seed alone."""

    made_for: ClassVar[dict[int, str]] = {}
    of: torch.device

    def __new__(cls, device: Any = "cpu") -> Any:
        made = super().__new__(cls, "cpu")  # type: ignore[call-arg]
        made.of = torch.device(device)
        return made.manual_seed(super().seed(made))

    def manual_seed(self, seed: int) -> Any:
        Generator.made_for[seed] = self.of.type
        return super().manual_seed(seed)

    device = property(lambda self: self.of)  # type: ignore[assignment]


class SimulatedCuda(TorchDispatchMode):
    """The device. `waits` counts by line and reason, `launches` by operator; `pinned` has elements by address."""

    current: Any = None
    library: Any = None
    lost = heard = False
    """Whether an assertion has failed, and whether the host knows: from then on every operator on the GPU raises."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.launches, self.pinned = Counter[str](), Counter[str](), dict[int, int]()

    def wait(self, why: str) -> None:
        """Note that the host waits at this line. An assertion that failed before is known now, at the latest."""
        frame: Any = sys._getframe(1)
        while frame.f_back and ("-packages" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
            frame = frame.f_back
        line = f"{'/'.join(frame.f_code.co_filename.split('/')[-3:])}:{frame.f_lineno} {why}"
        self.waits[line] += 1
        self.heard = self.lost
        self._check()

    def _check(self) -> None:
        if self.heard:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One operator: check its devices, count it, compute it on the CPU, and say that its results are on the GPU."""
        name, target, flat = func.overloadpacket.__name__, kwargs.get("device"), list[Any]()
        cpu_args, cpu_kwargs = _mapped((args, kwargs), lambda leaf: flat.append(leaf) or _held(leaf))
        ours = [each for each in flat if isinstance(each, CudaTensor)]
        others = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, CudaTensor)]
        on_gpu = torch.device(target).type == "cuda" if target is not None else bool(ours)
        assert not any(each.is_cuda for each in others), f"{func}: a tensor came to CUDA by a way not simulated here"
        seeds = [each.initial_seed() for each in flat if isinstance(each, torch._C.Generator)]
        strangers = any((Generator.made_for.get(seed) == "cuda") != on_gpu for seed in seeds)
        if strangers or (ours and others and name not in MOVES and not _fits(func, name, args, others)):
            what = "a generator of the tensors' device" if strangers else "all tensors to be on the same device"
            raise RuntimeError(f"{func}: Expected {what}, but found cuda:0 and cpu!")
        if not ours and not on_gpu:
            return func(*args, **kwargs)
        self._check()
        self._count(func, name, args, kwargs, others, on_gpu)
        cpu_kwargs |= {"device": torch.device("cpu")} if target and on_gpu else {}
        pinned = cpu_kwargs.pop("pin_memory", False)
        try:
            result = func(*cpu_args, **cpu_kwargs)
        except (RuntimeError, IndexError) as error:
            if ASSERTED.get(name, "\0") not in str(error):
                raise
            self.lost, result = True, torch.zeros(1, dtype=torch.long).expand(len(args[0]), 1)
        if pinned:
            self.pinned[result.data_ptr()] = result.numel()
        if name == "_local_scalar_dense" or not on_gpu:
            return result
        known = {id(each.held): each for each in ours} | {id(each): each for each in others}
        for each in ours if func._schema.is_mutable else ():
            if each.shape != each.held.shape:  # squeeze_ and the like
                torch.Tensor.data.__set__(each, CudaTensor(each.held))  # type: ignore[attr-defined]
        new = [each for each in _leaves(result) if isinstance(each, Tensor) and id(each) not in known]
        known |= {id(each): CudaTensor(each) for each in new}
        return _mapped(result, lambda leaf: known.get(id(leaf), leaf))

    def _count(self, func: Any, name: str, args: Any, kwargs: Any, others: list[Tensor], on_gpu: bool) -> None:
        """Count the waits of an operator, and its kernels as far as they are known: one, or one for 64 tensors."""
        if name in WAITS:
            self.wait("item" if name == "_local_scalar_dense" else name)
        elif name == "_to_copy":
            self._copied(args[0], None, on_gpu, kwargs.get("non_blocking", False))
        elif name in ("copy_", "_foreach_copy_"):
            lists = [each if isinstance(each, list | tuple) else [each] for each in args[:2]]
            for into, tensor in zip(*lists, strict=True):
                self._copied(tensor, into, into.is_cuda, kwargs.get("non_blocking", args[2:3] == (True,)))
        elif name in INDEXING:
            number, indices = any(not x.is_cuda for x in args[2:3]), [x for x in args[1] if x is not None]
            masks = sum(x.dtype in (torch.bool, torch.uint8) for x in indices)
            reasons = ["an index to the GPU"] * sum(not x.is_cuda for x in indices)
            reasons += ["index by a mask"] * (not number and masks) + ["a number to the GPU"] * (number and not masks)
            for reason in reasons:  # a number for a mask becomes masked_fill, which waits for nothing
                self.wait(reason)
        if not (func.is_view or name in NO_KERNEL):
            listed: Any = args[0] if args and isinstance(args[0], list | tuple) else [None]
            singly = len({x.dtype for x in listed}) > 1 if name == "cat" else others and name == "_foreach_copy_"
            self.launches[name] += len(listed) if singly else -(-len(listed) // 64)

    def _copied(self, tensor: Tensor, into: Tensor | None, to_gpu: bool, non_blocking: bool) -> None:
        """Count the wait of a copy between host and device. To the host it is one, unless the memory is pinned."""
        if tensor.is_cuda == to_gpu or not tensor.numel():
            return
        if not non_blocking or not (to_gpu or (into is not None and into.data_ptr() in self.pinned)):
            self.wait("to the GPU" if to_gpu else "to the host")


def _fits(func: Any, name: str, args: Any, others: list[Tensor]) -> bool:
    """Whether CUDA takes these tensors of the CPU beside its own: indices, lists row by row, or one number."""
    if name in INDEXING:
        return args[0].is_cuda and all(x.dim() == 0 for x in args[2:3] if not x.is_cuda)
    if name.startswith(("_foreach", "_fused")):
        rows = zip(*(x for x in args if isinstance(x, list | tuple) and x), strict=False)
        return all(len({x.is_cuda for x in row if isinstance(x, Tensor)}) == 1 for row in rows)
    written = func._schema.is_mutable and args[0] is others[0]
    pointwise = torch.Tag.pointwise in func.tags or name in NUMBERS
    return len(others) == 1 and others[0].dim() == 0 and pointwise and not written


def _torch_cuda(gpu: SimulatedCuda) -> dict[str, Any]:
    """What `torch.cuda` answers."""
    answers: dict[str, Any] = {"device_count": 1, "current_device": 0, "get_device_capability": (9, 0)}
    answers |= {"get_device_name": "a simulated GPU", "mem_get_info": (79 << 30, 80 << 30)}
    answers |= dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True)
    answers |= dict.fromkeys(("_lazy_init", "init", "empty_cache", "set_device", "manual_seed", "manual_seed_all"))
    answers |= dict.fromkeys(("memory_allocated", "max_memory_allocated", "max_memory_reserved"), 0)
    answers["reset_peak_memory_stats"] = None
    found = {name: lambda *_, answer=answer, **__: answer for name, answer in answers.items()}
    return found | {"synchronize": lambda *_: gpu.wait("synchronize")}


def _library() -> Any:
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "g++",
            "-std=c++20",
            "-shared",
            "-fPIC",
            Path(__file__).with_suffix(".cpp"),
            "-o",
            f"{folder}/cuda.so",
        ]
        subprocess.run([*command, f"-I{root}/include", f"-L{root}/lib", "-lc10", "-ltorch_cpu"], check=True)
        return ctypes.CDLL(f"{folder}/cuda.so")


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, **more: Any):
    """Attention as one kernel, as CUDA has it, and the one that the CPU takes for the same run."""
    given: Any = (query, key, value, attn_mask, dropout_p)
    held = _mapped(given, _held)
    choice = torch._fused_sdp_choice(*held, **more) if query.is_cuda else None  # type: ignore[attr-defined]
    if choice != torch.nn.attention.SDPBackend.FLASH_ATTENTION.value:
        return ATTENTION(*given, **more)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, attn_mask.new_full((), -torch.inf, dtype=query.dtype))
    causal, scale = more.get("is_causal", False), more.get("scale")
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(query, key, value, dropout_p, causal, attn_mask=attn_mask, scale=scale)[0]


@contextmanager
def simulated_cuda() -> Iterator[SimulatedCuda]:
    """A block in which there is a GPU."""
    gpu = SimulatedCuda.current = SimulatedCuda()
    SimulatedCuda.library = SimulatedCuda.library or _library()
    kinds = [*_foreach_utils._foreach_supported_types, CudaTensor]
    with ExitStack() as stack:
        tied = torch.__future__.set_swap_module_params_on_conversion  # module.to("cuda") keeps its parameters
        seen = torch._C._set_only_lift_cpu_tensors  # torch.tensor(..., device="cuda") comes to `run`
        for switch in (SimulatedCuda.library.simulate, tied, seen):
            switch(True)
            stack.callback(switch, False)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(patch.multiple(torch.cuda, **_torch_cuda(gpu)))
        stack.enter_context(patch.object(torch, "Generator", Generator))
        stack.enter_context(patch.object(torch.nn.functional, "scaled_dot_product_attention", _attention))
        stack.enter_context(patch.object(_foreach_utils, "_foreach_supported_types", kinds))
        yield stack.enter_context(gpu)
