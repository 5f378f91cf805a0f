"""Memory: the parts of a prediction, a prediction against a measurement, halved settings, and --fit."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

from benchmarks import memory_parts
from grpo_lab.config import catalog
from grpo_lab.config.schema import Config
from grpo_lab.core.packing import pack
from grpo_lab.errors import ConfigError
from grpo_lab.models import loading
from grpo_lab.runs import environment, fitting, memory

TINY, WIDTH, LAYERS, VOCABULARY = 834_560, 128, 4, 258
"""Parameters and shape of the tiny model."""
WORK = ("run.device=cpu", "data.num_prompts=16", "data.num_generations=8", "sampling.max_completion_length=8")


def mib(size):
    return pytest.approx(size / 2**20)


def parts(*settings):
    return memory.predict(Config().with_(*WORK, *settings), process=400.0).parts


def test_what_lasts_is_counted_in_copies_of_the_weights():
    found = parts()
    copies = {"weights": 1, "reference": 1, "moments": 2, "snapshot": 3}
    for name, count in copies.items():
        assert found[name] == (mib(4 * TINY * count),) * 3
    assert found["process"] == (400.0,) * 3


@pytest.mark.parametrize(
    ("setting", "name", "copies"),
    [
        ("loss.beta=0", "reference", 0),
        ("run.snapshot_every=10", "snapshot", 1),  # of ten steps: only the first, which has no moments
        ("run.snapshot_every=9", "snapshot", 3),
        ("model.precision=bf16_pure", "moments", 1),  # two, of half the size
    ],
)
def test_settings_that_save_copies(setting, name, copies):
    assert parts(setting).get(name, (0.0,))[0] == mib(4 * TINY * copies)


def test_what_comes_and_goes_is_worked_out_by_hand():
    found, elements = parts(), 128 * 8 * VOCABULARY
    head = 4 * VOCABULARY * WIDTH  # its gradient comes first, and once more for the embedding, which it is too
    assert found["gradients"] == (0, mib(head), mib(4 * TINY + head))
    # Keys and values of 4 layers, 128 wide; prompts of 6 tokens before and after they get room for 8 more.
    assert found["KV cache"] == (mib(2 * LAYERS * WIDTH * 4 * 128 * (6 + 6 + 8)), 0, 0)
    # Logits and their gradient, and three tensors of work on them; four tensors for one token of each completion.
    assert found["logits"] == (mib(16 * 128 * VOCABULARY), mib(8 * elements + 12 * elements), 0)
    assert found["heap"][2] == pytest.approx(found["activations"][1] + found["KV cache"][0])


def test_gradients_of_earlier_micro_batches_wait_while_the_next_makes_its_loss():
    whole, split = parts(), parts("data.micro_batch_prompts=4")
    assert split["gradients"][1] - whole["gradients"][1] == mib(4 * TINY)
    assert split["activations"][1] < whole["activations"][1] / 3.5


def test_logits_of_a_large_vocabulary_come_in_one_chunk_unless_something_wants_them_whole():
    many = ("sampling.max_completion_length=512", "data.micro_batch_prompts=16")
    chunk, piece = 4 * 2**24, 3 * 4 * 2**20
    elements = 128 * 512 * VOCABULARY
    assert elements > 2**24
    assert parts(*many)["logits"][1] == mib(chunk + piece)
    assert parts(*many, "faults.filter_logits=on")["logits"][1] == mib(3 * 4 * elements + piece)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16_pure"])
def test_fake_tensors_keep_for_the_backward_as_much_as_real_ones(precision):
    config = Config().with_(*WORK, f"model.precision={precision}", "data.num_prompts=2", "run.num_steps=1")
    outlined = memory.outline(config)
    (batch,) = memory.longest_batches(config, outlined.tokenizer)
    model, _ = loading.load("tiny", precision)
    weights, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}
    autocast = {"bf16": torch.bfloat16}.get(precision)
    packing = pack(batch, WIDTH)
    with (
        torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: kept.setdefault(tensor.untyped_storage().data_ptr(), tensor), lambda tensor: tensor
        ),
        torch.autocast("cpu", dtype=autocast, enabled=autocast is not None),
    ):
        mask = torch.ones(len(packing.tokens), 1, *[packing.tokens.shape[1]] * 2, dtype=torch.bool)
        ids = (packing.tokens, packing.positions)
        model.base_model(input_ids=ids[0], attention_mask=mask, position_ids=ids[1], use_cache=False)
    real = sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in weights)
    *fake, _, _, _ = outlined.activations(
        batch, outlined.sequences(batch)
    )  # the last three are the states before the tokens
    assert sum(fake) == pytest.approx(real, rel=0.01)


def command(*words):
    env = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "grpo_lab", *words], capture_output=True, text=True, env=env)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("stable",), ("dual", "--set", "run.stages=sft")])
def test_a_prediction_is_within_15_per_cent_of_a_measurement(words):
    done = command("doctor", "--memory", *words, "--device", "cpu")
    off = re.search(r"the prediction is ([+-][\d.]+)% off", done.stdout)
    assert done.returncode == 0 and off, done.stderr
    assert abs(float(off[1])) < 15


def test_the_stage_that_takes_most_is_predicted_and_fitted(tmp_path):
    shown = tmp_path / "shown.jsonl"
    shown.write_text('{"prompt": "1+1=", "completion": "2"}\n{"prompt": "11111+22222=", "completion": "33333"}\n')
    config = catalog.preset("smoke").with_("run.stages=sft,grpo", f"sft.data={shown}", "run.num_eval=8")
    sft = memory.predict(config.with_("sft.batch_size=64"), process=400.0)
    assert (sft.stage, sft.prompts, sft.completions) == ("sft", (64, 12), (64, 6)), "with the end token"
    assert "reference" not in sft.parts
    # SFT samples held-out problems alone: 8 prompts of 12 tokens before and after they get room for 6 more.
    assert sft.parts["KV cache"] == (mib(2 * LAYERS * WIDTH * 4 * 8 * (12 + 12 + 6)), 0, 0)
    few = config.with_("sft.batch_size=1")
    grpo = memory.predict(few, process=400.0)
    assert (grpo.stage, grpo.peak) == ("grpo", memory.predict(few.with_("run.stages=grpo"), process=400.0).peak)
    assert grpo.peak < sft.peak
    halved = fitting.halvings(config.with_("sft.batch_size=64"), sft)
    assert {each.setting for each in halved} == {"sft.batch_size", "data.micro_batch_prompts"}
    assert fitting.largest_micro_batch(config.with_("sft.batch_size=64"), 1e6, 400.0)[0].data.micro_batch_prompts == 64


@pytest.mark.slow
def test_doctor_predicts_for_a_run_and_advises(call, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "process_mib", lambda: 400.0)
    config = Config().with_(*WORK)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    for name in (tmp_path, tmp_path / "config.json"):
        code, out, err = call("doctor", "--memory", name, "--no-measure")
        assert (code, err) == (0, "")
        assert "128 completions of up to 8" in out and "activations" in out and "predicted: " in out
        assert re.search(r"halve first.*\ndata\.num_prompts +16 -> 8", out)
    _, out, _ = call("doctor", "--memory", "stable", "--no-measure", "--set", "data.num_prompts=4")
    assert "32 completions" in out


def test_the_table_of_models_shows_the_same_prediction(call, monkeypatch):
    """It once left activations and logits out, and said half of what a run took."""
    monkeypatch.setattr(environment, "process_mib", lambda: 400.0)
    code, out, _ = call("doctor")
    shown = re.search(r"tiny +[\d,]+ +([\d,]+) MiB", out)
    assert code == 0 and shown
    config = catalog.preset("stable").with_("model.name=tiny")
    assert shown[1] == f"{memory.predict(config).peak:,.0f}"


def test_a_model_that_does_not_fit_is_marked(call, monkeypatch):
    monkeypatch.setattr(environment, "free_mib", lambda device: 100.0)
    assert "MiB (too much)" in call("doctor")[1]


def test_doctor_does_not_measure_a_run_that_would_not_fit(call, monkeypatch):
    monkeypatch.setattr(environment, "free_mib", lambda device: 100.0)
    code, out, _ = call("doctor", "--memory", "smoke")
    assert code == 0 and "free here: 100 MiB, too little" in out and "not measured: it would not fit" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory", "stabel"), "unknown preset, scenario or run 'stabel'; did you mean 'stable'"),
        (("--memory", "events.jsonl"), "events.jsonl holds no config"),
        (("--memory", "stable", "--set", "data.num_promts=3"), "did you mean 'num_prompts'"),
        (("--model", "tiny"), "--set, --model and --device go with either --verify or --memory CONFIG"),
    ],
)
def test_a_bad_config_is_one_line(call, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events.jsonl").write_text("{}\n{}\n")
    code, out, err = call("doctor", *words)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_halvings_come_in_the_order_of_what_they_save():
    config = catalog.preset("smoke").with_("data.num_generations=2", "data.micro_batch_prompts=1")
    now = memory.predict(config, process=400.0)
    found = fitting.by_savings(fitting.halvings(config, now))
    assert {each.setting for each in found} == {"data.num_prompts", "sampling.max_completion_length"}
    assert [each.after.peak for each in found] == sorted(each.after.peak for each in found)
    assert found[0].after.peak < now.peak


def test_prompts_of_objectives_are_halved_and_fitted():
    own = {
        "objectives": [
            {"name": "F", "num_prompts": 2},
            {"name": "H", "num_prompts": 6, "sampling": {"max_completion_length": 4}},
        ]
    }
    config = Config().with_(*WORK, "data.num_prompts=16").merged(own)
    now = memory.predict(config, process=400.0)
    found = {each.setting: each for each in fitting.halvings(config, now)}
    assert "data.num_prompts" not in found and found["objectives.H.num_prompts"].new == 3
    assert found["objectives.H.sampling.max_completion_length"].new == 2
    best, _ = fitting.largest_micro_batch(config, 1e6, 400.0)
    assert best.data.micro_batch_prompts == 6


def test_fit_takes_the_largest_micro_batch_that_fits():
    config = Config().with_(*WORK, "data.num_prompts=6")
    needed = [memory.predict(config.with_(f"data.micro_batch_prompts={n}"), 400.0).peak for n in range(1, 7)]
    for prompts in (1, 4, 6):
        free = needed[prompts - 1] * fitting.SPARE
        assert fitting.largest_micro_batch(config, free, 400.0)[0].data.micro_batch_prompts == prompts
    with pytest.raises(ConfigError, match=r"one prompt with its 8 completions.* MiB .*, 300 are free; .*needs"):
        fitting.largest_micro_batch(config, 300.0, 400.0)


def test_train_fit_says_what_it_took_and_leaves_the_results(call, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "process_mib", lambda: 400.0)
    two = catalog.preset("smoke").with_("run.num_steps=1", "data.micro_batch_prompts=2")
    process = memory.process_before_a_model(two)
    room = memory.predict(two, process).peak * fitting.SPARE - process  # a run in this process has that part already
    monkeypatch.setattr(environment, "free_mib", lambda device: room)
    norms = []
    for words, said in (((), ""), (("--fit",), "micro_batch_prompts=2 of 4 prompts")):
        out = tmp_path / f"run{len(words)}"
        code, text, err = call("train", "--preset", "smoke", "--set", "run.num_steps=1", "--json", "--out", out, *words)
        assert code == 0 and said in err
        norms.append(json.loads(text.splitlines()[1])["metrics"]["grad_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


@pytest.mark.parametrize(("free", "said"), [(1.0, "not even a micro-batch of one prompt"), (None, "does not tell")])
def test_train_fit_without_room_is_bad_usage(call, tmp_path, monkeypatch, free, said):
    monkeypatch.setattr(environment, "free_mib", lambda device: free)
    code, _, err = call("train", "--preset", "smoke", "--fit", "--out", tmp_path / "run")
    assert code == 2 and said in err and not (tmp_path / "run").exists()


def test_free_memory_heeds_the_limit_of_a_container(tmp_path, monkeypatch):
    (tmp_path / "max").write_text(f"{300 * 2**20}\n")
    (tmp_path / "current").write_text(f"{200 * 2**20}\n")
    files = ((str(tmp_path / "max"), str(tmp_path / "current")), (str(tmp_path / "none"), str(tmp_path / "none")))
    monkeypatch.setattr(environment, "CONTROL_GROUPS", files)
    assert environment.free_mib("cpu") == 100.0
    (tmp_path / "max").write_text("max\n")
    assert (environment.free_mib("cpu") or 0) > 100.0


def test_rows_of_a_group_are_compared_with_its_first():
    names = ["tiny: 16 × 8 completions of 8 tokens", "full: batch of 4, 128 tokens", "full: 96 tokens"]
    sizes = zip(names, (500.0, 4000.0, 3000.0), ([490, 500, 510], [4100, 4000, 4200], [3280]), strict=True)
    rows = {name: {"predicted": predicted, "measured": measured} for name, predicted, measured in sizes}
    lines = memory_parts.table(rows).splitlines()[-3:]
    assert lines[0] == f"| {names[0]} | 500 | 500 | 4.0% | +0.0% |  |  |  |"
    assert lines[1].endswith("| 4,000 | 4,100 | 4.9% | -2.4% |  |  |  |")
    assert lines[2].endswith("| 3,000 | 3,280 |  | -8.5% | 25.0% | 20.0% | ~20 % |")
    assert {name.partition(": ")[2] for name in memory_parts.ROWS} >= {*memory_parts.CLAIMS}
