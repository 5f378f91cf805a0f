"""What a run does with CUDA, simulated on a CPU: lost contexts, process-wide settings, and no context without need."""

import json

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab.config.catalog import preset
from grpo_lab.errors import RunError
from grpo_lab.events import Stepped
from grpo_lab.models import loading
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.runs import environment, run_folder
from grpo_lab.runs.child import Child
from grpo_lab.runs.crashes import context_lost
from grpo_lab.runs.session import Session
from grpo_lab.training import torch_settings
from grpo_lab.training.trainer import train

SMOKE = preset("smoke").with_("run.threads=1", "run.device=cpu")
MULTINOMIAL = (
    "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], "
    "thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed."
)
TRIGGERED = """CUDA error: device-side assert triggered
Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
LOST = """
import os
from dataclasses import dataclass

import torch

from grpo_lab.interventions import Intervention, Outcome, Stage

@dataclass(frozen=True)
class Lost(Intervention):
    '''Fails in the second step as a CUDA kernel does: its assertion on descriptor 2, the exception somewhere else.'''

    stage = Stage.LOSS

    def __call__(self, value, step):
        if not step.index:
            return Outcome(value)
        print("printed before")
        os.write(2, {line!r}.encode() + b"\\n")
        raise torch.AcceleratorError({triggered!r})
"""


def test_the_parent_names_the_assertion_that_destroyed_its_childs_context(tmp_path):
    (tmp_path / "lost.py").write_text(LOST.format(line=MULTINOMIAL, triggered=TRIGGERED))
    child, config = Child(), SMOKE.with_guards({f"{tmp_path / 'lost.py'}:Lost": {}})
    session = Session(config, tmp_path / "run", child=child, save_model=True).run()
    assert session.status == "crashed" and session.crash and session.ended
    assert (session.crash.kind, session.crash.operator) == ("multinomial-cuda-linux", "torch.multinomial")
    assert session.crash.text == MULTINOMIAL
    assert session.ended.message == "AcceleratorError: CUDA error: device-side assert triggered"
    assert [event.failed for event in session.events if isinstance(event, Stepped)] == [False, True]
    assert session.ended.message in (session.directory / run_folder.TRACEBACK).read_text()
    assert Session.open(session.directory).ended == session.ended and not session.saved_model
    assert child.process.returncode == 1 and "printed before" in child.stderr


def test_an_error_of_any_type_may_tell_of_a_lost_context(monkeypatch):
    """cuBLAS raises a RuntimeError, and a reward function may raise anything before CUDA is asked again."""

    def lost():
        raise torch.AcceleratorError(TRIGGERED)

    assert not context_lost(KeyError()) and context_lost(torch.AcceleratorError(TRIGGERED))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not context_lost(KeyError())
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    assert context_lost(KeyError()) and context_lost(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"))


class Cuda:
    """A machine with CUDA, as far as a process may ask without a context; anything else is noted."""

    def __init__(self, monkeypatch):
        self.asked = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: self.asked.append("name") or "a GPU")
        monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: self.asked.append("context"))


@pytest.fixture
def cuda(monkeypatch):
    return Cuda(monkeypatch)


def test_a_run_on_cuda_is_in_a_child_unless_it_is_told_otherwise(tmp_path, cuda):
    def in_child(device, **options):
        return Session(SMOKE.with_(f"run.device={device}"), tmp_path / "run", **options)._in_child

    assert in_child("auto") and in_child("cuda:1") and not in_child("cpu")
    assert not in_child("auto", child=False) and not in_child("auto", rewards=[lambda **_: []])
    assert not in_child("cuda", model=loading.load("tiny")) and cuda.asked == []
    with pytest.raises(RunError, match="name them in the config"):
        in_child("cpu", child=True, rewards=[lambda **_: []])


def test_the_environment_of_a_run_on_the_cpu_asks_cuda_for_nothing(tmp_path, cuda):
    session = Session(SMOKE, tmp_path / "run").run()
    described = json.loads((session.directory / run_folder.ENVIRONMENT).read_text())
    assert (described["device"], described["cuda"], cuda.asked) == ("cpu", None, [])
    described = environment.describe()
    assert described["device"] == "a GPU"
    assert described["attention"] == "sdpa: memory-efficient, math; cuDNN off"


def settings():
    return torch_settings._read()


@pytest.fixture
def mine():
    """Settings of a program that embeds a run, none of them torch's default."""
    before = settings()
    torch.set_num_threads(3)
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cuda.enable_cudnn_sdp(True)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    yield settings()
    torch_settings._write(before)


def test_a_run_has_its_own_settings_of_torch_and_its_caller_keeps_his(mine, fault):
    seen = []
    seen_by = fault("loss", lambda value, step: seen.append(settings()))
    events = train(SMOKE.with_(seen_by, "run.deterministic=true"))
    for _ in zip(range(2), events, strict=False):
        assert settings() == mine
    events.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert settings() == mine
    threads, deterministic, cudnn, (fp16, *_), (bf16, *_), _ = seen[0]
    assert (threads, deterministic, cudnn, fp16, bf16) == (1, 2, False, False, False)
    assert [*train(SMOKE.with_(seen_by))] and seen[-1][1] == 1, "not asked for, it stays as it was"
    assert settings() == mine


# torch.use_deterministic_algorithms names the operators that raise on CUDA.
WITHOUT_DETERMINISTIC_KERNEL = {
    "put",
    "histc",
    "bincount",
    "median",
    "kthvalue",
    "nll_loss_forward",
    "nll_loss2d_forward",
}


class Operators(TorchDispatchMode):
    """Collects the operators of a run that have no deterministic kernel on CUDA."""

    def __init__(self):
        super().__init__()
        self.found, self.calls = set(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        name = func.overloadpacket.__name__.rstrip("_")
        if name in WITHOUT_DETERMINISTIC_KERNEL or (name == "cumsum" and args[0].is_floating_point()):
            self.found.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["bf16", "fp16_pure"])
def test_a_run_uses_no_operator_without_a_deterministic_kernel_on_cuda(precision):
    """With one of them, `run.deterministic` would raise on a GPU."""
    config = preset("stable").with_("run.num_steps=1", "run.device=cpu", "data.num_prompts=2", "run.exact_kl=true")
    sampling = ("sampling.temperature=0.7", "sampling.top_k=5", "sampling.repetition_penalty=1.1", "sampling.top_p=0.9")
    with Operators() as operators:
        assert [*train(config.with_(f"model.precision={precision}", *sampling))]
    assert operators.calls > 1000 and operators.found == set()


@pytest.mark.parametrize(
    "switch",
    [
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    ],
    ids=["set_float32_matmul_precision", "generic"],
)
def test_with_tf32_the_samplers_log_probabilities_are_not_the_old_ones(switch):
    exact, on_cuda = PRECISIONS["fp32"].exact, torch.device("cuda")
    assert exact(on_cuda)
    try:
        switch()
        assert not exact(on_cuda) and exact(torch.device("cpu"))
    finally:
        setattr(torch.backends, "fp32_precision", "none")  # noqa: B010, unknown to type checkers
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert exact(on_cuda)
    assert not any(PRECISIONS[name].exact(on_cuda) for name in ("bf16", "fp16", "bf16_pure", "fp16_pure"))
