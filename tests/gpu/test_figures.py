"""What training costs at the size of GPT-2 124M: seconds a round, memory, and the share of the guards.

The weights are random, since nothing is downloaded; speed and memory do not depend on them.
"""

import statistics
import time
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.guards import stable
from benchmarks.timing import Plan, Run, compare, take_turns
from grpo_lab.config.catalog import preset
from grpo_lab.events import Stepped
from grpo_lab.models import loading
from grpo_lab.training.trainer import train

SPECIAL = ("bos", "eos", "pad")
ROUNDS, WARM_UP = 12, 3
PLAN = Plan(blocks=6, steps=3, warm_up=3)
GUARDS_BUDGET = 1.10


def alternating(prompts, completions, **columns):
    """Rewards with a spread in every group, so that there is a gradient."""
    return [float(row % 2) for row in range(len(completions))]


@pytest.fixture
def policy(device):
    """A function that builds the model; the tokenizer of tiny gives it byte ids."""
    _, tokenizer = loading.load("tiny")
    settings: dict[str, Any] = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in SPECIAL}
    settings |= {} if device == "cuda" else {"n_layer": 2, "n_embd": 48, "vocab_size": 258}

    def build():
        torch.manual_seed(0)
        model: Any = GPT2LMHeadModel(GPT2Config(**settings))
        return model.to(device).eval(), tokenizer

    return build


@pytest.fixture(autouse=True)
def emptied(device):
    """No test pays for the memory of the one before."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def synchronised(device) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["original", "stable"])
def test_seconds_and_memory_of_a_round(device, policy, figures, name, precision):
    config = preset(name).with_(f"run.num_steps={ROUNDS}", f"run.device={device}", f"model.precision={precision}")
    ends, steps = [], []
    for event in train(config, model=policy(), rewards=[alternating]):
        if isinstance(event, Stepped):
            ends.append(synchronised(device))
            steps.append(event)
    assert sum(step.updates for step in steps) == ROUNDS * config.loss.num_iterations
    seconds = [after - before for before, after in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    figures.setdefault("gpt2-124m", {})[f"{name}, {precision}"] = {
        "seconds a round": round(statistics.median(seconds), 5),
        "peak memory MiB": round(peak / 2**20),
        "prompts x completions x tokens": [
            config.data.num_prompts,
            config.data.num_generations,
            config.sampling.max_completion_length,
        ],
        "mean length": round(statistics.fmean(step.metrics["completions/mean_length"] for step in steps), 2),
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["original", "stable"])
def test_guards_cost_little(device, policy, figures, name, precision):
    overrides = (f"run.num_steps={PLAN.total}", f"run.device={device}", f"model.precision={precision}")
    config = preset(name).with_(*overrides)
    arms = {"none": {}, "stable": stable()}
    runs = {key: Run(config.with_guards(guards), policy(), [alternating]) for key, guards in arms.items()}
    blocks = take_turns({key: run.advance for key, run in runs.items()}, PLAN)
    ratio = compare(blocks["stable"], blocks["none"])
    figures.setdefault("guards stable / none, gpt2-124m", {})[f"{name}, {precision}"] = ratio["wall"]
    assert runs["stable"].acted == set()
    if device == "cuda":
        assert ratio["wall"]["median"] <= GUARDS_BUDGET
