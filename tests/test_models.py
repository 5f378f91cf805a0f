"""Models load quietly and whole, or the error says which file is wrong and what to do."""

import json
import shutil
import warnings
from fnmatch import fnmatch

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from grpo_lab.errors import ModelError
from grpo_lab.models import build_tiny, fetch, loading
from grpo_lab.models.registry import MODELS
from grpo_lab.tasks import tasks


@pytest.fixture
def folder(tmp_path):
    """A copy of the tiny model that a test may break."""
    return shutil.copytree(MODELS["tiny"].path, tmp_path / "model")


def is_tied(model):
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight


def edit_weights(folder, change):
    """Rewrite the weights' file with `change` applied to its tensors."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_tiny_is_what_it_says(tiny):
    model, tokenizer = tiny
    known = MODELS["tiny"]
    assert known.present
    assert model.num_parameters() == known.parameters
    assert not model.training
    assert is_tied(model)
    assert (known.path / "model.safetensors").stat().st_size <= 4e6
    assert len(tokenizer) == model.config.vocab_size == 258
    assert fetch.is_intact(known.path)


def test_tiny_is_half_taught(tiny):
    """Enough skill that some of eight completions are right, and enough left to learn."""
    model, tokenizer = tiny
    accuracy = build_tiny.sampled_accuracy(model, *build_tiny.encode(tokenizer, tasks.addition().held_out))
    assert 0.27 <= accuracy <= 0.33


def test_the_tokenizer_pads_on_the_left_and_reads_back(tiny):
    _, tokenizer = tiny
    rows = tokenizer(["1+2=", "10+20="], padding=True).input_ids
    assert rows[0][:2] == [tokenizer.pad_token_id] * 2
    assert tokenizer.convert_ids_to_tokens(0) == "!"
    assert tokenizer.decode(tokenizer("é 7\n").input_ids) == "é 7\n"
    assert tokenizer.encode("12<|endoftext|>") == [16, 17, tokenizer.eos_token_id]


def test_loading_is_quiet_and_leaves_transformers_as_it_was(capfd):
    verbosity = transformers_logging.get_verbosity()
    assert transformers_logging.is_progress_bar_enabled()
    loading.load("tiny")
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == verbosity
    assert transformers_logging.is_progress_bar_enabled()
    with pytest.raises(UserWarning, match="seen"):
        warnings.warn("seen", stacklevel=1)


@pytest.mark.parametrize(
    ("name", "missing", "corrupt"),
    [
        ("config.json", "model: has no config.json", "cannot load the model .*config.json"),
        ("model.safetensors", "model: has no weights", "cannot load the model .SafetensorError"),
        ("tokenizer.json", "model: has no tokenizer", "cannot load the tokenizer"),
    ],
)
def test_a_corrupt_or_missing_file_is_named(folder, name, missing, corrupt):
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ModelError, match=corrupt) as caught:
        loading.load(str(folder))
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(ModelError, match=missing):
        loading.load(str(folder))


def test_weights_that_are_not_there_are_not_made_up(folder):
    edit_weights(folder, lambda weights: weights.pop("transformer.h.2.mlp.c_fc.weight"))
    with pytest.raises(ModelError, match=r"1 weights are not in the file, first transformer\.h\.2\.mlp\.c_fc\.weight"):
        loading.load(str(folder))


@pytest.mark.parametrize(("value", "precision"), [(float("nan"), "fp32"), (float("-inf"), "fp32"), (1e6, "fp16_pure")])
def test_weights_that_are_not_finite(folder, value, precision):
    edit_weights(folder, lambda weights: weights["transformer.ln_f.bias"][3:5].fill_(value))
    with pytest.raises(ModelError, match=r"2 of 128 values of transformer\.ln_f\.bias are not finite in float"):
        loading.load(str(folder), precision)


def test_a_tokenizer_of_another_model(folder):
    edit_weights(folder, lambda weights: weights.update({"transformer.wte.weight": torch.zeros(200, 128)}))
    edit_json(folder / "config.json", vocab_size=200, eos_token_id=0, bos_token_id=0, pad_token_id=0)
    with pytest.raises(ModelError, match="the tokenizer has 258 tokens, the model 200"):
        loading.load(str(folder))


def test_a_tokenizer_without_an_end_is_refused(folder):
    edit_json(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelError, match="no eos_token"):
        loading.load(str(folder))


@pytest.mark.parametrize("name", ["./absent", "a/b/c", ""])
def test_a_folder_that_is_not_there_is_not_asked_of_the_hub(name, monkeypatch, tmp_path):
    (tmp_path / "empty" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "empty" / "here")
    monkeypatch.setattr(loading, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(ModelError, match=r"no folder|has no config"):
        loading.load(name)


def test_what_the_hub_does_not_give_is_one_error(monkeypatch):
    def offline(name, **_):
        raise OSError("We couldn't connect to 'https://huggingface.co'.\nCheck your connection.")

    monkeypatch.setattr(loading, "snapshot_download", offline)
    for load in (loading.load, lambda name: loading.outline(name, "fp32")):
        with pytest.raises(
            ModelError, match=r"owner/name: no folder .*\(OSError: We couldn't connect .*'\.\); go online"
        ) as e:
            load("owner/name")
        assert str(e.value).endswith("smollm2-135m")


def test_a_model_of_the_hub_is_loaded_from_its_cache_and_keeps_its_name(monkeypatch, tiny):
    """The hub is played by the shipped folder: this machine may have no network."""
    wanted = []
    folder = MODELS["tiny"].path
    monkeypatch.setattr(
        loading, "snapshot_download", lambda name, allow_patterns: wanted.append((name, allow_patterns)) or str(folder)
    )
    model, tokenizer = loading.load("gpt2")
    loading.outline("gpt2", "fp32")
    assert [name for name, _ in wanted] == ["gpt2", "gpt2"] and model.name_or_path == "gpt2"
    assert ["model*.safetensors" in patterns for _, patterns in wanted] == [True, False]
    needed = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert all(any(fnmatch(name, pattern) for pattern in wanted[0][1]) for name in needed)
    assert tokenizer.get_vocab() == tiny[1].get_vocab()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), tiny[0].parameters(), strict=True))


def test_devices():
    assert loading.resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ModelError, match="device 'gpu' cannot be used here"):
        loading.resolve_device("gpu")


def test_building_is_deterministic_and_gives_everything_back(tmp_path, capfd):
    """Three steps stand for all: another seed differs, the same does not, whatever the global state."""
    threads, seen = torch.get_num_threads(), []
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    built = [
        build_tiny.build_tiny(tmp_path / name, seed, lambda *progress: seen.append(progress), num_steps=3)
        for name, seed in [("a", 0), ("b", 0), ("c", 1)]
    ]
    assert torch.rand(1) == expected
    assert torch.get_num_threads() == threads
    assert seen == [(1, 3), (2, 3), (3, 3)] * 3
    assert built[0] == built[1]
    assert built[0]["sha256"]["model.safetensors"] != built[2]["sha256"]["model.safetensors"]
    assert capfd.readouterr() == ("", "")
    assert fetch.is_intact(tmp_path / "a")
    model, _ = loading.load(str(tmp_path / "a"))
    assert model.num_parameters() == built[0]["parameters"] == 834_560
