"""Model folders of one's own are trained, saved and trained on: two end tokens, no padding token, a chat template."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import processors

import grpo_lab as gl
from grpo_lab.config import user_code
from grpo_lab.errors import ConfigError, ModelError
from grpo_lab.events import Stepped
from grpo_lab.models import loading
from grpo_lab.runs.session import Session
from grpo_lab.tasks.conversations import tokenized
from grpo_lab.training import rollouts

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
make_model = user_code.execute(EXAMPLES / "make_model.py")
ENDS = [257, 258]
SMOKE = gl.preset("smoke").with_(
    "run.threads=1",
    "run.num_steps=2",
    "data.num_prompts=6",
    "data.num_generations=8",
    "sampling.max_completion_length=16",
    f"data.rewards={EXAMPLES}/rewards.py:digits",
)
CHATS, SUMS = f"data.tasks={EXAMPLES}/chats.jsonl", f"data.tasks={EXAMPLES}/sums.jsonl"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of each kind of model; its name says the kind, and whether the head is the embedding too."""
    root = tmp_path_factory.mktemp("models")
    for kind in ("qwen2", "llama"):
        make_model.make(root / kind, kind)
    return root


def drawn(model, tokenizer, count=16):
    """Completions of two prompts of unequal length, as token ids."""
    generator = torch.Generator().manual_seed(0)
    batch = rollouts.sample(model, tokenizer, ["1+1=", "10+100="], count, SMOKE.sampling, generator)
    return rollouts.token_ids(batch)


@pytest.mark.parametrize(("kind", "tasks"), [("qwen2", CHATS), ("llama", SUMS)])
def test_a_folder_is_trained_saved_and_trained_on(folders, tmp_path, kind, tasks):
    config = SMOKE.with_(tasks)
    first = Session(config.with_(f"model.name={folders / kind}"), tmp_path / "a", save_model=True).run(check=True)
    assert first.records["ratio/max"].tolist()[0] == pytest.approx(
        1, abs=1e-4
    )  # the sampler's numbers are those of the pass
    assert all(0.2 < share < 0.99 for share in first.records["completions/clipped_ratio"])
    saved = loading.load(str(first.saved_model))
    assert rollouts.terminators(*saved).tolist() == ENDS
    assert saved[1].chat_template == make_model.TEMPLATE and saved[1].pad_token == saved[1].eos_token
    second = Session(config.with_(f"model.name={first.saved_model}"), tmp_path / "b", save_model=True).run(check=True)
    assert second.status == "done" and not any(map(math.isnan, second.records["reward"]))


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_either_end_token_ends_a_completion(folders, kind):
    rows = drawn(*loading.load(str(folders / kind)), count=256)
    assert {row[-1] for row in rows} >= set(ENDS)
    assert not any(end in row[:-1] for row in rows for end in ENDS)


def test_eager_attention_gives_the_same_run_as_sdpa(folders):
    kind = "llama"
    losses = []
    for attention in ("eager", "sdpa"):
        tokenizer = loading.load(str(folders / kind))[1]
        model = transformers.AutoModelForCausalLM.from_pretrained(folders / kind, attn_implementation=attention)
        assert model.config._attn_implementation == attention
        events = gl.train(SMOKE.with_(SUMS), model=(model.eval(), tokenizer))
        losses.append([event.metrics["grad_norm"] for event in events if isinstance(event, Stepped)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads_are_saved_whole(tmp_path, tied):
    make_model.make(tmp_path / "m", "llama")
    tree = json.loads((tmp_path / "m" / "config.json").read_text()) | {"tie_word_embeddings": tied}
    transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**tree)).save_pretrained(tmp_path / "m")
    config = SMOKE.with_(SUMS, f"model.name={tmp_path / 'm'}")
    saved = Session(config, tmp_path / "run", save_model=True).run(check=True).saved_model
    model: Any = loading.load(str(saved))[0]
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied


def test_a_first_token_comes_once(folders):
    tokenizer = loading.load(str(folders / "llama"))[1]
    chat = [{"role": "user", "content": "1+1="}]
    for prompt in ("1+1=", chat):
        (ids,) = tokenized(tokenizer, [prompt]).input_ids
        assert ids[0] == 256 != ids[1]
    assert tokenizer.decode(ids) == "<|start|>user: 1+1=<|turn_ends|><|start|>assistant: "


def test_a_tokenizer_that_ends_every_prompt_is_refused(tmp_path):
    make_model.make(tmp_path / "m", "llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "$A <|turn_ends|>", special_tokens=[("<|turn_ends|>", 257)]
    )
    tokenizer.save_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match=r"puts its end token '<|turn_ends|>' behind every text.*add_eos_token=False"):
        loading.load(str(tmp_path / "m"))


def run(*words, **more):
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, **more)


@pytest.mark.slow
def test_the_commands_of_the_page(folders, tmp_path):
    """docs/own_runs.md, shortened: an own model with own prompts and rewards, and a server that fails at times."""
    short = ("--set", "run.num_steps=2", "--set", "data.num_prompts=4")
    page = (EXAMPLES.parent / "own_runs.md").read_text()
    made = run(EXAMPLES / "make_model.py", tmp_path / "my_model")
    assert (made.returncode, made.stderr) == (0, "")
    train = ("-m", "grpo_lab", "train", "--model", tmp_path / "my_model", *short, "--set", "judge.timeout_s=0.5")
    chats = ("--data", EXAMPLES / "chats.jsonl", "--reward", f"{EXAMPLES}/rewards.py:correct")
    found = run(*train, *chats, "--out", tmp_path / "chats")
    assert found.returncode == 0, found.stderr
    remote = ("--data", EXAMPLES / "sums.jsonl", "--reward", f"{EXAMPLES}/remote_reward.py:remote")
    words = (*train, *remote, "--set", "judge.workers=8", "--out", tmp_path / "remote")
    found = run(EXAMPLES / "remote_reward.py", sys.executable, *words)
    assert found.returncode == 0, found.stderr
    records = Session.open(tmp_path / "remote").records
    assert not any(records["judge/failed"]) and min(records["judge/time"]) > 0.5  # failed calls were made again
    for name in ("make_model.py", "chats.jsonl", "rewards.py:correct", "remote_reward.py:remote", "sums.jsonl"):
        assert f"docs/examples/{name}" in page


# --- a model without an end token ------------------------------------------------------------------------------------


def ending_at(folder, end):
    """The model of a folder, whose own end token is this one."""
    model, tokenizer = loading.load(str(folder))
    model.generation_config.eos_token_id = end
    return model, tokenizer


@pytest.mark.parametrize("end", [None, [300, 4000]])
def test_a_model_that_names_no_end_of_its_own_says_so_once(folders, tmp_path, end):
    model, tokenizer = ending_at(folders / "llama", end)
    with pytest.warns(UserWarning, match=r"eos_token_id = .* names none of the model's 259 tokens") as said:
        Session(SMOKE.with_(SUMS), tmp_path / "run", model=(model, tokenizer)).run(check=True)
    assert len(said) == 1 and "end at the tokenizer's '<|turn_ends|>' (257) alone" in str(said[0].message)


@pytest.mark.parametrize(("end", "own", "stages"), [(None, None, "grpo"), ([300, 4000], "<|added|>", "sft")])
def test_a_model_whose_completions_cannot_end_is_refused(folders, end, own, stages):
    model, tokenizer = ending_at(folders / "llama", end)
    tokenizer.pad_token, tokenizer.eos_token = "<|start|>", own
    config = SMOKE.with_(SUMS, f"run.stages={stages}", "sft.data=dual")
    with pytest.raises(ConfigError, match=r"no completion could end: .* none of the model's 259 tokens.* set eos"):
        next(gl.train(config, (model, tokenizer)))
