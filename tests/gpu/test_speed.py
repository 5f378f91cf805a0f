"""What training costs at the size of GPT-2 124M and SmolLM2-135M: seconds, memory, guards, decoding, TRL beside it.

The weights are random, since nothing is downloaded; speed and memory do not depend on them.
"""

from importlib.util import find_spec

import pytest
import torch

from benchmarks import shapes
from benchmarks.guards import stable
from benchmarks.rewards import alternating
from benchmarks.timing import Plan, Run, compare, milliseconds, take_turns
from grpo_lab.config.catalog import preset

pytestmark = pytest.mark.slow
ON_THE_CPU = {"124M": "0.8M", "135M": "0.2M"}
PLANS = {"cuda": Plan(blocks=5, steps=2, warm_up=3), "cpu": Plan(blocks=3, steps=1, warm_up=1)}
MANY = {"cuda": Plan(blocks=25, steps=2, warm_up=3), "cpu": PLANS["cpu"]}
"""For a difference of a few percent: the processor's share of a short step varies by more than that."""
GUARDS_BUDGET = 1.10
FULL = 0.8
"""The share of the card's memory from which on a batch fills it."""


@pytest.fixture
def plan(device):
    return PLANS[device]


@pytest.fixture
def shape(device):
    """A function from the name of a shape to that of the shape that stands for it on this device."""
    return lambda name: name if device == "cuda" else ON_THE_CPU[name]


@pytest.fixture
def a_run(device, shape):
    """A function that makes a run of a config with a model of a shape."""

    def make(config, name="124M", *settings):
        config = config.with_(f"run.device={device}", "run.num_steps=1000", *settings)
        return Run(config, shapes.build(shape(name), device), [alternating])

    return make


def memory(device) -> dict[str, int]:
    """The peaks of this test in MiB."""
    if device == "cpu":
        return {}
    peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    return {f"peak MiB {name}": round(value / 2**20) for name, value in peaks.items()}


def size(config) -> list[int]:
    """Prompts, completions of each and their tokens."""
    return [config.data.num_prompts, config.data.num_generations, config.sampling.max_completion_length]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["original", "stable"])
@pytest.mark.parametrize("model", ["124M", "135M"])
def test_seconds_and_memory_of_a_round(device, a_run, plan, figures, model, name, precision):
    config = preset(name)
    run = a_run(config, model, f"model.precision={precision}")
    blocks = take_turns({name: run.advance}, plan)[name]
    assert sum(step.updates for step in run.steps) == plan.total * config.loss.num_iterations
    figures["rounds"] = {
        f"{model}, {name}, {precision}": {
            "ms a round": milliseconds(blocks)["wall"],
            "prompts x completions x tokens": size(config),
            "mean length": round(run.mean("completions/mean_length"), 2),
            **memory(device),
        }
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["original", "stable"])
def test_guards_cost_little(device, a_run, figures, name, precision):
    config = preset(name).with_(f"model.precision={precision}")
    runs = {key: a_run(config.with_guards(guards)) for key, guards in {"none": {}, "stable": stable()}.items()}
    blocks = take_turns({key: run.advance for key, run in runs.items()}, MANY[device])
    ratio = compare(blocks["stable"], blocks["none"])
    figures["guards stable / none, 124M"] = {f"{name}, {precision}": ratio["wall"]}
    assert runs["stable"].acted == set()
    if device == "cuda":
        assert ratio["wall"]["median"] <= GUARDS_BUDGET


def prompts(folder, lengths):
    """A file of prompts with these lengths in bytes."""
    path = folder / f"{len(set(lengths))}.jsonl"
    path.write_text("".join(f'{{"prompt": "{"7" * length}"}}\n' for length in lengths), encoding="utf-8")
    return path


def test_ragged_prompts_against_equal_ones(device, a_run, plan, figures, tmp_path):
    most = 256 if device == "cuda" else 32
    files = {
        "equal": prompts(tmp_path, [most] * 8),
        "ragged": prompts(tmp_path, [most * (i + 1) // 8 for i in range(8)]),
    }
    settings = ("data.num_prompts=8", "sampling.max_completion_length=16")
    runs = {name: a_run(preset("stable"), "124M", *settings, f"data.tasks={path}") for name, path in files.items()}
    blocks = take_turns({name: run.advance for name, run in runs.items()}, plan)
    figures["ragged / equal prompts"] = {**compare(blocks["ragged"], blocks["equal"])["wall"], **memory(device)}
    assert all(not note.broken for step in runs["ragged"].steps for note in step.links)


@pytest.mark.skipif(not find_spec("trl"), reason="trl is not installed here")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["124M", "135M"])
def test_trl_beside_it(device, shape, plan, figures, tmp_path, model, precision):
    from benchmarks import against_trl

    work = ("data.num_prompts=4", "sampling.max_completion_length=16", f"run.device={device}")
    folder = shapes.save(shape(model), tmp_path)
    config = shapes.work(folder, *work, f"model.precision={precision}", f"run.num_steps={plan.total}")
    found = against_trl.race(config, {"ours": Run(config)}, plan)
    figures["TRL / ours"] = {f"{model}, {precision}": {"ratio": found["TRL / ours"]["wall"], "ms": found["step ms"]}}
    assert found["mean length"]["trl"] == pytest.approx(found["mean length"]["ours"], rel=0.1)


def test_a_batch_that_fills_the_card(device, a_run, figures, empty):
    """Twice as many prompts until a step takes this share of the memory, or does not fit."""
    found = figures["batches, 124M, bf16"] = {}
    work = ("data.num_generations=8", "sampling.max_completion_length=64", "model.precision=bf16")
    count, most = (32, 4096) if device == "cuda" else (1, 2)
    while count <= most:
        row = found[f"{count} x 8 x 64"] = {}
        try:
            run = a_run(
                preset("stable"), "124M", *work, f"data.num_prompts={count}", f"data.micro_batch_prompts={count}"
            )
            run.advance(1)
            seconds = run.advance(1).wall
        except torch.OutOfMemoryError as error:
            row["out of memory"] = str(error).partition(". ")[0]
            break
        row |= {"seconds": round(seconds, 3), "completions a second": round(8 * count / seconds, 1), **memory(device)}
        if device == "cuda" and torch.cuda.max_memory_reserved() > FULL * torch.cuda.mem_get_info()[1]:
            break
        del run
        empty()
        count *= 2
    assert any("seconds" in row for row in found.values())
