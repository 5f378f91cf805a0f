"""Sampling token by token, and the two ways of computing log-probabilities of what was sampled."""

import copy

import pytest
import torch
from torch import tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from grpo_lab.algorithm.losses import entropies
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.hooks import Stage
from grpo_lab.core.logprobs import completion_logprobs
from grpo_lab.errors import ConfigError
from grpo_lab.training import passes, rollouts
from grpo_lab.training.sampling_filters import distribution

PROMPTS = ["1+2=", "10+20=", "7+99=", "3+3="]
"""Of three lengths, so that left padding is real."""
EOS, PAD, VOCABULARY = 256, 257, 258
PASSES = pytest.mark.parametrize("name", passes.PASSES)


def draw(tiny, seed=0, prompts=PROMPTS, size=4, at=rollouts.untouched, **sampling):
    model, tokenizer = tiny
    config = SamplingConfig(**{"max_completion_length": 6, **sampling})
    return rollouts.sample(model, tokenizer, prompts, size, config, torch.Generator().manual_seed(seed), at)


def ragged(batch):
    """The batch without the whole group of the second prompt and without two completions of others."""
    kept = [0, 2, 3, 8, 9, 11, 12, 13, 14, 15]
    assert set(batch.group[kept].tolist()) == {0, 2, 3}
    return batch.rows(tensor(kept))


class Script:
    """Stands in for Step.at: makes the sampler draw these tokens, whatever the model says."""

    def __init__(self, rows, ends=(EOS,)):
        self.rows, self.ends, self.position, self.widths = rows, ends, 0, []

    def __call__(self, stage, value, note=""):
        if stage != Stage.PROBABILITIES:
            return value
        going = [row for row in self.rows if not set(row[: self.position]) & set(self.ends)]
        self.widths.append(len(value))
        assert len(value) == len(going), "finished rows must have left, the others must not"
        chosen = tensor([row[self.position] for row in going])
        self.position += 1
        return torch.nn.functional.one_hot(chosen, value.shape[1]).float()


def logits_of(name, model, batch):
    """Logits (B, T, V) by the pass of this name, 0 outside the mask, where they mean nothing."""
    hidden, head = passes.PASSES[name](model, batch)
    return head(hidden).masked_fill(~batch.completion_mask[..., None], 0.0)


def alone(model, batch, row):
    """Logits (T, V) of one completion from its bare tokens: no padding, no mask, no positions, no cache."""
    group = batch.group[row]
    prompt = batch.prompt_ids[group][batch.prompt_mask[group].bool()]
    ids = torch.cat([prompt, batch.completions[row]])[None]
    return model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]


@PASSES
@pytest.mark.parametrize("choose", [lambda batch: batch, ragged], ids=["whole", "ragged"])
def test_logits_are_those_of_each_completion_alone(tiny, name, choose):
    batch = choose(draw(tiny))
    assert batch.prompt_mask.sum(dim=1).tolist() == [4, 6, 5, 4]
    with torch.no_grad():
        logits = logits_of(name, tiny[0], batch)
        expected = torch.stack([alone(tiny[0], batch, row) for row in range(len(batch.group))])
        expected = expected.masked_fill(~batch.completion_mask[..., None], 0.0)
    assert logits.shape == (*batch.completions.shape, VOCABULARY)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@PASSES
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_samplers_logprobs_are_the_recomputed_ones(tiny, name, temperature):
    """Also after finished rows have left the computation."""
    batch = draw(tiny, temperature=temperature)
    lengths = batch.completion_mask.sum(dim=1)
    assert len(lengths.unique()) >= 2
    with torch.no_grad():
        logits = logits_of(name, tiny[0], batch)
    expected = completion_logprobs(logits, batch.completions, temperature).masked_fill(~batch.completion_mask, 0.0)
    torch.testing.assert_close(batch.sampling_logprobs, expected, rtol=1e-4, atol=1e-4)
    entropy = entropies(logits, temperature).masked_fill(~batch.completion_mask, 0.0)
    torch.testing.assert_close(batch.entropy, entropy, rtol=1e-4, atol=1e-4)


def test_a_filtered_sampler_reports_the_distribution_it_sampled_from(tiny):
    plain, filtered = draw(tiny, temperature=1.5), draw(tiny, temperature=1.5, top_k=1)
    assert filtered.sampling_logprobs.eq(0).all(), "of one token only, certain"
    assert plain.sampling_logprobs[plain.completion_mask].lt(0).all()
    assert filtered.entropy is not None and plain.entropy is not None
    assert torch.equal(filtered.entropy[:, 0], plain.entropy[:, 0]), "entropy is the policy's, before any filter"
    assert filtered.entropy[:, 0].gt(0).all()


def test_the_mask_is_by_position_up_to_and_including_the_end_token(tiny):
    """A pad token, or token 0, inside a completion cuts nothing; nothing counts after the end."""
    rows = [[5, PAD, 0, 9, EOS, 1], [EOS, 1, 1, 1, 1, 1], [PAD, PAD, 7, 8, 9, 10], [1, 2, EOS, 3, 3, 3]]
    script = Script(rows)
    batch = draw(tiny, prompts=PROMPTS[:2], size=2, at=script)
    assert batch.completion_mask.sum(dim=1).tolist() == [5, 1, 6, 3]
    assert batch.completion_mask.int().diff(dim=1).le(0).all(), "ones, then zeros"
    assert script.widths == [4, 3, 3, 2, 2, 1]
    kept = [[5, PAD, 0, 9, EOS, PAD], [EOS, *[PAD] * 5], rows[2], [1, 2, EOS, *[PAD] * 3]]
    assert batch.completions.tolist() == kept
    outside = ~batch.completion_mask
    assert batch.entropy is not None
    assert not batch.sampling_logprobs[outside].any() and not batch.entropy[outside].any()


def test_several_terminators_each_end_a_completion(tiny):
    model = copy.deepcopy(tiny[0])
    model.generation_config.eos_token_id = [EOS, 10]
    assert rollouts.terminators(model, tiny[1]).tolist() == [10, EOS]
    script = Script([[10, 1, 1], [1, EOS, 1], [1, 2, 3], [2, 10, 4]], ends=(EOS, 10))
    batch = draw((model, tiny[1]), prompts=PROMPTS[:2], size=2, at=script, max_completion_length=3)
    assert batch.completion_mask.sum(dim=1).tolist() == [1, 2, 3, 2]


def test_the_tokenizers_end_token_counts_where_the_model_names_none(tiny):
    model, tokenizer = copy.deepcopy(tiny[0]), copy.deepcopy(tiny[1])
    model.generation_config.eos_token_id = None
    assert rollouts.terminators(model, tokenizer).tolist() == [EOS]
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="eos_token_id"):
        rollouts.terminators(model, tokenizer)


def test_text_is_without_special_tokens_and_without_what_follows_the_end(tiny):
    script = Script([[17, 18, EOS], [19, PAD, 20]])
    batch = draw(tiny, prompts=PROMPTS[:1], size=2, at=script, max_completion_length=3)
    assert rollouts.texts(tiny[1], rollouts.token_ids(batch)) == [tiny[1].decode([17, 18]), tiny[1].decode([19, 20])]


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(tiny):
    assert draw(tiny, prompts=["1" * 61 + "="], max_completion_length=2).completions.shape[1] <= 2
    with pytest.raises(ConfigError, match=r"62 tokens and sampling.max_completion_length = 3 exceed .* 64 positions"):
        draw(tiny, prompts=["1" * 61 + "="], max_completion_length=3)


OF_TRANSFORMERS = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
}
"""In the order in which its generate() applies them."""
SETTINGS = [
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.9},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 1.1, "temperature": 0.8, "top_k": 30, "top_p": 0.85},
    {},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_filters_are_those_of_transformers(settings):
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, VOCABULARY, (2, 7), generator=generator)
    group, alive = tensor([0, 0, 0, 1, 1, 1]), tensor([0, 2, 3, 5])
    drawn = distribution(SamplingConfig(**settings), prompts, torch.ones_like(prompts), 3, VOCABULARY)
    written = torch.randint(0, VOCABULARY, (6, 3), generator=generator)
    logits = 4 * torch.randn(4, VOCABULARY, generator=generator)
    seen = torch.cat([prompts[group[alive]], written[alive]], dim=1)
    made = LogitsProcessorList(OF_TRANSFORMERS[name](value) for name, value in settings.items())
    expected = made(seen, logits.clone())  # type: ignore[arg-type]
    torch.testing.assert_close(drawn(logits.clone(), written, alive), expected.softmax(dim=-1))
    assert settings == {} or not torch.equal(expected, logits)


def test_top_p_keeps_a_row_of_nan_broken():
    logits = torch.zeros(2, VOCABULARY)
    logits[0, 3:] = torch.nan
    prompts, group = tensor([[1], [1]]), tensor([0, 1])
    drawn = distribution(SamplingConfig(top_p=0.5), prompts, torch.ones_like(prompts), 1, VOCABULARY)
    probabilities = drawn(logits, prompts[:, :0], group)
    assert probabilities[0].isnan().all() and probabilities[1].isfinite().all()


def test_presence_and_frequency_penalties_count_the_completion_and_not_the_prompt():
    sampling = SamplingConfig(presence_penalty=0.5, frequency_penalty=0.25)
    drawn = distribution(sampling, tensor([[1, 2]]), tensor([[1, 1]]), 2, 6)
    found = drawn(torch.zeros(1, 6), tensor([[5, 0, 5], [3, 4, 3]]), tensor([1]))
    torch.testing.assert_close(found, tensor([[0.0, 0.0, 0.0, -1.0, -0.75, 0.0]]).softmax(dim=-1))


def test_no_pass_of_a_sampling_has_a_row_that_sees_nothing(tiny, monkeypatch):
    given = []
    model = copy.deepcopy(tiny[0])
    model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs["attention_mask"]), with_kwargs=True
    )
    batch = draw((model, tiny[1]))
    assert len(given) == batch.completions.shape[1] > 2
    assert all(mask.dtype == torch.bool and mask.ndim == 4 and mask.any(dim=-1).all() for mask in given)


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
