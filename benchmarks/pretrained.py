"""The same benchmarks on a pretrained model: speed against TRL, the cost of the guards, and peak memory.

It has to be fetched first: `grpo-lab models fetch smollm2-135m`. Where it is not there, the benchmark says so.
"""

from __future__ import annotations

from typing import Any

from benchmarks import against_trl, guards
from benchmarks.memory import peak
from benchmarks.timing import PRETRAINED, Plan, Run, compare, milliseconds, settle, take_turns, use_threads
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.models.registry import MODELS


def measure(threads: int, plan: Plan) -> dict[str, Any]:
    """Ratios as on the tiny model, and the peak memory of each contender in a process of its own."""
    config = settle(PRETRAINED)
    known = MODELS[config.model.name]
    if not known.present:
        return {"skipped": f"{known.name} is not here: {known.origin}"}
    use_threads(threads)
    config = config.with_(f"run.num_steps={plan.total}")
    guarded = config.with_guards(preset("stable").guards)
    contenders = {"TRL": ("TRL", config), "ours": ("ours", config), "ours, guarded": ("ours", guarded)}
    memory = {name: peak(*contender, threads)["peak"] for name, contender in contenders.items()}
    race = against_trl.race(config, {"ours": Run(config)}, plan)
    return {
        **{f"135M: {name}": value for name, value in {**race, **_guards(config, plan)}.items()},
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
