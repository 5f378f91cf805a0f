"""`python -m benchmarks.spread`: figures that the docs and labs give as ranges, on seeds that were not used before.

Each row is a run of the docs and a number that is read from its events: a held-out reward at the end, or a metric as a
mean over the last steps. Writes results/spread.md. With `--row` only the rows that begin so are measured, and printed.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.analysis.markdown import number, table
from grpo_lab.analysis.reproduction import COLUMNS, SCENARIOS, config_for, healthy_config
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.events import Evaluated, Event, Stepped
from grpo_lab.runs import environment
from grpo_lab.training.trainer import train
from grpo_lab.ui import console

Read = Callable[[Sequence[Event]], float]
"""From the events of a run to a number; NaN where the run has none."""


def held_out(events: Sequence[Event], place: int = -1) -> float:
    """The held-out reward at the end, or of another evaluation."""
    found = [event.reward for event in events if isinstance(event, Evaluated)]
    return found[place] if len(found) > 1 else float("nan")


def late(events: Sequence[Event], metric: str, last: int) -> float:
    """The mean of a metric over the last steps."""
    steps = [event.metrics for event in events if isinstance(event, Stepped)][-last:]
    return statistics.fmean(metrics.get(metric, float("nan")) for metrics in steps)


def rows() -> Iterator[tuple[str, Config, Read]]:
    """The name of each row, its config without a seed, and how its number is read."""
    for name in SCENARIOS:
        for column in COLUMNS:
            yield f"demo: {name}, {column}", config_for(name, column), held_out
    yield "demo: healthy, stable", healthy_config("stable"), held_out
    too_high = scenario("learning-rate-too-high").config().with_("run.num_steps=60", "run.num_eval=200")
    guard, warm = "guards.adaptive_learning_rate", ("guards.warm_up=on",)
    for times, rate in ((5, "1.5e-3"), (10, "3e-3")):
        at = too_high.with_(f"optimizer.learning_rate={rate}")
        yield f"rate x {times}: before", at.with_("run.num_steps=1"), partial(held_out, place=0)
        for name, changes in {
            "no guard": (),
            "adaptive_learning_rate": (f"{guard}=on",),
            "warm_up": warm,
            "adaptive_learning_rate, max_kl 0.3, warm_up": (f"{guard}.max_kl=0.3", *warm),
        }.items():
            yield f"rate x {times}: {name}", at.with_(*changes), held_out
    overwrite, hinge = scenario("dual-overwrite").config(), scenario("dual-kl-hinge").config()
    for name in "FH":
        yield f"dual-overwrite: KL of {name}", overwrite, partial(late, metric=f"kl/{name}", last=8)
    longer = hinge.with_("run.num_steps=60", "data.num_prompts=16")
    yield "dual-kl-hinge: exact KL of F", hinge, partial(late, metric="kl/exact/F", last=hinge.run.num_steps // 2)
    yield "dual-kl-hinge, 60 steps: exact KL of F", longer, partial(late, metric="kl/exact/F", last=30)
    for name in "FH":
        with_k3 = longer.with_("loss.kl_estimator=k3")
        yield f"dual with k3, 60 steps: exact KL of {name}", with_k3, partial(late, metric=f"kl/exact/{name}", last=30)
    learn = preset("plain").with_("run.num_eval=500", "optimizer.schedule=cosine", "run.num_steps=200")
    yield "200 steps: all weights", learn, held_out
    lora = ("lora.r=8", "lora.alpha=32", "optimizer.learning_rate=4e-3")
    yield "200 steps: LoRA", learn.with_(*lora), held_out
    yield "200 steps: LoRA with norms", learn.with_(*lora, "lora.modules_to_save=ln_1,ln_2,ln_f"), held_out
    yield from _of_labs()


def _of_labs() -> Iterator[tuple[str, Config, Read]]:
    """The runs of labs 4, 5 and 7 whose prose gives a range."""
    shift = preset("plain").with_("run.num_steps=60", "run.num_eval=200", "faults.shift_log_ratio.at_step=20")
    for name in ("clamp_log_ratio", "skip_nonfinite"):
        yield f"lab 4: {name}", shift.with_(f"guards.{name}=on"), held_out
    drifting = preset("plain").with_("run.num_steps=20", "data.num_prompts=4", "run.exact_kl=true")
    drifting = drifting.with_("optimizer.learning_rate=1e-3", "loss.beta=0.3")
    exact = partial(late, metric="kl/exact", last=8)
    yield "lab 5: no penalty", drifting.with_("loss.beta=1e-9"), exact
    for name in ("k1", "k2", "k3", "hinge"):
        yield f"lab 5: {name}", drifting.with_(f"loss.kl_estimator={name}"), exact
    yield "lab 5: k1 in the reward", drifting.with_("loss.kl_place=reward"), exact
    for name in ("reinforce_plus_plus", "gspo"):
        yield f"lab 5: {name}", drifting.with_algorithm(name), exact
    gap = scenario("temperature-ignored").config().with_("run.num_steps=40", "data.num_prompts=8")
    ways = {"as it is": gap, "tis": gap.with_algorithm("tis"), "one": gap.with_("sampling.temperature=1")}
    for name, config in ways.items():
        yield f"lab 7, temperature: KL, {name}", config, partial(late, metric="kl", last=8)
    for name in ("as it is", "tis"):
        metric = "sampling/sampling_logp_difference/mean"
        yield f"lab 7, temperature: gap, {name}", ways[name], partial(late, metric=metric, last=8)


def measured(task: tuple[Config, Read, int]) -> float:
    """The number of one run; NaN where it crashed."""
    config, read, seed = task
    events: list[Event] = []
    try:
        events += train(config.with_(f"run.seed={seed}", "run.threads=1", "run.device=cpu"))
    except RuntimeError:  # torch.multinomial refuses NaN: the run crashed, as its scenario does
        return float("nan")
    return read(events)


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each run.")] = 5,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 110,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = os.cpu_count() or 1,
    row: Annotated[str, typer.Option(help="Only the rows that begin so.")] = "",
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("benchmarks/results/spread.md"),
) -> None:
    """Train every run on every seed, and write a table."""
    wanted = [each for each in rows() if each[0].startswith(row)]
    tasks = [(config, read, seed) for _, config, read in wanted for seed in range(first, first + seeds)]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        found = list(pool.map(measured, tasks))
    cells = [["run", "lowest", "mean", "highest", "by seed"]]
    for place, (name, _, _) in enumerate(wanted):
        values = found[place * seeds : (place + 1) * seeds]
        ends = [number(each(values)) for each in (min, statistics.fmean, max)]
        cells.append([name, *ends, ", ".join(map(number, values))])
    console.out.print(console.table(cells))
    if not row:
        here = environment.describe(threads=1)
        page = f"""# Figures of the docs on {seeds} fresh seeds

Made by `python -m benchmarks.spread --seeds {seeds} --first {first}` on a CPU with one thread, torch
{here["packages"]["torch"]}. Rewards are held out; `nan` is a run that crashed.

{table(cells, literal=True)}
"""
        out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
