"""`python -m benchmarks.checkpoints`: the cost of checkpoints, and runs of cuda-001 that go on by themselves.

Cost: runs of a healthy model with and without checkpoints in turns, and the ratio of their times. Restarts: cuda-001
with the guards of the report, in a child process; each crash is followed by a restart with changes.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from grpo_lab.analysis import markdown
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.events import Checkpointed, Evaluated, Resumed
from grpo_lab.runs import environment
from grpo_lab.runs.session import Session
from grpo_lab.ui import console

MINUTES = 0.25
"""Between two checkpoints of the runs whose cost is measured: forty times as many as by default."""
RECOVERIES = {
    "skip": "guards.skip_nonfinite=on,optimizer.learning_rate=*0.5",
    "heal": "guards.representable_epsilon=on,loss.log_ratio=old,optimizer.learning_rate=*0.1",
}
"""Changes of a restart: a guard that refuses NaN, and those that remove the causes."""
HERE = ("run.threads=1", "run.device=cpu")


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of cuda-001 with each recovery.")] = 10,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs whose times are compared.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each run of a pair.")] = 400,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")] = Path("benchmarks/results"),
) -> None:
    """Measure both and write checkpoints.{json,md}."""
    with console.progress() as bars, TemporaryDirectory() as folder:
        task = bars.add_task("runs", total=2 * pairs + len(RECOVERIES) * seeds, note="")
        costs, runs = [], []
        for number in range(pairs):
            costs.append(cost(Path(folder) / f"cost-{number}", number, steps))
            bars.update(task, advance=2, note=f"pair {number}")
        for name in RECOVERIES:
            for seed in range(seeds):
                runs.append(restarted(Path(folder) / f"{name}-{seed}", name, seed))
                bars.update(task, advance=1, note=f"{name}, seed {seed}: {runs[-1]['status']}")
    tree = {"environment": environment.describe(threads=1), "cost": costs, "runs": runs}
    out.mkdir(parents=True, exist_ok=True)
    (out / "checkpoints.json").write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    (out / "checkpoints.md").write_text(text := page(costs, runs), encoding="utf-8")
    print(text)


def cost(folder: Path, seed: int, steps: int) -> dict[str, Any]:
    """Seconds of a run with checkpoints over those of the same run without; which comes first alternates."""
    config = preset("stable").with_(*HERE, f"run.seed={seed}", f"run.num_steps={steps}")
    taken, written = {}, 0
    for minutes in ("none", f"{MINUTES}") if seed % 2 else (f"{MINUTES}", "none"):
        begun = time.perf_counter()
        session = Session(config.with_(f"run.checkpoint_minutes={minutes}"), folder / minutes, child=False).run(
            check=True
        )
        taken[minutes] = time.perf_counter() - begun
        written += sum(isinstance(event, Checkpointed) for event in session.events)
    return {"ratio": round(taken[f"{MINUTES}"] / taken["none"], 4), "checkpoints": written}


def restarted(folder: Path, recovery: str, seed: int) -> dict[str, Any]:
    """A run of cuda-001 that goes on by itself: its end, its restarts and its held-out rewards."""
    more = ("run.max_restarts=3", f"run.recover={RECOVERIES[recovery]}", "run.checkpoint_minutes=0", "run.num_eval=250")
    config = scenario("cuda-001").config(guards="original").with_(*HERE, *more, f"run.seed={seed}")
    session = Session(config, folder, child=True).run()
    rewards = [event.reward for event in session.events if isinstance(event, Evaluated)]
    broken = session.records["weights/nonfinite"].dropna()
    return {
        "recovery": recovery,
        "seed": seed,
        "status": session.status,
        "restarts": sum(isinstance(event, Resumed) for event in session.events),
        "finite": bool(len(broken)) and float(broken.iloc[-1]) == 0,
        "before": rewards[0] if rewards else math.nan,
        "after": rewards[-1] if len(rewards) > 1 else None,
    }


def page(costs: list[dict[str, Any]], runs: list[dict[str, Any]]) -> str:
    """Both results in Markdown."""
    ratios = [each["ratio"] for each in costs]
    rows = []
    for name, changes in RECOVERIES.items():
        mine = [run for run in runs if run["recovery"] == name]
        good = [run for run in mine if run["status"] == "done" and run["finite"]]
        after = [run["after"] for run in good if run["after"] is not None]
        rewards = (
            f"{statistics.fmean(r['before'] for r in mine):.2f} to {statistics.fmean(after):.2f}" if after else "-"
        )
        crashed = sum(run["restarts"] > 0 for run in mine)
        rows.append([f"`{changes}`", f"{crashed} of {len(mine)}", f"{len(good)} of {len(mine)}", rewards])
    header = ["recover", "crashed at first", "done with finite weights", "held-out reward"]
    return f"""# Checkpoints

Made by `python -m benchmarks.checkpoints` on a CPU, torch {environment.describe(threads=1)["packages"]["torch"]}.

## Cost

The preset `stable` with a checkpoint every {MINUTES} minutes (by default it is 10) took {statistics.median(ratios):.3f}
times as long as without: the median of {len(ratios)} pairs, from {min(ratios):.3f} to {max(ratios):.3f}, with
{sum(each["checkpoints"] for each in costs)} checkpoints in all.

## Restarts

`cuda-001` with the guards of the report (`original`) in a child process, `run.max_restarts=3`, a checkpoint at every
step. To refuse NaN is to survive: only where the causes go, too, does the model learn.

{markdown.table([header, *rows])}
"""


if __name__ == "__main__":
    typer.run(main)
