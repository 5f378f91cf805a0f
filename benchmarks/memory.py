"""Peak memory: each contender makes a few steps in a process of its own and says how much it has used at most.

The benchmark: 32 completions of 256 tokens over a vocabulary of 49,152, with a model as narrow as `tiny`, so that
logits would be most of the memory if they were kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import shapes
from benchmarks.timing import QUICK, Plan, Run, settle, use_threads
from grpo_lab.config.schema import Config
from grpo_lab.models import loading
from grpo_lab.training import torch_settings
from grpo_lab.training.large_vocabulary import CHUNK

STEPS = 3
"""All memory is in use in the third step: the first update allocates the moments, and the next snapshot has them."""
SHAPE, WORK = "0.8M, V = 49152", ("data.num_prompts=4", "data.num_generations=8", "sampling.max_completion_length=256")
SMALLEST = ("run.num_steps=1", "data.num_prompts=1", "data.num_generations=2", "sampling.max_completion_length=2")
FEW = ("data.num_prompts=2", "data.num_generations=2", "sampling.max_completion_length=16")
MIB = 2**20


def measure(threads: int, plan: Plan) -> dict[str, Any]:
    """Peak memory of ours and of TRL, above the process that has only imported, and what it consists of."""
    with tempfile.TemporaryDirectory() as folder:
        config = shapes.work(shapes.save(SHAPE, Path(folder)), *(FEW if plan == QUICK else WORK))
        ours, trl = (peak(name, config, threads) for name in ("ours", "TRL"))
    parts = parts_of(config, ours["parameters"], shapes.SHAPES[SHAPE]["vocab_size"])
    above, kept = ours["above imports"], parts["every copy of weights and moments"]
    return {
        "memory: (peak - chunk) / weights and moments": round((above - parts["one chunk of logits"]) / kept, 3),
        "memory: peak ours / TRL": round(above / trl["above imports"], 3),
        "memory: peak ours / TRL, with imports": round(ours["peak"] / trl["peak"], 3),
        "memory: (peak - chunk) / weights and moments of the policy": round(
            (above - parts["one chunk of logits"]) / (parts["policy"] + parts["moments"]), 3
        ),
        "MiB, ours": ours,
        "MiB, TRL": trl,
        "MiB, computed": parts,
    }


def parts_of(config: Config, parameters: int, vocabulary: int) -> dict[str, float]:
    """MiB of everything that lasts from step to step in fp32, of one chunk of logits, and of all logits of a batch."""
    one = 4 * parameters / MIB
    rows = config.data.num_prompts * config.data.num_generations
    logits = 4 * rows * config.sampling.max_completion_length * vocabulary / MIB
    found = {"policy": one, "moments": 2 * one, "reference": one if config.loss.beta else 0.0, "snapshot": 3 * one}
    found["every copy of weights and moments"] = sum(found.values())
    found |= {"gradients": one, "one chunk of logits": min(logits, 4 * CHUNK / MIB)}
    return {name: round(value, 1) for name, value in {**found, "logits of the batch": logits}.items()}


def peak(contender: str, config: Config, threads: int, steps: int = STEPS) -> dict[str, int]:
    """Peak MiB of a fresh process after its imports, after loading the models, and after a few steps."""
    command = [sys.executable, "-m", "benchmarks.memory", contender, str(threads), str(steps)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, input=json.dumps(config.to_dict()))
    found = json.loads(said.stdout.splitlines()[-1])
    return {**found, "above imports": found["peak"] - found["imports"]}


def peak_so_far() -> int:
    """The largest resident size of this process in MiB, as the metric `run.memory` has it."""
    return round(torch_settings.memory(torch.device("cpu"))["run.memory"])


def make_steps(contender: str, config: Config, steps: int) -> dict[str, int]:
    """Load the model and make a few steps in this process, as `peak` reports them.

    `imports` is the size after one small step of `tiny`: the step has imported all that steps need.
    """
    train = {"TRL": _trl, "ours": _ours}[contender]
    train(settle((*SMALLEST, f"lora.r={config.lora.r}")))  # with adapters, peft is imported
    imports = peak_so_far()
    found = train(config.with_(f"run.num_steps={steps}"))
    return {"imports": imports, **found, "peak": peak_so_far()}


def _ours(config: Config) -> dict[str, int]:
    run = Run(config)
    found = {"parameters": run.load(), "loaded": peak_so_far()}
    run.advance(config.run.num_steps)
    return found


def _trl(config: Config) -> dict[str, int]:
    from benchmarks import against_trl

    with tempfile.TemporaryDirectory() as directory, loading.quiet():
        trainer = against_trl.trl_trainer(config, directory)
        found = {"parameters": sum(p.numel() for p in trainer.model.parameters()), "loaded": peak_so_far()}
        trainer.train()
    return found


if __name__ == "__main__":
    use_threads(int(sys.argv[2]))
    print(json.dumps(make_steps(sys.argv[1], Config.from_dict(json.load(sys.stdin)), int(sys.argv[3]))))
