"""Matrix products of fp16 weights on a CPU, as a GPU does them: added up in fp32, and rounded once."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(input.float(), self.weight.float(), bias).to(input.dtype)


class _Conv1D(Conv1D):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.float(), self.weight.float().t(), self.bias.float()).to(x.dtype)


_WIDE: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: _Linear, Conv1D: _Conv1D}


def widen_products(model: nn.Module) -> None:
    """Give the linear layers of an fp16 model products in fp32, forward and backward, rounded to fp16 once.

    Weights, activations and gradients stay fp16, so that what overflows there still does. torch's own fp16 products on
    a CPU do the same sums without vector instructions: 30 to 40 times slower where the weights are not transposed.
    """
    for module in model.modules():
        module.__class__ = _WIDE.get(type(module), type(module))
