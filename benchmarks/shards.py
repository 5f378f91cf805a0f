"""`python -m benchmarks.shards`: two processes with a part of every weight each (FSDP2), and two with all weights.

For the tiny model and one with the shape of SmolLM2-135M and random weights: the largest difference of a step's loss,
KL, reward and gradient norm; the most memory of the first process; the median time of a step. Snapshots are taken
before every step, so that weights, moments, snapshot and reference are all in memory.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks import memory, shapes
from grpo_lab.analysis import markdown
from grpo_lab.config.catalog import preset
from grpo_lab.runs import environment
from grpo_lab.runs.session import Session
from grpo_lab.ui import console

MODELS: dict[str, tuple[str, ...]] = {
    "tiny": ("run.num_steps=20",),
    "135M": ("run.num_steps=4", "data.num_prompts=4", "data.num_generations=4", "data.micro_batch_prompts=1"),
}
"""The settings of each model's runs."""
WAYS = {"whole": (), "parts": ("run.fsdp=true",)}
COMPARED = ("loss", "kl", "reward", "grad_norm")


def main(
    only: Annotated[list[str] | None, typer.Option(help="Models: tiny, 135M; by default both.")] = None,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")] = Path("benchmarks/results"),
) -> None:
    """Measure and write shards.{json,md}."""
    models = [name for name in MODELS if not only or name in only]
    found: dict[str, Any] = {}
    before = memory.peak_so_far()
    with console.progress() as bars, TemporaryDirectory() as folder:
        task = bars.add_task("runs", total=len(models) * len(WAYS), note="")
        for name in models:
            model = "tiny" if name == "tiny" else str(shapes.save(name, Path(folder)))
            runs = {}
            for way, settings in WAYS.items():
                runs[way] = run(Path(folder) / f"{name}-{way}", model, (*MODELS[name], *settings))
                bars.update(task, advance=1, note=f"{name}, {way}")
            found[name] = compared(before, **runs)
    tree = {"environment": environment.describe(threads=1), "models": found}
    out.mkdir(parents=True, exist_ok=True)
    (out / "shards.json").write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    (out / "shards.md").write_text(text := page(tree), encoding="utf-8")
    print(text)


def run(folder: Path, model: str, settings: tuple[str, ...]) -> Session:
    """A run of two processes with a thread each, in a child whose memory is its own."""
    fixed = ("run.processes=2", "run.threads=1", "run.device=cpu", "run.checkpoint_minutes=none")
    own = ("model.prompt_pass=plain", "run.snapshot_every=1", "run.num_eval=0", f"model.name={model}")
    return Session(preset("stable").with_(*fixed, *own, *settings), folder, child=True).run(check=True)


def compared(before: int, whole: Session, parts: Session) -> dict[str, float]:
    """The numbers of both runs side by side; memory in MiB, `before` a model is loaded too."""
    differences = []
    for name in COMPARED:
        mine, theirs = parts.records[name], whole.records[name]
        differences += [abs(a - b) / max(abs(b), 1e-8) for a, b in zip(mine, theirs, strict=True)]
    memories = {name: float(each.records["run.memory"].max()) for name, each in (("whole", whole), ("parts", parts))}
    times = [statistics.median(each.records["step_time"].iloc[1:]) for each in (parts, whole)]
    return {
        "steps": len(whole.records),
        "largest relative difference": max(differences),
        **{f"memory, {name}": round(value) for name, value in memories.items()},
        "memory of a process before a model": before,
        "memory, parts / whole": round(memories["parts"] / memories["whole"], 3),
        "without the process itself": round((memories["parts"] - before) / (memories["whole"] - before), 3),
        "time, parts / whole": round(times[0] / times[1], 3),
    }


def _number(value: float) -> str:
    """A count as it is, and a ratio with three digits."""
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def page(tree: dict[str, Any]) -> str:
    """The results in Markdown."""
    models = tree["models"]
    names = list(next(iter(models.values())))
    rows = [[name, *(_number(each[name]) for each in models.values())] for name in names]
    return f"""# Parts of every weight

Made by `python -m benchmarks.shards` on a CPU, torch {tree["environment"]["packages"]["torch"]}: two processes with a
part of every weight each (`run.fsdp=true`), and two with all weights. Differences are those of {", ".join(COMPARED)} in
any step; memory is the most of the first process, in MiB.

{markdown.table([["", *models], *rows])}
"""


if __name__ == "__main__":
    typer.run(main)
