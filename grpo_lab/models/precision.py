"""The five precisions of a run, and fp16 matrix products on a CPU, which are summed in fp32 and rounded once."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Precision:
    """The number formats of weights and forward passes; `scaler` is whether gradients need a loss scale."""

    weights: torch.dtype
    autocast: torch.dtype | None
    scaler: bool

    def exact(self, device: torch.device) -> bool:
        """Whether two passes differ by no more than fp32's rounding; with TF32 products on CUDA they differ by more."""
        tf32 = device.type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32"
        return self.autocast is None and self.weights == torch.float32 and not tf32


# "fp16" and "bf16" keep fp32 master weights, as mixed precision should; the "pure" ones overflow. They too compute
# log-probabilities in fp32, as trainers do: weights and gradients overflow, not log-probabilities.
PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(torch.float32, None, scaler=False),
    "bf16": Precision(torch.float32, torch.bfloat16, scaler=False),
    "fp16": Precision(torch.float32, torch.float16, scaler=True),
    "fp16_pure": Precision(torch.float16, None, scaler=False),
    "bf16_pure": Precision(torch.bfloat16, None, scaler=False),
}


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The mixed precision of that name, as a context manager; it does nothing for the others."""
    dtype = PRECISIONS[precision].autocast
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(input.float(), self.weight.float(), bias).to(input.dtype)


class _Conv1D(Conv1D):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.float(), self.weight.float().t(), self.bias.float()).to(x.dtype)


_WIDE: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: _Linear, Conv1D: _Conv1D}


def widen_products(model: nn.Module) -> None:
    """Compute the products of an fp16 model's linear layers in fp32, forward and backward, rounded to fp16 once.

    Weights, activations and gradients stay fp16 and overflow as before. torch's own fp16 products on a CPU compute the
    same sums without vector instructions: 30 to 40 times slower if the weights are not transposed.
    """
    for module in model.modules():
        module.__class__ = _WIDE.get(type(module), type(module))


def fuse_gelu(model: nn.Module) -> None:
    """Compute GPT-2's activation by one kernel of torch. transformers takes eight, and keeps five tensors for backward.

    Only for fp32 weights: in fp16 the cube overflows, which is part of what a run shows.
    """
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if type(child).__name__ == "NewGELUActivation":  # its module imports for seconds
                setattr(module, name, nn.GELU(approximate="tanh"))
