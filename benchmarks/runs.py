"""`python -m benchmarks.runs TABLE`: a table of runs on several seeds, each trained in a process of its own.

    dual       two objectives in two stages, and each way to combine them
    heals      the heal of each scenario on seeds that were not used to find it, against guards alone
    lora       LoRA against training all weights
    precision  the healed run of cuda-001 in every precision, and with a representable eps
    sft        SFT before GRPO against GRPO alone, from the same model
    spread     the single-seed figures of the docs on other seeds: lowest, mean, highest

Writes results/TABLE.md.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_lab.analysis.markdown import number, table
from grpo_lab.analysis.matrix import HEALED, HELD_OUT, UNHEALED
from grpo_lab.analysis.reproduction import COLUMNS, SCENARIOS, config_for, healthy_config
from grpo_lab.config.catalog import preset, scenario, scenario_names
from grpo_lab.config.schema import Config
from grpo_lab.events import Ended, Evaluated, Event, Stepped
from grpo_lab.runs import environment
from grpo_lab.runs.outcome import Learned, outcome
from grpo_lab.tasks import tasks
from grpo_lab.training.trainer import train
from grpo_lab.ui import console

HERE = ("run.device=cpu", "run.threads=1")
Rows = list[list[str]]
Events = Sequence[Event]
Trained = Callable[[Mapping[Any, Config]], dict[Any, Events]]
"""The events of each config's run, by its key."""


def main(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="dual, heals, lora, precision, sft or spread.")],
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each run.")] = None,
    first: Annotated[int | None, typer.Option(min=0, help="The first seed.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = os.cpu_count() or 1,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the page.")] = Path("benchmarks/results"),
    only: Annotated[list[str] | None, typer.Option("--scenario", help="Of heals: this scenario alone.")] = None,
) -> None:
    """Train every run on every seed, and write a table."""
    known = {rows.__name__: rows for rows in TABLES}
    if name not in known:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}")
    if only and name != heals.__name__:
        raise typer.BadParameter("--scenario is for the table heals")
    default = TABLES[known[name]]
    first = default[0] if first is None else first
    chosen = range(first, first + (seeds or len(default)))
    rows = known[name](partial(trained, jobs=jobs), chosen, **({"names": only} if only else {}))
    console.out.print(console.table(rows))
    title, _, about = inspect.cleandoc(known[name].__doc__ or "").partition("\n\n")
    torch = environment.describe(threads=1)["packages"]["torch"]
    command = f"python -m benchmarks.runs {name} --seeds {len(chosen)} --first {first}"
    command += "".join(f" --scenario {each}" for each in only or ())
    made = f"Made by `{command}` on a CPU with one thread a run, torch {torch}."
    page = f"# {title}\n\n{made}\n{about}\n\n{table(rows, literal=name != 'dual')}\n"
    (out / f"{name}.md").write_text(page, encoding="utf-8")


def trained(configs: Mapping[Any, Config], jobs: int) -> dict[Any, Events]:
    """The events of each config's run; configs that differ in their name alone share one."""
    texts = {key: json.dumps(config.with_("run.name=one").to_dict()) for key, config in configs.items()}
    unique = {texts[key]: config for key, config in configs.items()}
    found = {}
    with console.progress() as bars, ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        task = bars.add_task("runs", total=len(unique), note="")
        for text, events in zip(unique, pool.map(events_of, unique.values()), strict=True):
            found[text] = events
            bars.update(task, advance=1)
    return {key: found[text] for key, text in texts.items()}


def events_of(config: Config) -> list[Event]:
    """The events of a run; the last one says whether it was done, or crashed, as runs of some scenarios do."""
    events: list[Event] = []
    try:
        for event in train(config):
            events.append(event)
    except RuntimeError:  # torch.multinomial refuses NaN
        return [*events, Ended("crashed")]
    return events


def held_out(events: Events, place: int = -1) -> float:
    """The held-out reward at the end, or of another evaluation; NaN where the run crashed."""
    found = [event.reward for event in events if isinstance(event, Evaluated)]
    return found[place] if len(found) > 1 else math.nan


def metrics_of(events: Events) -> list[Mapping[str, float]]:
    """The metrics of all steps."""
    return [event.metrics for event in events if isinstance(event, Stepped)]


def listed(values: Iterable[float], digits: int = 3) -> str:
    """Numbers with commas."""
    return ", ".join(number(value, digits) for value in values)


# --- two objectives --------------------------------------------------------------------------------------------------

VARIANTS = {
    "preset `dual`": (),
    "no adaptive beta": ("guards.adaptive_beta=off",),
    "one beta for the mean KL": ("guards.adaptive_beta.by_objective=off",),
    "`pcgrad`": ("loss.combination=pcgrad",),
    "`alternate`": ("loss.combination=alternate",),
    "`overwrite` (a mistake)": ("loss.combination=overwrite",),
}
"""The preset on all seeds, each other variant on the first one."""


def dual(trained: Trained, seeds: Sequence[int]) -> Rows:
    """Two objectives

    Held-out rewards of 400 problems each, sampled once at temperature 1: at the start, after SFT, after GRPO. H counts
    a wrong number as -1. The bands are 0.02 to 0.06 for F and 0.08 to 0.15 for H; shares are of the steps in the second
    half of GRPO. The last column is the share of steps in which the two gradients pull apart.
    """
    wanted = {
        (name, seed): preset("dual").with_(*changes, f"run.seed={seed}", "run.num_eval=400", *HERE)
        for name, changes in VARIANTS.items()
        for seed in (seeds[:1] if changes else seeds)
    }
    rows = [["variant", "seed", "F: start, SFT, GRPO", "H: start, SFT, GRPO", "F in band", "H in band", "cosine < 0"]]
    for (name, seed), events in trained(wanted).items():
        stages = [event.objectives for event in events if isinstance(event, Evaluated)]
        steps = [metrics for metrics in metrics_of(events) if "reward" in metrics]
        inside = []
        for each in wanted[name, seed].objectives:
            kls = [step[f"kl/{each.name}"] for step in steps[len(steps) // 2 :] if f"kl/{each.name}" in step]
            low, high = each.kl_low or 0.0, each.kl_high or 0.0
            inside.append(number(statistics.fmean(low <= kl <= high for kl in kls)))
        against = [step["gradients/cosine"] < 0 for step in steps if "gradients/cosine" in step]
        rewards = [listed(stage[objective] for stage in stages) for objective in "FH"]
        rows.append([name, str(seed), *rewards, *inside, number(statistics.fmean(against) if against else math.nan)])
    return rows


# --- heals -----------------------------------------------------------------------------------------------------------

LARGE = 10
"""A healed run stays below this norm, but for the steps that the table counts."""


def heals(trained: Trained, seeds: Sequence[int], names: Sequence[str] = ()) -> Rows:
    """The heals on fresh seeds

    Both runs have the guards of `stable` and the length and batch of the scenario's trial. Rewards are means of 250
    held-out problems, of each objective where there are several, whose mean is taken; `-` means that the run did not
    end. *learns*: seeds on which the healed run gains more than two standard errors. *above*: seeds on which it ends
    above the run with guards alone.
    """
    wanted = {}
    names = names or scenario_names()
    for case in map(scenario, names):
        configs = {UNHEALED: case.config(guards="stable").merged(case.trial)}
        configs |= {HEALED: case.config(guards="stable", heal=True)}
        for column, config in configs.items():
            config = config.with_(f"run.num_eval={HELD_OUT}", *HERE)
            wanted |= {(case.name, column, seed): config.with_(f"run.seed={seed}") for seed in seeds}
    runs = trained(wanted)
    rows = [
        ["scenario", "heal", "before", "guards alone, by seed", "healed, by seed", "learns", "above", "largest norm"]
    ]
    rows[0].append(f"steps above {LARGE}")
    for name in names:
        unhealed, healed = ([runs[name, column, seed] for seed in seeds] for column in (UNHEALED, HEALED))
        rows.append(healing(name, unhealed, healed))
    return rows


def healing(name: str, unhealed: Sequence[Events], healed: Sequence[Events]) -> list[str]:
    """The cells of one scenario."""
    before = [held_out(events, 0) for events in healed]
    alone, after = ([held_out(events) for events in runs] for runs in (unhealed, healed))
    norms = [step["grad_norm"] for events in healed for step in metrics_of(events) if "grad_norm" in step]
    above = [end == end and not end <= other for end, other in zip(after, alone, strict=True)]
    return [
        name,
        ", ".join(scenario(name).heals[0].change),
        number(statistics.fmean(before), 2),
        listed(alone, 2),
        listed(after, 2),
        f"{sum(outcome(events).learned is Learned.LEARNED for events in healed)} of {len(healed)}",
        f"{sum(above)} of {len(healed)}",
        number(max(norms, key=lambda norm: (norm != norm, norm)), 2),
        str(sum(not norm <= LARGE for norm in norms)),
    ]


# --- LoRA ------------------------------------------------------------------------------------------------------------

NORMS = ("lora.r=8", "lora.alpha=32", "lora.modules_to_save=ln_1,ln_2,ln_f")
RANKS = {
    "full": ("optimizer.learning_rate=3e-4",),
    "r = 8": ("lora.r=8", "optimizer.learning_rate=4e-3"),
    "r = 16": ("lora.r=16", "optimizer.learning_rate=4e-3"),
    "r = 8, alpha = 32": (*NORMS[:2], "optimizer.learning_rate=4e-3"),
    "r = 8, alpha = 32, norms": (*NORMS, "optimizer.learning_rate=4e-3"),
}
"""Rates: that of `plain`, and the best of 1e-3, 2e-3 and 4e-3 at r = 8, seed 0."""
DUAL_RANKS = {
    "dual, full": (),
    "dual, r = 8, alpha = 32, norms": (*NORMS, "sft.learning_rate=4e-4", "optimizer.learning_rate=2e-4"),
}


def lora(trained: Trained, seeds: Sequence[int]) -> Rows:
    """LoRA and all weights

    Held-out rewards at the end, after 200 steps of the preset `plain`, and of the preset `dual`.
    """
    plain = preset("plain").with_("run.num_eval=500", "optimizer.schedule=cosine", "run.num_steps=200", *HERE)
    both = preset("dual").with_("run.num_eval=400", *HERE)
    configs = {name: plain.with_(*changes) for name, changes in RANKS.items()}
    configs |= {name: both.with_(*changes) for name, changes in DUAL_RANKS.items()}
    runs = trained({(n, seed): config.with_(f"run.seed={seed}") for n, config in configs.items() for seed in seeds})
    rows = [["trained weights", "objective", "mean", "by seed"]]
    for name in configs:
        ends = [[event for event in runs[name, seed] if isinstance(event, Evaluated)][-1] for seed in seeds]
        for objective in ends[0].objectives or ("",):
            values = [end.objectives.get(objective, end.reward) for end in ends]
            rows.append([name, objective, number(statistics.fmean(values)), listed(values)])
    return rows


# --- precision -------------------------------------------------------------------------------------------------------

PRECISIONS = {
    "fp32": "fp32 weights and moments",
    "bf16": "bf16 autocast; fp32 weights and moments",
    "fp16": "fp16 autocast with loss scaling; fp32 weights and moments",
    "bf16_pure": "bf16 weights and moments",
    "fp16_pure": "fp16 weights and moments, eps as in the scenario",
    "fp16_pure, eps 1e-4": "fp16 weights and moments, a representable eps",
}


def precision(trained: Trained, seeds: Sequence[int]) -> Rows:
    """The healed `cuda-001` in every precision

    The right ratio, half of the heal of cuda-001, with weights and moments of each precision.
    """
    base = scenario("cuda-001").config(heal=True).with_("run.num_eval=250", *HERE)
    wanted = {}
    for row in PRECISIONS:
        kind, _, eps = row.partition(", eps ")
        changes = (f"model.precision={kind}", *([f"optimizer.adam_eps={eps}"] if eps else []))
        wanted |= {(row, seed): base.with_(*changes, f"run.seed={seed}") for seed in seeds}
    runs = trained(wanted)
    rows = [["precision", "held by", "held-out reward before", "after, by seed", "mean", "largest norm", "crashes"]]
    for row, what in PRECISIONS.items():
        mine = [runs[row, seed] for seed in seeds]
        begun = [next(event.reward for event in events if isinstance(event, Evaluated)) for events in mine]
        ends = [end for events in mine if (end := held_out(events)) == end]
        steps = [event for events in mine for event in events if isinstance(event, Stepped)]
        notes = [note for step in steps for note in step.links if note.link == "gradients" and not note.broken]
        rows.append(
            [
                row,
                what,
                number(statistics.fmean(begun), 2),
                listed(ends, 2) or "-",
                number(statistics.fmean(ends), 2) if ends else "-",
                number(max((note.magnitude for note in notes), default=math.nan), 2),
                str(sum(events[-1] == Ended("crashed") for events in mine)),
            ]
        )
    return rows


# --- SFT before GRPO -------------------------------------------------------------------------------------------------

SHOWN = 2000
"""Demonstrations, taken from the problems to train on."""
SFT_STEPS, GRPO_STEPS = 200, 60


def sft(trained: Trained, seeds: Sequence[int]) -> Rows:
    """SFT before GRPO

    The tiny model, which knows sums, learns differences: share of right answers to 500 held-out problems, sampled once
    each at temperature 1. SFT: 200 steps of 64 rows out of 2000 demonstrations, learning rate 1e-3. GRPO: the preset
    `stable`, 60 steps after SFT; alone it makes the steps of both.
    """
    both = ("run.stages=sft,grpo", f"run.num_steps={GRPO_STEPS}")
    with tempfile.TemporaryDirectory() as folder:
        problems, shown = write_files(Path(folder))
        settings = (f"sft.data={shown}", "sft.learning_rate=1e-3", "sft.batch_size=64", f"sft.num_steps={SFT_STEPS}")
        base = preset("stable").with_(f"data.tasks={problems}", *settings, "run.num_eval=500", *HERE)
        wanted = {}
        for seed in seeds:
            config = base.with_(f"run.seed={seed}")
            wanted |= {(seed, "alone"): config.with_(f"run.num_steps={SFT_STEPS + GRPO_STEPS}")}
            wanted |= {(seed, "both"): config.with_(*both)}
        runs = trained(wanted)
    values = []
    for seed in seeds:
        alone, stages = runs[seed, "alone"], runs[seed, "both"]
        values.append([held_out(alone, 0), held_out(alone), held_out(stages, 1), held_out(stages)])
    rows = [["seed", "start", f"GRPO alone, {SFT_STEPS + GRPO_STEPS} steps", "after SFT", "after SFT and GRPO"]]
    rows += [[str(seed), *map(number, row)] for seed, row in zip(seeds, values, strict=True)]
    return [*rows, ["mean", *(number(statistics.fmean(column)) for column in zip(*values, strict=True))]]


def write_files(folder: Path) -> tuple[Path, Path]:
    """Write all differences that are not negative, and demonstrations that are no held-out problem."""
    problems, shown = folder / "differences.jsonl", folder / "shown.jsonl"
    pairs = [(a, b) for a in range(100) for b in range(a + 1)]
    problems.write_text(_lines({"prompt": f"{a}-{b}=", "answer": str(a - b)} for a, b in pairs), encoding="utf-8")
    chosen = tasks.drawn(tasks.from_jsonl(problems).train, seed=0, step=0, count=SHOWN)
    rows = ({"prompt": problem.prompt, "completion": problem.columns["answer"]} for problem in chosen)
    shown.write_text(_lines(rows), encoding="utf-8")
    return problems, shown


def _lines(rows: Iterable[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# --- figures of the docs ---------------------------------------------------------------------------------------------


def late(events: Events, metric: str, last: int) -> float:
    """The mean of a metric over the last steps; NaN where the run crashed."""
    steps = metrics_of(events)[-last:]
    crashed = events[-1] == Ended("crashed")
    return math.nan if crashed else statistics.fmean(metrics.get(metric, math.nan) for metrics in steps)


def of_docs() -> Iterator[tuple[str, Config, Callable[[Events], float]]]:
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


def _of_labs() -> Iterator[tuple[str, Config, Callable[[Events], float]]]:
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


def spread(trained: Trained, seeds: Sequence[int]) -> Rows:
    """Figures of the docs on fresh seeds

    Rewards are held out; `-` is a run that crashed.
    """
    figures = {name: (config.with_(*HERE), read) for name, config, read in of_docs()}
    runs = trained(
        {(name, seed): config.with_(f"run.seed={seed}") for name, (config, _) in figures.items() for seed in seeds}
    )
    rows = [["run", "lowest", "mean", "highest", "by seed"]]
    for name, (_, read) in figures.items():
        values = [read(runs[name, seed]) for seed in seeds]
        rows.append([name, *(number(each(values)) for each in (min, statistics.fmean, max)), listed(values)])
    return rows


TABLES = {
    dual: range(0, 5),
    heals: range(100, 105),
    lora: range(0, 3),
    precision: range(0, 3),
    sft: range(0, 3),
    spread: range(110, 115),
}
"""Every table with the seeds that it has by default. Its docstring is the title of its page, and the text."""


if __name__ == "__main__":
    typer.run(main)
