"""The packed pass: equal to the plain one in values and gradients, whatever the batch, and never all logits at once."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.errors import ModelError
from grpo_lab.models import loading
from grpo_lab.training import large_vocabulary, passes
from grpo_lab.training.interventions import Step
from tests import steps

VOCABULARY = 258


@pytest.fixture(scope="module")
def model():
    return loading.load("tiny")[0]


def random_batch(seed: int) -> Batch:
    """A batch of prompts of several lengths, some of them equal, and of completions that end anywhere or are empty."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    prompts, size, start, width = (int(draw(low, high)) for low, high in ((1, 4), (1, 6), (1, 8), (1, 8)))
    group = torch.arange(prompts).repeat_interleave(size)
    group = group[draw(0, 4, len(group)) > 0] if seed % 3 == 0 else group  # rows that guards took out
    group = group if len(group) else torch.zeros(1, dtype=torch.long)
    ids = draw(0, VOCABULARY, 1, start).repeat(prompts, 1) if seed % 4 == 0 else draw(0, VOCABULARY, prompts, start)
    padding = draw(0, start, prompts, 1)
    lengths = draw(0 if seed % 5 == 0 else 1, width + 1, len(group), 1)
    mask = torch.arange(width) < lengths
    if not mask.any():
        mask[0, 0] = True
    zeros = torch.zeros(mask.shape)
    completions = draw(0, VOCABULARY, *mask.shape)
    return Batch(ids, (torch.arange(start) >= padding).long(), group, completions, mask, zeros, zeros)


def step_of(model, *interventions) -> Step:
    on = {Stage.LOGITS: list(interventions)} if interventions else {}
    return steps.step_of(Config(), policy=model, interventions=on)


def gradients(model, batch, name, *interventions):
    """Log-probabilities, and the gradient of every parameter, of a loss with a weight of its own for every token."""
    model.zero_grad()
    found = large_vocabulary.logprobs(model, passes.PASSES[name], batch, step_of(model, *interventions), "current")
    found = found.masked_fill(~batch.completion_mask, 0.0)
    weights = torch.rand(found.shape, generator=torch.Generator().manual_seed(1))
    (found * weights).sum().backward()
    return found.detach(), {
        key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None
    }


def assert_same(one, other):
    torch.testing.assert_close(one[0], other[0], rtol=1e-5, atol=1e-5)
    assert one[1].keys() == other[1].keys() and len(one[1]) == 52
    for name, gradient in other[1].items():
        size = float(gradient.abs().max())
        torch.testing.assert_close(one[1][name], gradient, rtol=1e-5, atol=1e-5 * size, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_shared_and_plain_pass_give_the_same_gradients(model, first):
    for seed in range(first, first + 20):
        batch = random_batch(seed)
        parts = list(batch.split(seed % 3))
        assert sum(len(part.group) for part in parts) == len(batch.group)
        for part in parts:
            assert_same(gradients(model, part, "shared"), gradients(model, part, "plain"))


def test_a_token_behind_a_hole_in_the_mask_is_predicted_from_all_before_it(model):
    batch = random_batch(18)
    mask = batch.completion_mask.clone()
    mask[:, 1] = False
    assert mask[:, 2].any()
    batch = replace(batch, completion_mask=mask)
    assert_same(gradients(model, batch, "shared"), gradients(model, batch, "plain"))


def in_chunks(monkeypatch):
    """Let three rows of logits be made at once, and two of them worked on at once."""
    for module, name, rows in ((large_vocabulary, "CHUNK", 3), (large_vocabulary, "PIECE", 2)):
        monkeypatch.setattr(module, name, rows * VOCABULARY)


class Callable(SimpleNamespace):
    """A model with these attributes alone."""

    def __init__(self, attributes, model):
        super().__init__(**attributes)
        self._model = model

    def __call__(self, *args, **kwargs):
        return self._model(*args, **kwargs)


@pytest.mark.parametrize("name", passes.PASSES)
def test_chunks_give_the_same_numbers_as_the_whole(model, name, monkeypatch):
    batch = random_batch(18)
    whole = gradients(model, batch, name)
    in_chunks(monkeypatch)
    assert batch.completion_mask.sum() > 3
    assert_same(gradients(model, batch, name), whole)


def test_the_recorder_sees_every_chunk_once(model, monkeypatch):
    batch = random_batch(18)
    in_chunks(monkeypatch)
    ctx = step_of(model)
    found = large_vocabulary.logprobs(model, passes.shared_pass, batch, ctx, "current")
    found[batch.completion_mask].sum().backward()
    (note,), _ = ctx.recorder.flush()
    hidden, head = passes.shared_pass(model, batch)
    logits = head(hidden)[batch.completion_mask]
    assert (note.link, note.where, note.nonfinite) == ("logits", "current", 0)
    assert note.numel == logits.numel()
    assert note.magnitude == pytest.approx(float(logits.detach().abs().max()), rel=1e-5)


def test_a_model_that_the_shared_pass_does_not_fit_is_refused(model, monkeypatch):
    passes.check(model, "shared")
    other = copy.deepcopy(model)
    forward = other.forward
    monkeypatch.setattr(other, "forward", lambda **inputs: SimpleNamespace(logits=forward(**inputs).logits * 0.5))
    with pytest.raises(ModelError, match=r"gpt2: model.prompt_pass=shared .* set model.prompt_pass=plain"):
        passes.check(other, "shared")
    passes.check(model, "plain")


def test_a_model_that_heeds_no_padding_is_refused(model, monkeypatch):
    other = copy.deepcopy(model)
    forward = other.forward

    def heedless(attention_mask=None, **inputs):
        return forward(attention_mask=torch.ones_like(inputs["input_ids"]), **inputs)

    monkeypatch.setattr(other, "forward", heedless)
    with pytest.raises(ModelError, match=r"model.prompt_pass=plain gives logits .* cannot be trained here"):
        passes.check(other, "plain")


@pytest.mark.parametrize("lacks", ["base_model", "get_output_embeddings"])
def test_a_model_without_trunk_or_head_is_refused_with_the_way_out(model, lacks):
    names = {"config", "device", "dtype", "base_model", "get_output_embeddings"} - {lacks}
    other = Callable({name: getattr(model, name) for name in names}, model)
    with pytest.raises(ModelError, match=r"shared fails \(AttributeError.*set model.prompt_pass=plain"):
        passes.check(other, "shared")
