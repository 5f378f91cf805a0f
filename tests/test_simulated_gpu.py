"""Every path of a step on a simulated GPU: its numbers are those of a CPU, and no wait or kernel creeps in.

The simulation cannot tell speed, rounding, memory, the kernels of CUDA or NCCL; tests/gpu needs a real GPU.
"""

import copy
import shutil
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch

import grpo_lab as gl
from grpo_lab.config.catalog import preset
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.errors import ConfigError
from grpo_lab.events import Stepped
from grpo_lab.metrics import OF_THE_MACHINE
from grpo_lab.models import loading
from grpo_lab.runs.session import Session
from grpo_lab.training import snapshots, torch_settings
from grpo_lab.training.faults import FAULTS
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import AtOneStep, Outcome, known
from grpo_lab.training.sampling_filters import is_plain
from grpo_lab.training.trainer import train
from tests.simulated_cuda import simulated_cuda
from tests.steps import stopping

TRIED = "2.13"
"""The version of torch whose private parts the simulation uses."""
HERE = torch.__version__.startswith(f"{TRIED}.") and torch.version.cuda is None and bool(shutil.which("g++"))
pytestmark = pytest.mark.skipif(
    not HERE, reason=f"the simulated GPU needs g++ and a CPU build of torch {TRIED}; here is torch {torch.__version__}"
)
TINY = ("run.threads=1", "run.num_steps=2", "run.num_eval=0", "data.num_prompts=2", "data.num_generations=4")
STEP = preset("stable").with_(*TINY)
ON_CUDA = "sampling/sampling_logp_difference"
"""What the first step of a stage measures on CUDA alone."""


@pytest.fixture
def gpu():
    with simulated_cuda() as gpu:
        yield gpu


def words(event):
    """What a step says in words."""
    actions = [(action.name, action.stage, action.verdict) for action in event.actions]
    links = [] if event.failed else [(link.link, link.update, link.nonfinite, link.numel) for link in notes(event)]
    return event.step, event.verdict, event.failed, actions, event.samples, links


def numbers(event):
    """What a step says in numbers, without its times and sizes; the sizes of all links together are the last one."""
    metrics = {name: v for name, v in event.metrics.items() if name not in OF_THE_MACHINE and ON_CUDA not in name}
    sizes = {f"link {place}": link.magnitude for place, link in enumerate(notes(event))}
    return {} if event.failed else metrics | sizes


def notes(event):
    """The notes of a step, without those of a pass that a run in fp32 makes on CUDA alone."""
    return [link for link in event.links if "old" not in link.where.split()]


@cache
def shallow():
    """The tiny model with two of its four layers, which take most of the time."""
    model: Any
    model, tokenizer = loading.load("tiny", "fp32", "cpu")
    model.transformer.h, model.config.n_layer = model.transformer.h[:2], 2
    return model, tokenizer


def steps(config, gpu=None, model=None):
    """The steps of a run up to its end or to the error that ends it; then `gpu` has counted the last of them alone."""
    found, counts = [], (Counter(), Counter())
    try:
        for event in train(config, model):
            if isinstance(event, Stepped):
                found.append(event)
                counts = (gpu.waits.copy(), gpu.launches.copy()) if gpu else counts
            if gpu:
                gpu.waits.clear()
                gpu.launches.clear()
    except RuntimeError:
        assert found[-1].failed
    if gpu:
        gpu.waits, gpu.launches = counts
    return found


def same_on_both(gpu, config, on_cpu=None):
    """The steps of a run on the simulated GPU, which are those of a CPU but for rounding."""
    models: Any = [copy.deepcopy(shallow()) for _ in range(2)]
    models[0][0].to("cuda")
    found = steps(config.with_("run.device=cuda"), gpu, models[0])
    expected = steps((on_cpu or config).with_("run.device=cpu"), model=models[1])
    assert [*map(words, found)] == [*map(words, expected)] and found
    for mine, theirs in zip(found, expected, strict=True):
        assert numbers(mine) == pytest.approx(numbers(theirs), rel=1e-3, abs=1e-5, nan_ok=True)
    return found


# --- a step ----------------------------------------------------------------------------------------------------------

FILTERS = ("top_k=5", "top_p=0.9", "repetition_penalty=1.2", "presence_penalty=0.5", "frequency_penalty=0.5")
SHAPING = ("loss.kl_place=reward", "loss.soft_overlong=0.5", "loss.dynamic_sampling=2")
CREDIT = ("loss.credit_assignment=reward_to_go", "loss.advantage_scale=reward")
WAYS = {
    "stable": (10, ()),
    "LoRA": (10, ("lora.r=4",)),
    "filters": (11, ("run.streams=2", "sampling.temperature=0.7", *(f"sampling.{each}" for each in FILTERS))),
    "micro-batches": (36, ("loss.num_iterations=2", "data.micro_batch_prompts=1", "run.exact_kl=true")),
    "reward to go": (12, CREDIT),
    "shaping": (20, (*SHAPING, "loss.entropy_coef=0.01", "loss.top_entropy_quantile=0.5", "run.num_eval=8")),
    "plain pass": (12, ("model.prompt_pass=plain",)),
}
"""For each way the most waits of a step beside NOTES and one for each token that is decoded."""
NOTES = 2
"""Waits for token notes, and for whose tokens the worst elements are."""


@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_that_of_a_cpu_and_waits_no_more_often(gpu, way):
    most, settings = WAYS[way]
    config = STEP.with_(*settings)
    first, *rest = same_on_both(gpu, config)
    tokens = gpu.launches["multinomial"]  # each random stream draws on its own
    assert 0 < gpu.waits.total() <= most + NOTES + tokens, gpu.waits.most_common()
    assert not gpu.pinned, "a small model has its snapshot on the GPU"
    if is_plain(config.sampling):  # with filters every step measures the gap, on a CPU too
        assert first.metrics[f"{ON_CUDA}/max"] < 1e-4 and not any(ON_CUDA in name for s in rest for name in s.metrics)


def test_a_step_of_the_preset_stays_within_its_budget(gpu):
    """A token waits once, and launches what the passes of a model of four layers do."""
    steps(preset("stable").with_("run.device=cuda", "run.threads=1", "run.num_steps=2", "data.num_prompts=4"), gpu)
    tokens = gpu.launches["multinomial"]
    assert 2 <= tokens <= 5, "else these are not the budgets of a step with 27 waits and 1,100 launches at most"
    assert gpu.waits.total() <= 10 + NOTES + tokens, gpu.waits.most_common()
    assert gpu.launches.total() <= 600 + 105 * tokens, gpu.launches.most_common()


@pytest.mark.parametrize("precision", ["fp16", "bf16_pure"])
def test_a_step_in_half_precision_has_no_operator_that_mixes_devices(gpu, precision):
    """A CPU rounds half precision in other places, so that its numbers are not compared."""
    found = steps(STEP.with_("run.device=cuda", "run.num_steps=1", f"model.precision={precision}"), gpu)
    assert len(found) == 1 and not found[-1].failed
    assert gpu.waits.total() <= 16 + NOTES + gpu.launches["multinomial"], gpu.waits.most_common()


DUAL = ("objectives.F.num_prompts=2", "objectives.H.num_prompts=2", "sft.num_steps=1", "sft.batch_size=4")
OTHERS = {
    "another preset": (22, 1, preset("original").with_(*TINY, "run.num_steps=1", "model.precision=fp32")),
    "sft": (4, 0, STEP.with_("run.stages=sft", "sft.data=dual", "sft.num_steps=2")),
    "two objectives after sft": (20, 1, preset("dual").with_(*TINY[:3], *DUAL, "run.num_steps=1")),
    "all guards": (23, 2, STEP.with_guards({name: {} for name in GUARDS})),
}
"""Runs with the most waits of a step, and how many more for each token that is decoded."""


@pytest.mark.parametrize("name", OTHERS)
def test_other_runs_are_those_of_a_cpu(gpu, name):
    most, each, config = OTHERS[name]
    same_on_both(gpu, config)
    assert gpu.waits.total() <= most + NOTES + each * gpu.launches["multinomial"], gpu.waits.most_common()


def test_all_faults_are_those_of_a_cpu(gpu):
    at_once = {name: {"at_step": 0} if issubclass(fault, AtOneStep) else {} for name, fault in FAULTS.items()}
    of_loss = {"dropout_on", "shift_log_ratio", "shift_kl_delta", "scale_loss", "nan_gradient"}
    for names in (of_loss, at_once.keys() - of_loss - {"router_noise"}):  # the model has no experts
        config = STEP.with_("model.prompt_pass=plain", "sampling.top_p=0.99", "run.num_steps=1")
        same_on_both(gpu, config.merged({"faults": {name: at_once[name] for name in names}}))


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_its_checkpoint_to_the_bit(gpu, tmp_path):
    config = STEP.with_("run.device=cuda", "run.num_steps=3", "run.checkpoint_minutes=0", "faults.stale_batch=on")
    whole = Session(config, tmp_path / "whole", child=False).run()
    cut = stopping(Session(config, tmp_path / "cut", child=False), 1)
    assert cut.run().status == "stopped" and len(cut.records) == 1
    rest = Session.resume(tmp_path / "cut", child=False).run()
    one, other = ([e for e in run.events if isinstance(e, Stepped)] for run in (whole, rest))
    assert [*map(words, one)] == [*map(words, other)] and [*map(numbers, one)] == [*map(numbers, other)]
    assert len(one) == 3 and rest.status == "done"


def loop(device):
    """The reports of guards in a plain loop on a device, with NaN gradients in one step and a jump in the next."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(8, 4, generator=generator).to(device))
    model = torch.nn.Module()
    model.weight = weight
    optimizer, scaler = torch.optim.AdamW([weight], lr=0.1), torch.amp.GradScaler(device, enabled=True)
    guards = gl.Guards(
        "warm_up", "skip_nonfinite", "clip_gradients", "check_weights.max_move=1", "rollback", scaler=scaler
    )
    reports = []
    for index in range(4):
        inputs = torch.randn(16, 4, generator=generator).to(device)
        log_ratio = guards.at("log_ratio", (inputs @ weight.t()).mean(dim=1))
        scaler.scale(log_ratio.square().mean()).backward()
        if index == 1:
            known(weight.grad, "grad").fill_(torch.nan)
        optimizer.param_groups[0]["lr"] = 10.0 if index == 2 else 0.1
        reports.append(guards.step(model, optimizer))
    return [(each.verdict, [a.name for a in each.actions]) for each in reports], weight.detach().cpu()


def test_guards_in_a_loop_on_a_gpu_do_what_they_do_on_a_cpu(gpu):
    (mine, weight), (theirs, expected) = loop("cuda"), loop("cpu")
    assert mine == theirs and [verdict for verdict, _ in mine][1:3] == [Verdict.SKIP_STEP, Verdict.ROLL_BACK]
    torch.testing.assert_close(weight, expected)
    assert gpu.launches["_foreach_copy_"] <= 6, "AdamW counts on the CPU; its count is copied apart from the rest"


def test_the_snapshot_of_a_large_model_is_in_pinned_memory_and_goes_back_from_there(gpu, monkeypatch):
    monkeypatch.setattr(snapshots, "SMALL", 1000)
    guards = {"check_weights": {"max_move": 1.0}}
    config = STEP.with_guards(guards).with_("run.snapshot_every=1", "run.num_steps=3", "faults.nan_gradient.at_step=1")
    found = same_on_both(gpu, config)
    assert [step.verdict for step in found] == [Verdict.KEEP, Verdict.ROLL_BACK, Verdict.KEEP]
    assert sum(gpu.pinned.values()) // sum(p.numel() for p in shallow()[0].parameters()) == 3, "weights and two moments"
    assert gpu.waits.total() <= 10 + NOTES + gpu.launches["multinomial"], gpu.waits.most_common()


def test_deterministic_runs_on_cuda_ask_for_the_workspace_of_cublas(gpu, monkeypatch):
    config = STEP.with_("run.device=cuda", "run.num_steps=1", "run.deterministic=true")
    monkeypatch.delenv(torch_settings.CUBLAS, raising=False)
    with pytest.raises(ConfigError, match=r"run.deterministic .*CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        steps(config)
    monkeypatch.setenv(torch_settings.CUBLAS, ":16:8")
    assert len(steps(config)) == 1


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_nan_in_the_sampler_loses_the_context_and_the_crash_is_told(gpu, tmp_path, fault):
    nan = fault(Stage.LOGITS, lambda value, step: Outcome(value * torch.nan) if step.index else None)
    session = Session(STEP.with_("run.device=cuda", nan), tmp_path / "run", child=False, save_model=True).run()
    assert session.status == "crashed" and session.crash and session.crash.kind == "cuda-assert"
    assert [event.failed for event in session.events if isinstance(event, Stepped)] == [False, True]
    assert session.ended and session.ended.message == "AcceleratorError: CUDA error: device-side assert triggered"
    assert Session.open(session.directory).ended == session.ended and not session.saved_model


@pytest.mark.parametrize(("stage", "precision"), [("gradients", "fp16"), ("weights", "fp32")])
def test_an_assertion_that_fails_late_in_a_step_leaves_its_event_and_its_error(gpu, fault, stage, precision):
    """fp16 has unscaled its gradients then; that of the weights is heard when the notes of the step are read."""

    def lose(value, step):
        gpu.lost = gpu.lost or step.index == 1

    events, heard = [], None
    try:
        for event in train(STEP.with_("run.device=cuda", f"model.precision={precision}", fault(Stage(stage), lose))):
            events.append(event)
    except RuntimeError as error:
        heard = error
    assert isinstance(heard, torch.AcceleratorError) and not isinstance(heard.__context__, RuntimeError)
    assert [event.failed for event in events if isinstance(event, Stepped)] == [False, True]


# --- the simulation itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda on_gpu: on_gpu + torch.ones(2),
        lambda on_gpu: on_gpu.multinomial(1, generator=torch.Generator().manual_seed(0)),
        lambda on_gpu: torch._foreach_add([on_gpu], [torch.ones(2)]),  # type: ignore[attr-defined]
    ],
)
def test_the_simulation_refuses_operators_that_mix_devices(gpu, wrong):
    with pytest.raises(RuntimeError, match="found cuda:0 and cpu"):
        wrong(torch.ones(2, device="cuda"))


@pytest.mark.parametrize(
    ("waits", "act"),
    [
        (1, lambda on_gpu: on_gpu.sum().item()),
        (1, lambda on_gpu: on_gpu[on_gpu > 0]),
        (1, lambda on_gpu: torch.ones(2).to("cuda")),
        (0, lambda on_gpu: torch.ones(2).to("cuda", non_blocking=True)),
    ],
)
def test_the_simulation_counts_where_the_host_waits(gpu, waits, act):
    on_gpu = torch.ones(2, device="cuda")
    gpu.waits.clear()
    act(on_gpu)
    assert gpu.waits.total() == waits, gpu.waits
