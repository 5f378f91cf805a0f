"""LoRA: only adapters are trained, kept and saved; the reference is the model with adapters as they were."""

import copy
import json
import shutil
from typing import Any

import pytest
import torch

import grpo_lab as gl
from grpo_lab.config.sections import LoraConfig
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.errors import ConfigError, ModelError
from grpo_lab.events import Stepped
from grpo_lab.models import adapters, loading
from grpo_lab.models.registry import MODELS
from grpo_lab.training import trainer
from grpo_lab.training.interventions import Outcome
from grpo_lab.training.reference import Reference
from grpo_lab.training.state import Training

LORA = gl.preset("smoke").with_("run.threads=1", "run.device=cpu", "lora.r=4", "optimizer.learning_rate=3e-3")
PEFT = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
"""Of tests that make a PeftModel themselves: peft reads a property that transformers renames."""
IDS = torch.tensor([[1, 2, 3, 4, 5]])


@pytest.fixture(scope="module")
def bases():
    """The tiny model by precision, loaded when a test first asks for it; runs train copies."""
    loaded: dict[str, Any] = {}
    return lambda precision: loaded.setdefault(precision, loading.load("tiny", precision))


@pytest.fixture
def run(bases, monkeypatch):
    """Trains a copy of the tiny model: `run(*overrides, model=...)` gives training, model and steps."""

    def go(*overrides, model=None, config=LORA):
        config, seen = config.with_(*overrides), {}
        policy, tokenizer = model or copy.deepcopy(bases(config.model.precision))
        monkeypatch.setattr(trainer, "Training", lambda *given: seen.setdefault("training", Training(*given)))
        events = list(gl.train(config, (policy, tokenizer)))
        steps = [event for event in events if isinstance(event, Stepped)]
        return seen["training"], policy, steps

    return go


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits


def split(model):
    """The values of trained tensors and of all others, by name."""
    named = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    return {k: v for k, v in named.items() if k in trained}, {k: v for k, v in named.items() if k not in trained}


def same(some, others):
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


def adapted(bases, *overrides, precision="fp32"):
    model, _ = copy.deepcopy(bases(precision))
    return adapters.prepared(model, LORA.with_(*overrides).lora, 0)


# --- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16_pure", "fp16_pure"])
def test_new_adapters_change_no_bit_and_are_fp32(bases, precision):
    plain, _ = bases(precision)
    model = adapted(bases, precision=precision)
    assert torch.equal(logits(model), logits(plain))
    trained, frozen = split(model)
    assert {value.dtype for value in trained.values()} == {torch.float32}
    assert {value.dtype for value in frozen.values()} == {plain.dtype}
    assert len(trained) == 2 * 4 * 4, "two matrices for each of four layers in four blocks"


def test_only_adapters_move_and_the_kl_begins_at_zero(run, bases):
    training, policy, steps = run()
    trained, frozen = split(policy)
    before = dict(bases("fp32")[0].named_parameters())
    assert len(frozen) == len(before) and all("lora_" in name for name in trained)
    assert all(torch.equal(value, before[name.replace(".base_layer", "")]) for name, value in frozen.items())
    assert any(bool(value.any()) for name, value in trained.items() if "lora_B" in name)
    kl = [step.metrics["kl"] for step in steps]
    assert kl[0] == 0 and kl[-1] > 1e-5
    assert sum(p.numel() for p in training.updates.parameters) == sum(value.numel() for value in trained.values())


def test_the_reference_is_the_base_to_the_bit_and_stays_so(run, bases):
    training, policy, _ = run()
    moved, base = logits(policy), logits(bases("fp32")[0])
    with training.reference:
        inside = logits(policy)
    assert torch.equal(inside, base) and not torch.equal(moved, base)
    assert torch.equal(logits(policy), moved), "the policy has its own tensors again"
    kept = list(training.reference.parameters())
    assert sum(t.numel() for t in kept) == training.updates.num_parameters, "no frozen weight is copied"


def test_the_reference_is_taken_with_adapters_that_were_trained_before(run, bases):
    _, policy, _ = run()
    then = logits(policy)
    reference = Reference(policy)
    training, _, steps = run(model=(policy, bases("fp32")[1]))
    for each in (reference, training.reference):
        with each:
            assert torch.equal(logits(policy), then)
    assert steps[0].metrics["kl"] == 0 and steps[-1].metrics["kl"] > 1e-5


def test_snapshots_hold_adapters_and_a_rollback_restores_them(run, fault):
    def undo(policy, step):
        return Outcome(policy, Verdict.ROLL_BACK, "of this test") if step.index == 1 else Outcome(policy)

    once, twice = (run("run.num_steps=1"), run(fault(Stage.WEIGHTS, undo), "run.num_steps=2"))
    assert twice[2][1].verdict is Verdict.ROLL_BACK
    assert same(split(once[1])[0], split(twice[1])[0]), "the second step left nothing"


def test_dropout_changes_no_bit_of_grpo_and_acts_in_train_mode(run, bases):
    without, with_dropout = run("run.num_steps=2"), run("run.num_steps=2", "lora.dropout=0.5")
    assert same(split(without[1])[0], split(with_dropout[1])[0])
    policy = with_dropout[1]
    steady = logits(policy)
    for name, module in policy.named_modules():
        module.training = name.endswith("lora_dropout.default")
    torch.manual_seed(0)
    assert not torch.equal(logits(policy), steady)


def test_with_adapters_on_in_the_reference_the_kl_is_zero_and_beta_does_nothing(run):
    broken = "lora.reference=adapters_on"
    little, much = (run(broken, f"loss.beta={beta}", "run.exact_kl=true") for beta in (0.02, 5))
    for _, _, steps in (little, much):
        assert all(step.metrics["kl"] == 0 and step.metrics["kl/exact"] < 1e-7 for step in steps)
        assert all(step.metrics["weights/max_move"] > 1e-4 for step in steps)
    assert same(split(little[1])[0], split(much[1])[0])
    right = run("loss.beta=5")
    assert not same(split(right[1])[0], split(much[1])[0])


# --- names and models ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "layers"),
    [("", 16), ("c_attn,", 4), ("h.0.attn.c_attn,", 1), ("c_fc,attn.c_proj", 8)],
)
def test_names_select_layers(bases, names, layers):
    overrides = (f"lora.target_modules={names}",) if names else ()
    assert len(split(adapted(bases, *overrides))[0]) == 2 * layers


@pytest.mark.parametrize(("names", "modules"), [("ln_1,ln_2,ln_f", 9), ("h.0.ln_1,", 1)])
def test_names_select_norms_that_move_with_the_adapters(run, bases, names, modules):
    start = bases("fp32")[0].transformer.h[0].ln_1.weight
    training, policy, steps = run(f"lora.modules_to_save={names}")
    assert len([name for name in split(policy)[0] if "modules_to_save" in name]) == 2 * modules
    norm = policy.transformer.h[0].ln_1.weight
    assert not torch.equal(norm, start) and steps[0].metrics["kl"] == 0 and steps[-1].metrics["kl"] > 1e-6
    with training.reference:
        assert torch.equal(policy.transformer.h[0].ln_1.weight, start)


@pytest.mark.parametrize(
    ("setting", "names", "wrong", "kind", "known"),
    [
        ("modules_to_save", "ln_9,", "ln_9", "norm", "ln_1, ln_2, ln_f"),
        ("modules_to_save", "c_attn,", "c_attn", "norm", "ln_1, ln_2, ln_f"),
        ("target_modules", "c_attn,q_proj", "q_proj", "linear layer", "c_attn, c_proj, c_fc"),
        ("target_modules", "lm_head,", "lm_head", "linear layer", "c_attn, c_proj, c_fc"),
    ],
)
def test_a_name_that_matches_nothing_is_an_error_before_training(bases, setting, names, wrong, kind, known):
    training = gl.train(LORA.with_(f"lora.{setting}={names}"), copy.deepcopy(bases("fp32")))
    with pytest.raises(ConfigError, match=rf"'{wrong}' matches no {kind}; this model has {known}"):
        next(training)


@PEFT
def test_a_peft_model_is_trained_as_it_is(run, bases):
    import peft

    model, tokenizer = copy.deepcopy(bases("fp32"))
    wrapped: Any = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    training, _, steps = run("lora.r=0", model=(wrapped, tokenizer))
    assert training.updates.num_parameters == sum(p.numel() for p in wrapped.parameters() if p.requires_grad)
    assert steps[0].metrics["kl"] == 0 and steps[-1].metrics["kl"] > 1e-6
    with training.reference, wrapped.disable_adapter():
        off = logits(wrapped)
    assert torch.equal(off, logits(bases("fp32")[0]))


def test_other_adapters_than_those_of_the_config_are_an_error(bases):
    model = adapted(bases)
    assert adapters.prepared(model, LORA.lora, 1) is model
    with pytest.raises(ConfigError, match=r"lora.r = 8.* adapters with r = 4, alpha = 16: set lora.r=0"):
        adapters.prepared(model, LoraConfig(r=8), 0)


@pytest.mark.parametrize("setting", ["reference=adapters_on", "target_modules=c_attn", "modules_to_save=ln_1"])
def test_what_needs_adapters_is_refused_without(setting):
    with pytest.raises(ConfigError, match=rf"lora.{setting.partition('=')[0]} = .* needs adapters: set lora.r"):
        LORA.with_("lora.r=0", f"lora.{setting}")


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A session that trained adapters and saved them, and its policy."""
    folder = tmp_path_factory.mktemp("run") / "run"
    model = loading.load("tiny")
    config = LORA.with_("lora.save_merged=true", "lora.modules_to_save=ln_1,ln_f")
    session = gl.Session(config, folder, model=model, child=False, save_model=True).run()
    return session, model[0]


def test_saved_adapters_are_small_and_load_as_the_same_policy(saved):
    session, policy = saved
    files = {path.name: path.stat().st_size for path in session.saved_model.iterdir()}
    assert 32_768 * 4 < files["adapter_model.safetensors"] < 1.1 * 32_768 * 4 and "model.safetensors" not in files
    again, _ = loading.load(str(session.saved_model))
    assert torch.equal(logits(again), logits(policy))
    assert same(split(again)[0], split(policy)[0]), "ready to be trained further"


def test_merged_weights_are_an_ordinary_model_with_the_same_logits(saved):
    session, policy = saved
    model, _ = loading.load(str(session.directory / "model-merged"))
    assert not hasattr(model, "peft_config") and not [name for name in model.state_dict() if "lora" in name]
    assert torch.allclose(logits(model), logits(policy), atol=1e-4)
    assert not torch.allclose(logits(model), logits(loading.load("tiny")[0]), atol=1e-3)


def test_a_saved_policy_is_trained_further_by_name(saved, run):
    name = f"model.name={saved[0].saved_model}"
    steps = [event for event in gl.train(LORA.with_(name, "run.num_steps=2")) if isinstance(event, Stepped)]
    assert steps[0].metrics["kl"] == 0 and steps[-1].metrics["kl"] > 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model_name_or_path": ""}, "base_model_name_or_path is empty"),
        ({"base_model_name_or_path": "/no/such/model"}, "no folder '/no/such/model'"),
        ({"target_modules": ["c_attn"]}, "matrices do not fit the model"),
    ],
)
def test_a_damaged_folder_of_adapters_is_an_error(saved, tmp_path, change, message):
    for path in saved[0].saved_model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        loading.load(str(tmp_path))
    config.write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        loading.load(str(tmp_path))


def test_a_known_base_is_found_on_another_machine(saved, tmp_path):
    config = json.loads((saved[0].saved_model / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": "/elsewhere/tiny-gpt2"})
    )
    assert adapters.base_of(str(tmp_path)) == "tiny" and adapters.base_of("tiny") == ""


@PEFT
@pytest.mark.parametrize("own", [False, True], ids=["of the config", "of the user"])
def test_peft_loads_saved_adapters_by_their_folder_alone_from_anywhere(tmp_path, monkeypatch, own):
    import peft

    shutil.copytree(MODELS["tiny"].path, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    model: Any
    model, tokenizer = loading.load("mine")
    config = LORA.with_("model.name=mine", "run.num_steps=1", "lora.modules_to_save=ln_1,ln_f")
    if own:
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
        config = LORA.with_("lora.r=0", "run.num_steps=1")
    session = gl.Session(config, tmp_path / "run", model=(model, tokenizer), child=False, save_model=True).run()
    monkeypatch.chdir("/")
    again: Any = peft.AutoPeftModelForCausalLM.from_pretrained(session.saved_model)
    assert torch.allclose(logits(again), logits(model), atol=1e-4)  # gelu is fused here alone
    assert adapters.base_of(str(session.saved_model)) == str(tmp_path / "mine")
