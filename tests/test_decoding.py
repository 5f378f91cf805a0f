"""Masks of our own, in decoding and in passes."""

import copy

import pytest
import torch
from torch import tensor

from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.packing import visible
from grpo_lab.errors import ConfigError
from grpo_lab.models import loading
from grpo_lab.training import passes, rollouts

PROMPTS = ["1+2=", "10+20=", "7+99=", "3+3="]
"""Of three lengths, so that left padding is real."""


@pytest.fixture(scope="module")
def tiny():
    return loading.load("tiny")


def draw(tiny, **sampling):
    (model, tokenizer), generator = tiny, torch.Generator().manual_seed(0)
    config = SamplingConfig(**{"max_completion_length": 6, **sampling})
    return rollouts.sample(model, tokenizer, PROMPTS, 4, config, generator)


# --- masks -----------------------------------------------------------------------------------------------------------


def test_a_padded_position_sees_padding_and_no_token_sees_it():
    """A row of a mask that is all False gives NaN in cuDNN's attention."""
    keys = tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    seen = visible(keys)[:, 0].int().tolist()
    assert seen[0] == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert seen[1] == torch.ones(4, 4).tril().int().tolist()


def test_no_pass_of_a_sampling_has_a_row_that_sees_nothing(tiny, monkeypatch):
    given = []
    model = copy.deepcopy(tiny[0])
    model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs["attention_mask"]), with_kwargs=True
    )
    batch = draw((model, tiny[1]))
    assert len(given) == batch.completions.shape[1] > 2
    assert all(mask.dtype == torch.bool and mask.ndim == 4 and mask.any(dim=-1).all() for mask in given)


def test_eager_attention_gives_the_same_completions(tiny):
    model = copy.deepcopy(tiny[0])
    model.set_attn_implementation("eager")
    eager, sdpa = draw((model, tiny[1])), draw(tiny)
    assert torch.equal(eager.completions, sdpa.completions)
    torch.testing.assert_close(eager.sampling_logprobs, sdpa.sampling_logprobs, rtol=1e-4, atol=1e-4)
    for run in passes.PASSES.values():
        with torch.no_grad():
            logits, expected = (head(hidden) for hidden, head in (run(each, sdpa) for each in (model, tiny[0])))
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_an_attention_without_a_mask_is_refused_with_the_way_out(tiny):
    model = copy.deepcopy(tiny[0])
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match=r"'flash_attention_2' takes no mask.*attn_implementation='sdpa'"):
        draw((model, tiny[1]))


def test_a_window_of_attention_limits_the_length(tiny):
    """Our mask shows all that came before, and a layer with a window would not."""
    model = copy.deepcopy(tiny[0])
    model.config.sliding_window = 11
    with pytest.raises(
        ConfigError, match=r"prompt of 6 tokens and sampling.max_completion_length = 6 exceed .* 11 tokens of att"
    ):
        draw((model, tiny[1]))
    draw((model, tiny[1]), max_completion_length=5)


# --- CUDA graphs -----------------------------------------------------------------------------------------------------
