"""Decoding with a cache: masks of our own, and CUDA graphs as far as a CPU shows."""

import copy
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import tensor
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_lab.config.catalog import preset
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.errors import ConfigError
from grpo_lab.models import loading
from grpo_lab.training import graph_decoding, masks, passes, rollouts
from grpo_lab.training.learner import Learner

PROMPTS = ["1+2=", "10+20=", "7+99=", "3+3="]
"""Of three lengths, so that left padding is real."""


@pytest.fixture(scope="module")
def tiny():
    return loading.load("tiny")


def draw(tiny, decode="eager", **sampling):
    (model, tokenizer), generator = tiny, torch.Generator().manual_seed(0)
    config = SamplingConfig(**{"max_completion_length": 6, **sampling})
    return rollouts.sample(model, tokenizer, PROMPTS, 4, config, generator, decode=decode)


# --- masks -----------------------------------------------------------------------------------------------------------


def test_a_padded_position_sees_itself_and_no_other_sees_it():
    """A row of a mask that is all False gives NaN in cuDNN's attention."""
    keys = tensor([[False, False, True, True], [True, True, True, True]])
    seen = masks.causal(keys, 4).int().tolist()
    assert seen[0] == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert seen[1] == torch.ones(4, 4).tril().int().tolist()
    assert masks.causal(keys, 1).int().tolist() == [[[0, 0, 1, 1]], [[1, 1, 1, 1]]]


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


def graph_of(forward):
    """Behaves as a graph on memory: a warm-up that moves the cache, then always the same output tensor."""
    output = torch.empty_like(forward())
    return lambda: output.copy_(forward())


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.9}, {"max_completion_length": 1}], ids=str)
def test_a_graph_decodes_what_eager_does_also_after_rows_have_ended(tiny, monkeypatch, sampling):
    monkeypatch.setattr(graph_decoding, "captured", graph_of)
    eager, graph = draw(tiny, **sampling), draw(tiny, "graph", **sampling)
    assert torch.equal(graph.completions, eager.completions) and torch.equal(
        graph.completion_mask, eager.completion_mask
    )
    torch.testing.assert_close(graph.sampling_logprobs, eager.sampling_logprobs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(graph.entropy, eager.entropy, rtol=1e-4, atol=1e-4)
    assert sampling or len(eager.completion_mask.sum(dim=1).unique()) > 2, "rows have left at several tokens"


def test_a_graph_decodes_a_model_with_rotated_keys_under_autocast(tiny, monkeypatch):
    """Its keys are fp32 and its values bf16."""
    torch.manual_seed(0)
    sizes: Any = {"vocab_size": 258, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads: Any = {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 256, "bos_token_id": 256}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()
    monkeypatch.setattr(graph_decoding, "captured", graph_of)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        eager, graph = draw((model, tiny[1])), draw((model, tiny[1]), "graph")
    assert torch.equal(graph.completions, eager.completions)


def test_every_forward_pass_of_a_graph_has_the_same_shapes_and_memory(tiny, monkeypatch):
    given = []
    model = copy.deepcopy(tiny[0])
    monkeypatch.setattr(graph_decoding, "captured", graph_of)
    model.register_forward_pre_hook(lambda module, args, kwargs: given.append(kwargs), with_kwargs=True)
    batch = draw((model, tiny[1]), "graph")
    _, *passes = given
    assert len(passes) == batch.completions.shape[1] > 2, "a warm-up, and each token but the last"
    for name in ("input_ids", "position_ids", "attention_mask"):
        assert {(tuple(kwargs[name].shape), kwargs[name].data_ptr()) for kwargs in passes} == {
            (tuple(passes[0][name].shape), passes[0][name].data_ptr())
        }, name
    caches = {id(kwargs["past_key_values"]) for kwargs in passes}
    assert len(caches) == 1 and passes[0]["attention_mask"].shape == (16, 1, 1, 6 + 6)


def test_a_graph_is_captured_after_a_warm_up_and_replayed(monkeypatch):
    calls = []

    class Stream:
        def wait_stream(self, other): ...

    class Graph:
        def replay(self):
            calls.append("replay")

    @contextmanager
    def capture(graph, **kwargs):
        calls.append("capture")
        yield
        calls.append("end")

    @contextmanager
    def on(stream):
        yield

    fakes = {"Stream": Stream, "current_stream": Stream, "stream": on, "CUDAGraph": Graph, "graph": capture}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    answers = iter([tensor([1.0]), kept := tensor([2.0])])

    def forward():
        calls.append("forward")
        return next(answers)

    replay = graph_decoding.captured(forward)
    assert replay() is kept and replay() is kept
    assert calls == ["forward", "capture", "forward", "end", "replay", "replay"]


def test_a_graph_on_a_cpu_is_refused_before_the_run_begins(tiny):
    config = preset("smoke").with_("model.decode=graph", "run.device=cpu")
    with pytest.raises(ConfigError, match=r"needs a CUDA device, and the model is on cpu; use eager"):
        Learner(config, tiny, None)


def test_the_config_chooses_how_tokens_are_decoded(tiny, monkeypatch):
    made = []
    monkeypatch.setattr(graph_decoding, "captured", graph_of)
    monkeypatch.setattr(graph_decoding, "check", lambda *_: None)
    monkeypatch.setitem(graph_decoding.DECODERS, "graph", lambda *a: made.append(1) or graph_decoding.Captured(*a))
    from grpo_lab import train

    config = preset("smoke").with_("run.threads=1", "run.num_steps=2", "data.num_prompts=2", "run.num_eval=2")
    for decode, expected in (("eager", 0), ("graph", 2)):
        assert [*train(config.with_(f"model.decode={decode}"), copy.deepcopy(tiny))]
        assert len(made) == expected, "an evaluation decodes eagerly"
