"""The same benchmarks on a pretrained model: speed against TRL, the cost of the guards, and peak memory.

It has to be fetched first: `grpo-lab models fetch smollm2-135m`. Where it is not there, the benchmark says so.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import against_trl, guards
from benchmarks.timing import PRETRAINED, Plan, Run, compare, milliseconds, settle, take_turns, use_threads
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.models import loading
from grpo_lab.models.registry import MODELS

STEPS_FOR_MEMORY = 3
"""All memory is in use after the second step: the first update allocates the moments."""
CONTENDERS = ("TRL", "ours", "ours, guarded")


def measure(threads: int, plan: Plan) -> dict[str, Any]:
    """Ratios as on the tiny model, and the peak memory of each contender in a process of its own."""
    config = settle(PRETRAINED)
    known = MODELS[config.model.name]
    if not known.present:
        return {"skipped": f"{known.name} is not here: {known.origin}"}
    use_threads(threads)
    config = config.with_(f"run.num_steps={plan.total}")
    memory = {name: peak_memory(name, threads) for name in CONTENDERS}
    race = against_trl.race(config, {"ours": Run(config)}, plan)
    guarded = _guards(config, plan)
    return {
        **{f"135M: {name}": value for name, value in {**race, **guarded}.items()},
        "135M: peak memory MiB": memory,
        "135M: peak memory TRL / ours": round(memory["TRL"] / memory["ours"], 3),
        "135M: peak memory TRL / ours, guarded": round(memory["TRL"] / memory["ours, guarded"], 3),
    }


def _guards(config: Config, plan: Plan) -> dict[str, Any]:
    runs = guards.arms(config, {"none": {}, "stable": guards.stable()})
    blocks = take_turns({name: run.advance for name, run in runs.items()}, plan)
    return {
        "guards stable / none": compare(blocks["stable"], blocks["none"]),
        "guards, step ms": {name: milliseconds(row) for name, row in blocks.items()},
        "guards acted": {name: sorted(run.acted) for name, run in runs.items()},
        "same numbers": guards.same(runs["none"], runs["stable"]),
    }


def peak_memory(contender: str, threads: int) -> int:
    """Largest resident size in MiB of a fresh process that makes a few steps."""
    command = [sys.executable, "-m", "benchmarks.pretrained", contender, str(threads)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(said.split()[-1])


def _make_steps(contender: str, threads: int) -> None:
    use_threads(threads)
    config = settle(PRETRAINED).with_(f"run.num_steps={STEPS_FOR_MEMORY}")
    if contender == "TRL":
        with tempfile.TemporaryDirectory() as directory, loading.quiet():
            against_trl.trl_trainer(config, directory).train()
    else:
        switches = preset("stable").guards if contender == "ours, guarded" else {}
        Run(config.with_guards(switches)).advance(STEPS_FOR_MEMORY)


if __name__ == "__main__":
    _make_steps(sys.argv[1], int(sys.argv[2]))
    unit = 2**20 if sys.platform == "darwin" else 2**10
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit)
