"""`python -m benchmarks.profile`: the operators that one step of ours and one step of TRL spend their time in.

Writes results/profile.md. The profiler slows small operators down, so that the times are good for comparison only.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.profiler import ProfilerActivity, profile

from benchmarks import against_trl
from benchmarks.timing import PRETRAINED, TINY, Run, settle, use_threads
from grpo_lab.analysis.markdown import table
from grpo_lab.config.schema import Config
from grpo_lab.models import loading
from grpo_lab.models.registry import MODELS

WARM_UP = 3
HEADER = ["operator", "calls", "own time, ms", "share"]


def main(
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of both.")] = 1,
    top: Annotated[int, typer.Option(min=1, help="Operators of each table.")] = 20,
    large: Annotated[bool, typer.Option(help="SmolLM2-135M too, if it is here.")] = True,
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("benchmarks/results/profile.md"),
) -> None:
    """Profile one step of each contender and write a table of its operators."""
    use_threads(threads)
    works = {"tiny": TINY} | ({"SmolLM2-135M": PRETRAINED} if large and MODELS["smollm2-135m"].present else {})
    command = f"python -m benchmarks.profile --threads {threads}"
    lines = ["# One step in the profiler", "", f"Made by `{command}`, torch {torch.__version__}, on a CPU."]
    for name, work in works.items():
        config = settle(work).with_(f"run.num_steps={WARM_UP + 1}")
        for who, step in (("ours", ours), ("TRL", trl)):
            lines += ["", f"## {name}, {who}", "", *page_of(step(config), top)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(out)


def ours(config: Config) -> Any:
    """The events of a step of our trainer, after a few steps without the profiler."""
    run = Run(config)
    run.advance(WARM_UP)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run.advance(1)
    return seen.key_averages()


def trl(config: Config) -> Any:
    """The events of a step of TRL's trainer, between the ends of two steps."""
    from transformers import PrinterCallback, TrainerCallback

    seen = profile(activities=[ProfilerActivity.CPU])

    class Around(TrainerCallback):
        """Starts the profiler before the last step, and stops it after that."""

        def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            if state.global_step == WARM_UP:
                seen.__enter__()
            if state.global_step == WARM_UP + 1:
                seen.__exit__(None, None, None)

    with tempfile.TemporaryDirectory() as directory, loading.quiet():
        trainer = against_trl.trl_trainer(config, directory)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Around())
        trainer.train()
    return seen.key_averages()


def page_of(events: Any, top: int) -> list[str]:
    """The number of operator calls and their time, and a table of the operators with the most own time."""
    rows = sorted(events, key=lambda event: -event.self_cpu_time_total)
    total, calls = sum(event.self_cpu_time_total for event in rows), sum(event.count for event in rows)
    cells = [
        [
            event.key,
            f"{event.count:,}",
            f"{event.self_cpu_time_total / 1000:.1f}",
            f"{event.self_cpu_time_total / total:.1%}",
        ]
        for event in rows[:top]
    ]
    return [f"{calls:,} calls, {total / 1000:.0f} ms.", "", table([HEADER, *cells], literal=True)]


if __name__ == "__main__":
    typer.run(main)
