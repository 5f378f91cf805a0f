"""`python -m benchmarks`: what it imports, the work that it measures, and what it writes."""

import json
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import against_trl, cost, defaults, guards, memory, runs, shapes
from benchmarks.timing import QUICK, Plan, Run, settle
from grpo_lab.core.hooks import Verdict
from grpo_lab.events import Ended, Evaluated, Stepped
from grpo_lab.models.registry import MODELS
from grpo_lab.training.large_vocabulary import CHUNK

ROOT = Path(__file__).parents[1]
FEW = ("data.num_prompts=2", "data.num_generations=2", "run.num_steps=2")


@pytest.mark.slow
def test_a_benchmark_that_does_not_run_is_not_imported():
    code = "import sys, benchmarks.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("benchmarks.")}
    assert loaded == {"benchmarks.__main__", "benchmarks.timing"}


def test_every_benchmark_has_a_module_and_a_plan():
    assert list(command.PLANS) == list(command.Name)
    assert [name for name in command.Name if not (ROOT / "benchmarks" / f"{name}.py").is_file()] == []


def test_the_extra_brings_what_a_panel_and_a_class_of_notebooks_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"grpo-lab[lab]", "jupytext", "trl"} <= set(project["optional-dependencies"]["bench"])


def test_a_limit_stands_beside_the_number_of_threads_that_it_is_for():
    wall = {"median": 2.6, "low": 2.5, "high": 2.7, "min": 2.4, "max": 2.8, "fastest": 2.6}
    ratio = {"wall": wall, "cpu": wall}
    found = {"1 threads": {"TRL / ours": ratio}, "2 threads": {"TRL / ours": ratio, "floor / step": 0.5}}
    columns = [list(column.cells) for column in command.table({"against_trl": found}).columns]
    assert columns[-1] == [">= 2.5", "", ""]
    assert columns[2] == ["2.600", "2.600", "0.500"]


def test_every_point_is_written_and_a_partial_run_keeps_other_results(tmp_path, monkeypatch):
    path, seen = tmp_path / "cpu-partial.json", []

    def measure(threads, plan):
        for count in range(2):
            yield {"G": list(range(count + 1))}
            seen.append(json.loads(path.read_text())["results"]["cost"]["1 threads"]["G"])

    command.write(path, {"guards": {"1 threads": {"kept": 1}}})
    monkeypatch.setattr(cost, "measure", measure)
    command.main(quick=False, only=[command.Name.cost], out=tmp_path, threads=None)
    assert seen == [[0], [0, 1]]
    assert list(json.loads(path.read_text())["results"]) == ["guards", "cost"]


def test_notes_of_tokens_and_histograms_are_measured_against_a_run_that_has_neither():
    config = settle().with_(*FEW)
    whole, bare = Run(config), guards.Bare(config)
    for run in (whole, bare):
        run.advance(2)
    notes = [[note for step in run.steps for note in step.completions] for run in (whole, bare)]
    counted = [[note for step in run.steps for note in step.links if note.histogram] for run in (whole, bare)]
    assert notes[0] and counted[0] and notes[1] == counted[1] == []
    found = guards.inside(1, Plan(blocks=2, steps=1, warm_up=1))
    assert found["same numbers"], "the notes change no step"
    assert {"low", "median", "high"} <= found["token notes and histograms on / off"]["cpu"].keys()


@pytest.mark.parametrize(("shape", "count"), [("124M", 124_439_808), ("135M", MODELS["smollm2-135m"].parameters)])
def test_a_shape_has_the_parameters_of_its_model(shape, count):
    assert shapes.parameters(shape) == count


def test_completions_of_a_random_model_have_the_full_length(tmp_path):
    folder = shapes.save("0.8M", tmp_path)
    run = Run(shapes.work(folder, *FEW, "sampling.max_completion_length=40"))
    run.advance(2)
    assert [step.metrics["completions/mean_length"] for step in run.steps] == [40, 40]
    assert run.steps[0].metrics["reward"] == 0.5


def test_our_trainer_runs_on_its_own_number_of_threads_and_trl_keeps_its(monkeypatch):
    def race(config, ours, plan):
        ours["ours"].advance(1)
        return {"step ms": 1}

    monkeypatch.setattr(against_trl, "race", race)
    monkeypatch.setattr(defaults, "settle", lambda: settle().with_(*FEW, "run.threads=1"))
    before = torch.get_num_threads()
    try:
        assert defaults.measure(2, QUICK) == {"defaults: step ms": 1, "threads": {"trl": 2, "ours": [1]}}
    finally:
        torch.set_num_threads(before)


def test_the_computed_memory_is_what_a_hand_works_out():
    config = settle().with_("data.num_prompts=4", "sampling.max_completion_length=256")
    parts = memory.parts_of(config, 2**18, 2**12)
    assert [parts[name] for name in ("policy", "moments", "gradients", "reference", "snapshot")] == [1, 2, 1, 1, 3]
    assert parts["every copy of weights and moments"] == 7
    assert (parts["logits of the batch"], parts["one chunk of logits"]) == (128, 4 * CHUNK / 2**20)


@pytest.mark.slow
def test_a_child_does_not_report_the_memory_of_its_parent():
    ballast = bytearray(2**30)
    code = "from benchmarks.memory import peak_so_far; print(peak_so_far())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 50 < int(done.stdout) < 900 < len(ballast) / 2**20


def test_a_quick_plan_has_few_points_and_the_whole_plan_the_range_of_the_figures():
    quick, whole = cost.points(quick=True), cost.points(quick=False)
    assert [place for place, _, _ in whole["G"]] == [4, 8, 16, 32, 64]
    assert [place for place, _, _ in whole["completion length"]] == [8, 16, 32, 64, 128, 256, 512]
    assert [shape for _, shape, _ in whole["parameters"]] == ["0.8M", "10M", "124M", "135M"]
    assert max(map(len, quick.values())) == 2
    assert Plan(blocks=12, steps=3).of_large_steps() == Plan(blocks=4, steps=1, warm_up=1)
    assert QUICK not in command.PLANS.values()


@pytest.mark.slow
def test_gpu_figures_are_laid_over_those_of_the_calls_before(tmp_path):
    path = tmp_path / "gpu-dry-run.json"
    earlier = {"results": {"cuDNN attention": {"kept": 1}}, "tests": {"another": {"outcome": "passed"}}}
    path.write_text(json.dumps(earlier))
    name = "test_cudnn_attention_is_recorded_on_and_off"
    made = {**os.environ, "GRPO_LAB_GPU_DEVICE": "cpu", "OUT": str(tmp_path)}
    made = {key: value for key, value in made.items() if not key.startswith("PYTEST_")}
    call = [sys.executable, "-m", "pytest", "-q", f"tests/gpu/test_numbers.py::{name}"]
    subprocess.run(call, cwd=ROOT, env=made, check=True, capture_output=True)
    found = json.loads(path.read_text())
    assert set(found["results"]["cuDNN attention"]) == {"kept", "off"}, "on a CPU one variant of a test is enough"
    assert {test: row["outcome"] for test, row in found["tests"].items()} == {
        "another": "passed",
        f"test_numbers.py::{name}[off]": "passed",
    }


def test_a_heal_is_counted_where_it_gains_and_ends_above_guards_alone():
    def run(*rewards, norm=1.0):
        step = Stepped(0, 1, Verdict.KEEP, {"grad_norm": norm}, (), ())
        before, *after = [Evaluated(0, reward, 250) for reward in rewards]
        return [before, step, *after]

    unhealed = [run(0.3, 0.2), run(0.3, 0.5), run(0.3)]
    healed = [run(0.3, 0.6, norm=12.0), run(0.3, 0.48), run(0.3)]
    row = runs.healing("train-001", unhealed, healed)
    assert row[3:] == ["0.2, 0.5, -", "0.6, 0.48, -", "2 of 3", "1 of 3", "12", "1"]


def test_a_metric_of_a_run_that_crashed_is_missing():
    steps = [Stepped(index, 1, Verdict.KEEP, {"kl": 0.1 * index}, (), ()) for index in range(4)]
    assert runs.late([*steps, Ended("done")], "kl", 2) == pytest.approx(0.25)
    assert math.isnan(runs.late([*steps, Ended("crashed")], "kl", 2))
