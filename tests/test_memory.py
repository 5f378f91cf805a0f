"""Memory: the bytes of each part, a measured step, settings to change, and a run that goes on when memory runs out."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import grpo_lab as gl
from grpo_lab.analysis import memory
from grpo_lab.config import catalog
from grpo_lab.config.schema import Config
from grpo_lab.core import train
from grpo_lab.core.hooks import Stage
from grpo_lab.events import Crash, Ended, Resumed
from grpo_lab.runs import crashes
from grpo_lab.runs.session import Session
from grpo_lab.training import trainer
from grpo_lab.training.state import Training
from tests.steps import Calls

TINY = 834_560
"""Parameters of the tiny model."""
SMOKE = catalog.preset("smoke").with_("run.threads=1")
LIMITED = """
import os, signal
from dataclasses import dataclass
import torch
from grpo_lab.training.interventions import Intervention, Outcome

@dataclass(frozen=True)
class Limited(Intervention):
    stage = "logits"
    rows: int = 0
    kill: bool = False

    def __call__(self, value, step):
        if self.rows and value.requires_grad and len(value) > self.rows:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return Outcome(value)
"""
"""A fault: more completions in a pass than `rows` do not fit."""


@pytest.fixture
def limited(tmp_path):
    """The name of the fault as a config has it."""
    (tmp_path / "limited.py").write_text(LIMITED)
    return f"faults.{tmp_path / 'limited.py'}:Limited"


def parts(*settings, config=SMOKE):
    return memory.parts(config.with_(*settings))


def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors)


DUAL = catalog.preset("dual").with_("run.threads=1", "run.num_steps=2", "run.stages=grpo", "run.num_eval=4")


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (SMOKE, ()),
        (SMOKE, ("model.precision=bf16_pure", "loss.beta=0")),
        (SMOKE, ("model.sampler_weights=start", "loss.beta=0")),
        (SMOKE, ("lora.r=4", "lora.reference=adapters_on", "run.snapshot_every=5")),
        (DUAL, ("objectives.F.num_prompts=2", "objectives.H.num_prompts=2")),
    ],
)
def test_the_parts_are_the_tensors_of_a_run(config, settings, monkeypatch):
    config, made, gradients, backward = config.with_(*settings), [], [], train.Trainer.backward

    def look(self, ctx, batch):
        backward(self, ctx, batch)
        gradients.append(bytes_of(p.grad for p in self.updates.parameters))

    monkeypatch.setattr(train.Trainer, "backward", look)
    monkeypatch.setattr(trainer, "Training", lambda *given: made.append(Training(*given)) or made[0])
    list(gl.train(config))
    (training,), found = made, memory.parts(config)
    moments = [value for state in training.updates.optimizer.state.values() for value in state.values()]
    assert found == {
        "weights": bytes_of(training.policy.parameters()),
        "gradients": sum(gradients[-len(training.objectives) :]),
        "moments": bytes_of(moments),
        "reference": bytes_of(getattr(training.reference, "parameters", list)()),
        "snapshot": bytes_of(training.updates.snapshots.state_dict()["kept"].values()),
    }


def rows(config, **more):
    found = {"weights": 1, "gradients": 1, "moments": 2, **more}
    return {name: change for name, change, _ in memory.change_first(config, found, rest=2)}


def test_settings_of_the_larger_share_come_first():
    work = Config().with_("data.num_prompts=16", "data.num_generations=8", "sampling.max_completion_length=8")
    halved = {"data.micro_batch_prompts": "16 -> 8", "sampling.max_completion_length": "8 -> 4"}
    halved["data.num_generations"] = "8 -> 4"
    assert list(rows(work).items()) == [("lora.r", "0 -> 8"), *halved.items()]
    assert list(rows(work, moments=0).items()) == [*halved.items(), ("lora.r", "0 -> 8")]
    least = ("data.micro_batch_prompts=1", "data.num_generations=2", "sampling.max_completion_length=1", "lora.r=1")
    assert rows(work.with_(*least)) == {}
    assert rows(work.with_("lora.r=16"))["lora.r"] == "16 -> 8"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("out-of-memory", "RuntimeError: can't allocate memory", True),
        ("unknown", "the child was ended by SIGKILL", True),
        ("unknown", "rank 1 was ended by SIGKILL", True),
        ("unknown", "the child was ended by SIGSEGV", False),
        ("cuda-assert", "AcceleratorError: CUDA error", False),
    ],
)
def test_memory_runs_out_by_an_error_or_by_a_kill(kind, message, expected):
    assert crashes.out_of_memory(Ended("crashed", message, Crash(kind, "", "", ""))) is expected
    assert not crashes.out_of_memory(Ended("stopped", message))


def test_a_run_goes_on_from_its_checkpoint_in_smaller_passes(tmp_path, fault):
    def full(value, step):
        if step.index == 2 and value.requires_grad and len(value) > 4:
            raise MemoryError

    config = SMOKE.with_(fault(Stage.LOGITS, full), "run.checkpoint_minutes=0")
    session, seen = Session(config, tmp_path / "run", child=False, fit=True), []
    session.views.append(Calls(seen.append))
    with pytest.warns(UserWarning, match="memory ran out: the run goes on with data.micro_batch_prompts=[21]") as told:
        session.run()
    found = [(event.step, event.reason) for event in seen if isinstance(event, Resumed)]
    assert session.status == "done" and len(told) == 2
    assert found == [(2, f"data.micro_batch_prompts={n} after a crash: MemoryError") for n in (2, 1)]
    assert Session.open(tmp_path / "run").config.data.micro_batch_prompts == 1


def command(*words):
    words = (sys.executable, "-m", "grpo_lab", *map(str, words))
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_train_fit_halves_the_micro_batch_until_it_fits(tmp_path, limited):
    """In a child, which is killed; the run is then the one that had the small micro-batch from the start."""
    full = ("--set", f"{limited}.rows=4", "--set", f"{limited}.kill=on")
    train = ("train", "--preset", "smoke", "--set", "run.threads=1", *full, "--out")
    fitted = command(*train, tmp_path / "run", "--fit")
    assert fitted.returncode == 0 and "data.micro_batch_prompts=1 after a crash: " in fitted.stdout
    assert [line[-1] for line in fitted.stderr.splitlines() if "memory ran out" in line] == ["2", "1"]
    assert command(*train, tmp_path / "small", "--set", "data.micro_batch_prompts=1").returncode == 0
    one, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "small"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_fit_needs_a_run_that_can_begin_again(call, monkeypatch, tmp_path):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    code, _, err = call("train", "--preset", "smoke", "--fit", "--out", tmp_path / "run")
    assert code == 2 and "--fit" in err and "set data.micro_batch_prompts" in err and not (tmp_path / "run").exists()


def shown(out):
    """MiB by part, as `doctor --memory` shows them."""
    found = re.findall(r"^(\S[a-z:, ]*?) +[\d,]+ +([\d,]+\.\d)$", out, flags=re.MULTILINE)
    return {name: float(mib.replace(",", "")) for name, mib in found}


@pytest.mark.slow
def test_doctor_measures_what_smaller_micro_batches_save(call):
    work = ("data.num_prompts=32", "data.num_generations=8", "sampling.max_completion_length=24")
    found = []
    for prompts in (32, 2):
        settings = [word for each in (*work, f"data.micro_batch_prompts={prompts}") for word in ("--set", each)]
        code, out, _ = call("doctor", "--memory", "smoke", *settings)
        sizes = shown(out)
        assert code == 0 and sizes["weights"] == pytest.approx(4 * TINY / memory.MIB, abs=0.1)
        assert sum(sizes.values()) - sizes["sum"] == pytest.approx(sizes["sum"], abs=1.0)
        found.append(sizes["rest: activations, logits, cache"])
    assert found[0] > found[1] + 30 and found[1] > 0


def test_doctor_shows_the_parts_of_a_config_or_run(call, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMOKE.to_dict()))
    for name in (tmp_path, tmp_path / "config.json", "smoke"):
        code, out, err = call("doctor", "--memory", name, "--no-measure")
        assert (code, err) == (0, "") and "were not measured: --no-measure" in out
        assert shown(out) == pytest.approx({**{k: v / memory.MIB for k, v in parts().items()}, "sum": 25.5}, abs=0.1)
    _, out, _ = call("doctor", "--memory", "smoke", "--no-measure", "--set", "data.num_prompts=2")
    assert re.search(r"change first.*\ndata\.micro_batch_prompts +2 -> 1 ", out)


def test_the_table_of_models_shows_what_a_default_run_keeps(call, monkeypatch):
    code, out, _ = call("doctor")
    found = re.search(r"tiny +[\d,]+ +([\d,]+) MiB", out)
    assert code == 0 and found
    assert found[1] == f"{sum(parts(config=catalog.preset('stable')).values()) / memory.MIB:,.0f}"
    monkeypatch.setattr(memory, "free_mib", lambda device: 10.0)
    assert "MiB (too much)" in call("doctor")[1]


def test_free_memory_heeds_the_limit_of_a_container(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{300 * 2**20}\n")
    (tmp_path / "memory.current").write_text(f"{200 * 2**20}\n")
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    assert memory.free_mib("cpu") == 100.0
    (tmp_path / "memory.max").write_text("max\n")
    assert (memory.free_mib("cpu") or 0) > 100.0
