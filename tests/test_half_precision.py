"""Products in fp32 change how a sum of fp16 numbers is rounded on a CPU, and nothing else."""

import copy

import pytest
import torch
from torch import nn
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from grpo_lab.models.precision import fuse_gelu, widen_products

LAYERS = {
    "linear": lambda: nn.Linear(8, 5),
    "as GPT-2 has it": lambda: Conv1D(5, 8),
}


@pytest.fixture(params=LAYERS)
def pair(request):
    """A layer as it is, and a copy whose products are wide."""
    torch.manual_seed(0)
    plain = LAYERS[request.param]().half()
    wide = copy.deepcopy(plain)
    widen_products(wide)
    return plain, wide


def passed(layer, scale=1.0):
    """What a layer gives, and the gradients of its weight and its input."""
    given = (torch.arange(24.0).reshape(3, 8) / 10 * scale).half().requires_grad_()
    answer = layer(given)
    answer.backward(torch.ones_like(answer) * scale)
    return answer.detach(), layer.weight.grad, given.grad


def test_values_and_gradients_are_the_same_up_to_rounding(pair):
    for plain, wide in zip(*map(passed, pair), strict=True):
        assert wide.dtype == torch.float16
        torch.testing.assert_close(wide, plain, rtol=2e-3, atol=2e-3)


def test_what_overflows_fp16_still_does(pair):
    _, weight, _ = passed(pair[1], scale=300.0)
    assert weight.isinf().any() and not weight.isnan().any()


def test_a_copy_has_weights_of_its_own(pair):
    """The reference is a copy of the policy, and must stay when the policy moves."""
    _, wide = pair
    reference, before = copy.deepcopy(wide), passed(wide)[0]
    nn.init.zeros_(wide.weight)
    assert torch.equal(passed(reference)[0], before)
    assert not torch.equal(passed(wide)[0], before)


def test_the_fused_activation_is_the_same_function():
    fused = nn.Sequential(NewGELUActivation())
    fuse_gelu(fused)
    given = [torch.linspace(-8, 8, 1001).requires_grad_() for _ in range(2)]
    for act, values in zip((NewGELUActivation(), fused), given, strict=True):
        act(values).square().sum().backward()
    torch.testing.assert_close(given[0].grad, given[1].grad, rtol=1e-5, atol=1e-5)
