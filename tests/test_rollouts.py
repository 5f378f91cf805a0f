"""Sampling token by token, and the two ways of computing log-probabilities of what was sampled."""

import copy
import dataclasses

import pytest
import torch
from torch import tensor
from torch.utils._python_dispatch import TorchDispatchMode
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
from grpo_lab.models import loading
from grpo_lab.training import passes, rollouts
from grpo_lab.training.sampling_filters import distribution, is_plain

PROMPTS = ["1+2=", "10+20=", "7+99=", "3+3="]
"""Of three lengths, so that left padding is real."""
EOS, PAD, VOCABULARY = 256, 257, 258
PASSES = pytest.mark.parametrize("name", passes.PASSES)


@pytest.fixture(scope="session")
def tiny():
    return loading.load("tiny")


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
@pytest.mark.parametrize(("prompts", "sizes"), [(1, [3, 3, 4]), (2, [3, 7]), (3, [6, 4]), (4, [10]), (0, [10])])
def test_a_micro_batch_of_a_ragged_batch_gives_the_same_logits(tiny, name, prompts, sizes):
    batch = ragged(draw(tiny))
    parts = list(batch.split(prompts))
    assert [len(part.group) for part in parts] == sizes
    with torch.no_grad():
        whole = logits_of(name, tiny[0], batch)
        pieces = torch.cat([logits_of(name, tiny[0], part) for part in parts])
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-4)


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


def test_sampling_ends_with_the_longest_completion(tiny):
    script = Script([[1, EOS], [EOS, 1], [1, EOS], [EOS, 1]])
    batch = draw(tiny, prompts=PROMPTS[:2], size=2, at=script, max_completion_length=40)
    assert batch.entropy is not None
    assert batch.completions.shape == batch.entropy.shape == (4, 2)
    assert len(script.widths) == 2


def test_text_is_without_special_tokens_and_without_what_follows_the_end(tiny):
    script = Script([[17, 18, EOS], [19, PAD, 20]])
    batch = draw(tiny, prompts=PROMPTS[:1], size=2, at=script, max_completion_length=3)
    assert rollouts.texts(tiny[1], rollouts.token_ids(batch)) == [tiny[1].decode([17, 18]), tiny[1].decode([19, 20])]


def test_the_same_generator_gives_the_same_tokens(tiny):
    first, again, other = draw(tiny, 3), draw(tiny, 3), draw(tiny, 4)
    for field in dataclasses.fields(first):
        value = getattr(first, field.name)
        assert value is None or torch.equal(value, getattr(again, field.name)), field.name
    assert first.completions.shape != other.completions.shape or not first.completions.equal(other.completions)


def test_sampling_reads_no_global_randomness_and_leaves_none_changed(tiny):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = draw(tiny, 3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(draw(tiny, 3).completions, first.completions)


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(tiny):
    assert draw(tiny, prompts=["1" * 61 + "="], max_completion_length=2).completions.shape[1] <= 2
    with pytest.raises(ConfigError, match=r"62 tokens and sampling.max_completion_length = 3 exceed .* 64 positions"):
        draw(tiny, prompts=["1" * 61 + "="], max_completion_length=3)


SETTINGS = [
    {"temperature": 0.3},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 9999},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"temperature": 0.8, "top_k": 30, "top_p": 0.85, "repetition_penalty": 1.1},
    {},
]


def processors(settings):
    """transformers' own, in the order in which its generate() applies them."""
    made = LogitsProcessorList()
    if "repetition_penalty" in settings:
        made.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    if "temperature" in settings:
        made.append(TemperatureLogitsWarper(settings["temperature"]))
    if "top_k" in settings:
        made.append(TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        made.append(TopPLogitsWarper(settings["top_p"]))
    return made


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_filters_are_those_of_transformers(settings):
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, VOCABULARY, (2, 7), generator=generator)
    group, alive = tensor([0, 0, 0, 1, 1, 1]), tensor([0, 2, 3, 5])
    drawn = distribution(SamplingConfig(**settings), prompts, torch.ones_like(prompts), 3, VOCABULARY)
    written = torch.randint(0, VOCABULARY, (6, 3), generator=generator)
    logits = 4 * torch.randn(4, VOCABULARY, generator=generator)
    seen = torch.cat([prompts[group[alive]], written[alive]], dim=1)
    expected = processors(settings)(seen, logits.clone())  # type: ignore[arg-type]
    torch.testing.assert_close(drawn(logits.clone(), written, alive), expected.softmax(dim=-1))
    assert settings == {} or top(settings) or not torch.equal(expected, logits)


class Deterministic(TorchDispatchMode):
    """Raises where a CUDA tensor would under `torch.use_deterministic_algorithms`, whose docstring lists these."""

    raising = (
        "put_",
        "histc",
        "median",
        "nanmedian",
        "kthvalue",
        "grid_sampler_2d",
        "embedding_bag",
        "nll_loss_forward",
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.partition(".")[0]
        if name in self.raising or (name in ("cumsum", "cumprod", "bincount") and args[0].is_floating_point()):
            raise RuntimeError(f"{name} does not have a deterministic implementation")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [*SETTINGS, {"presence_penalty": 0.5}], ids=str)
def test_sampling_uses_no_operation_that_deterministic_kernels_lack(tiny, settings):
    expected = draw(tiny, **settings)
    with Deterministic():
        assert torch.equal(draw(tiny, **settings).completions, expected.completions)


def test_top_p_keeps_a_row_of_nan_broken():
    logits = torch.zeros(2, VOCABULARY)
    logits[0, 3:] = torch.nan
    prompts, group = tensor([[1], [1]]), tensor([0, 1])
    drawn = distribution(SamplingConfig(top_p=0.5), prompts, torch.ones_like(prompts), 1, VOCABULARY)
    probabilities = drawn(logits, prompts[:, :0], group)
    assert probabilities[0].isnan().all() and probabilities[1].isfinite().all()


def top(settings):
    """Whether everything is kept."""
    return settings.get("top_k", 0) > VOCABULARY


def test_padding_is_not_a_token_that_is_already_there():
    prompts, mask = tensor([[PAD, PAD, 5]]), tensor([[0, 0, 1]])
    drawn = distribution(SamplingConfig(repetition_penalty=2.0), prompts, mask, 1, VOCABULARY)
    found = drawn(torch.ones(1, VOCABULARY), prompts[:, :0], tensor([0])).log()
    assert found[0, PAD] == found[0, 6] and found[0, PAD] - found[0, 5] == pytest.approx(0.5, abs=1e-5)


def test_presence_and_frequency_penalties_count_the_completion_and_not_the_prompt():
    sampling = SamplingConfig(presence_penalty=0.5, frequency_penalty=0.25)
    drawn = distribution(sampling, tensor([[1, 2]]), tensor([[1, 1]]), 2, 6)
    found = drawn(torch.zeros(1, 6), tensor([[5, 0, 5], [3, 4, 3]]), tensor([1]))
    torch.testing.assert_close(found, tensor([[0.0, 0.0, 0.0, -1.0, -0.75, 0.0]]).softmax(dim=-1))


class Shapes(TorchDispatchMode):
    """Notes the shape of every tensor that an operation of torch gives."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.noted += [tuple(each.shape) for each in (result if isinstance(result, tuple) else (result,))]
        return result


def shapes_of_a_token(**settings):
    """Shapes of all that is computed beside the model for one token: four rows, two alive, a vocabulary of six."""
    alive, logits, written = tensor([0, 2]), torch.ones(2, 6), tensor([[3], [0], [4], [0]])
    prompt, mask = tensor([[1, 2]]), tensor([[1, 1]])
    with Shapes() as shapes:
        distribution(SamplingConfig(**settings), prompt, mask, 4, 6)(logits, written, alive)
    return shapes.noted


def test_plain_sampling_builds_no_table_of_the_vocabulary():
    assert shapes_of_a_token() == shapes_of_a_token(temperature=0.5) == [(2, 6)] * 2


@pytest.mark.parametrize("penalty", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_a_penalty_builds_its_table_of_the_vocabulary(penalty):
    assert len(shapes_of_a_token(**{penalty: 2.0})) > len(shapes_of_a_token())


@pytest.mark.parametrize("settings", SETTINGS[:-1], ids=str)
def test_plain_is_what_only_heats(settings):
    assert is_plain(SamplingConfig(**settings, max_completion_length=3)) == (set(settings) == {"temperature"})


def test_a_penalty_reaches_the_sampler(tiny):
    """With a crushing frequency penalty no token can come twice in one completion."""
    model = copy.deepcopy(tiny[0])
    model.generation_config.eos_token_id = [EOS]
    batch = draw((model, tiny[1]), frequency_penalty=1e4, max_completion_length=8, temperature=5.0)
    for row, mask in zip(batch.completions, batch.completion_mask, strict=True):
        tokens = row[mask].tolist()
        assert len(set(tokens)) == len(tokens)
    free = draw(tiny, max_completion_length=8, temperature=5.0, frequency_penalty=-1e4)
    repeated = [len(set(row[mask].tolist())) for row, mask in zip(free.completions, free.completion_mask, strict=True)]
    assert set(repeated) == {1}


def test_evaluation_needs_nobody_at_the_seam():
    value = torch.ones(1)
    assert rollouts.untouched(Stage.LOGITS, value, "evaluation") is value
