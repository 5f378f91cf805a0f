"""The attention that `doctor` names and a run uses, and the memory of a measured step."""

import pytest
from torch.profiler import ProfilerActivity, profile

from benchmarks import shapes
from benchmarks.timing import Run
from grpo_lab.analysis import memory
from grpo_lab.config.schema import Config
from grpo_lab.runs import environment

pytestmark = pytest.mark.slow
OPERATORS = {
    "flash": "aten::_scaled_dot_product_flash_attention_for_cpu",
    "memory-efficient": "aten::_scaled_dot_product_efficient_attention",
    "math": "aten::_scaled_dot_product_attention_math",
}
"""torch's operator of each kernel that `doctor` may name."""


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_pure"])
def test_a_run_uses_the_attention_that_doctor_names_first(device, figures, precision):
    work = ("data.num_prompts=2", "data.num_generations=2", "run.num_steps=1", f"run.device={device}")
    run = Run(Config().with_(*work, f"model.precision={precision}", "loss.beta=0.02"))
    with profile(activities=[ProfilerActivity.CPU]) as seen:  # the operators are called on the CPU
        run.advance(1)
    names = {event.key for event in seen.key_averages()}
    named = environment.describe(device=device)["attention"]
    figures["attention"] = {precision: {"doctor": named, "operators": sorted(names & {*OPERATORS.values()})}}
    first = named.removeprefix("sdpa: ").partition(";")[0].split(", ")[0]
    assert names & {*OPERATORS.values()} == {OPERATORS[first]}


def test_the_parts_are_in_the_memory_of_a_measured_step(device, figures, tmp_path):
    shape, prompts, length = ("124M", 8, 64) if device == "cuda" else ("0.8M", 2, 16)
    work = (f"data.num_prompts={prompts}", "data.num_generations=8", f"sampling.max_completion_length={length}")
    config = shapes.work(shapes.save(shape, tmp_path), *work, f"run.device={device}")
    found = memory.parts(config)
    before, peak = memory.measure(config, found)
    figures["memory"] = {shape: {"parts": found, "before": before, "peak": peak}}
    assert peak - before >= sum(found.values())
