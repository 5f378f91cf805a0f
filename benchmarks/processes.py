"""`python -m benchmarks.processes`: the speed of several processes, their messages, and both at scale on paper.

Speed: the preset `stable` with a large batch, by one process and by several in turns, a thread each; ratios of the
medians of their step times. Messages: the bytes that one process sends in a step, counted. On paper: the formulas of
docs/scale.md.
"""

from __future__ import annotations

import json
import pickle
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from grpo_lab.analysis import markdown
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.runs import environment
from grpo_lab.runs.session import Session
from grpo_lab.training.distributed import Processes
from grpo_lab.ui import console

BATCH = ("data.num_prompts=64", "data.num_generations=16")
"""Eight times the batch of the preset: a smaller one takes about as long as half of it on a CPU."""
SETTLED = 5
"""Steps of each run that are not counted."""
MODELS = {"tiny": 0.11e6, "SmolLM2-135M": 134.5e6, "1.7B": 1.7e9, "7B": 7.6e9, "70B": 70.6e9}
RANKS = (2, 8, 64, 1024)
WEIGHTS, SNAPSHOT, REFERENCE = 16, 12, 4
"""Bytes a parameter in fp32: weights, gradients and two moments; a snapshot of all but gradients; the reference."""
LINK = 50e9
"""Bytes a second that one GPU sends, 400 Gbit/s: a usual link between machines."""


def main(
    processes: Annotated[int, typer.Option(min=2, help="Processes that are compared with one.")] = 2,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs whose times are compared.")] = 5,
    steps: Annotated[int, typer.Option(min=SETTLED + 1, help="Steps of each run of a pair.")] = 25,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")] = Path("benchmarks/results"),
) -> None:
    """Measure, compute and write processes.{json,md}."""
    ratios, most, sent = [], [], {}
    with console.progress() as bars, TemporaryDirectory() as folder:
        task = bars.add_task("pairs", total=pairs, note="")
        for number in range(pairs):
            took = {}
            for count in (1, processes) if number % 2 else (processes, 1):
                with counted() as bytes_sent:
                    took[count] = step_time(Path(folder) / f"{number}-{count}", count, number, steps)
                sent = {name: total / steps for name, total in bytes_sent.items()} if count > 1 else sent
            ratios.append(round(took[1] / took[processes], 3))
            most.append(round(processes * took[1] / apart(Path(folder) / f"{number}-apart", processes, steps), 3))
            bars.update(task, advance=1, note=f"{ratios[-1]:.2f} times as fast")
    tree = {
        "environment": environment.describe(threads=1),
        "processes": processes,
        "times as fast": ratios,
        "of this machine": most,
        "bytes a step": {name: round(value) for name, value in sent.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "processes.json").write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    (out / "processes.md").write_text(text := page(tree), encoding="utf-8")
    print(text)


def step_time(folder: Path, processes: int, seed: int, steps: int) -> float:
    """The median seconds of a step of a run, whose last steps are all counted."""
    session = Session(settings(processes, seed, steps), folder, child=False).run(check=True)
    return statistics.median(session.records["step_time"].iloc[SETTLED:])


def apart(folder: Path, runs: int, steps: int) -> float:
    """The median seconds of a step where that many runs of one process each go on side by side."""
    sessions = [Session(settings(1, seed, steps), folder / str(seed), child=True) for seed in range(runs)]
    with ThreadPoolExecutor(runs) as threads:
        list(threads.map(Session.run, sessions))
    return statistics.fmean(statistics.median(session.records["step_time"].iloc[SETTLED:]) for session in sessions)


def settings(processes: int, seed: int, steps: int) -> Config:
    """The config of a run that is measured."""
    here = ("run.device=cpu", "run.threads=1", "run.checkpoint_minutes=none")
    return preset("stable").with_(
        *BATCH, *here, f"run.processes={processes}", f"run.seed={seed}", f"run.num_steps={steps}"
    )


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count the bytes that this process gives to the others while the block lasts, by kind of message."""
    sent = {"messages": 0, "gradients": 0}
    exchange, reduce = Processes._exchange, Processes._reduce

    def counted_exchange(self: Processes, told: Any) -> Any:
        sent["messages"] += len(pickle.dumps(told))
        return exchange(self, told)

    def counted_reduce(self: Processes, values: Any) -> None:
        sent["gradients"] += values.numel() * values.element_size()
        reduce(self, values)

    Processes._exchange, Processes._reduce = counted_exchange, counted_reduce
    try:
        yield sent
    finally:
        Processes._exchange, Processes._reduce = exchange, reduce


def on_paper() -> list[list[str]]:
    """A row a model: bytes that a rank sends for one update by number of ranks, their time, and memory a rank."""
    rows = []
    for name, parameters in MODELS.items():
        sent = [2 * (ranks - 1) / ranks * 4 * parameters for ranks in RANKS]
        memory = (WEIGHTS + SNAPSHOT + REFERENCE) * parameters
        seconds = f"{sent[-1] / LINK:.3g} s"
        rows.append([name, *(_bytes(each) for each in sent), seconds, _bytes(memory)])
    return rows


def _bytes(number: float) -> str:
    """A number of bytes with three digits.

    >>> _bytes(1.5e9), _bytes(900e3)
    ('1.5 GB', '0.9 MB')
    """
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"


def page(tree: dict[str, Any]) -> str:
    """The results in Markdown."""
    ratios, sent, count = tree["times as fast"], tree["bytes a step"], tree["processes"]
    most = tree["of this machine"]
    header = ["model", *(f"{ranks} ranks send" for ranks in RANKS), "at 50 GB/s", "memory of a replica"]
    return f"""# Several processes

Made by `python -m benchmarks.processes` on a CPU, torch {tree["environment"]["packages"]["torch"]}.

## Speed

{count} processes with a thread each made the steps of the preset `stable` with {BATCH[0]} and {BATCH[1]}
{statistics.median(ratios):.2f} times as fast as one process with one thread: the median of {len(ratios)} pairs, from
{min(ratios):.2f} to {max(ratios):.2f}. As many runs without anything in common, side by side, made
{statistics.median(most):.2f} times the steps of one in the same time ({min(most):.2f} to {max(most):.2f}): that is what
this machine can give.

## Messages

In a step, one of the {count} processes gave the others {sent["messages"] / 1e3:.1f} kB of batches, verdicts and notes,
and added up {sent["gradients"] / 1e3:.1f} kB of gradients.

## On paper

Replicas in fp32, one update a step. See docs/scale.md for the formulas. Nothing in this table was measured.

{markdown.table([header, *on_paper()])}
"""


if __name__ == "__main__":
    typer.run(main)
