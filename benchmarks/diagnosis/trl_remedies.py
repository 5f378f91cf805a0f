"""Remedies for runs of TRL's GRPOTrainer, tried: does the run learn with what the diagnosis says to set?"""

from __future__ import annotations

import ast
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.diagnosis import recipes, trl_runs
from benchmarks.diagnosis.recipes import Reward, Spec
from grpo_lab.analysis.diagnosis import Diagnosis, diagnose
from grpo_lab.analysis.diagnosis.causes import Remedy
from grpo_lab.analysis.markdown import table
from grpo_lab.models import loading
from grpo_lab.tasks import tasks
from grpo_lab.ui import console

HELD_OUT = 400
"""Prompts that no run trains on; one completion of each is sampled at temperature 1."""
HELD_OUT_SEED = 987_654
FIRST = 2
"""The remedies that are tried, of those that a diagnosis lists."""
PATIENCE = 3
"""A remedy is followed so many times at most: a rate may have to fall by more than a factor of 10."""
Repair = Callable[[Spec, Remedy], Spec]


def argument(name: str, change: Callable[[Any], Any]) -> Repair:
    """Change one argument of GRPOConfig."""
    return lambda run, remedy: replace(run, arguments={**run.arguments, name: change(run.arguments.get(name))})


def rate(run: Spec, remedy: Remedy) -> Spec:
    """Multiply the learning rate by the factor that the remedy names for this project."""
    factor = float(remedy.here.partition("=*")[2])
    return argument("learning_rate", lambda now: now * factor)(run, remedy)


def wide(run: Spec, remedy: Remedy) -> Spec:
    """Weights in fp32 under autocast to bf16."""
    return replace(run, change=lambda model, tokenizer: model.float(), arguments={**run.arguments, "bf16": True})


def other_rewards(make: Callable[[Reward], Reward]) -> Repair:
    """Put another function in the place of each reward function."""
    return lambda run, remedy: replace(run, rewards=tuple(make(each) for each in run.rewards))


def none_for_zero(function: Reward) -> Reward:
    """None in the steps in which every reward is 0."""
    return recipes.later(function, lambda call, given: given if any(given) else [None] * len(given))


def bounded(function: Reward) -> Reward:
    """Rewards from -1 to 1."""
    return recipes.later(function, lambda call, given: [max(-1.0, min(1.0, float(each or 0))) for each in given])


def weights(run: Spec, remedy: Remedy) -> Spec:
    """Weigh the function that counts, the first one, ten times as high."""
    return replace(run, arguments={**run.arguments, "reward_weights": [10.0] + [1.0] * (len(run.rewards) - 1)})


REPAIRS: dict[str, Repair] = {
    "learning_rate": rate,
    "bf16=True, and model_init_kwargs={'dtype': 'float32'}": wide,
    "bf16=True": wide,
    "return None from the reward function": other_rewards(none_for_zero),
    "max_completion_length": argument("max_completion_length", lambda now: min(4 * now, 32)),
    "generation_kwargs={'eos_token_id': …}, or processing_class.eos_token": lambda run, remedy: replace(
        run, change=lambda model, tokenizer: None
    ),
    "reward_weights": weights,
    "bound the rewards in the reward function": other_rewards(bounded),
    "reward_funcs, as get_soft_overlong_punishment": lambda run, remedy: replace(run, rewards=(recipes.accuracy(),)),
}
"""What a remedy means for a run, by its setting in TRL, or by its words where it has none."""
TO_READ = ("log_completions=True",)
"""Settings that change what is logged, and nothing else."""


def literal(remedy: Remedy) -> Repair | None:
    """A repair that sets what the remedy spells out: `beta=0.04`, `top_k=0, top_p=1.0`; None for words."""
    try:
        call = ast.parse(f"f({remedy.trl})", mode="eval").body
        assert isinstance(call, ast.Call) and call.keywords and not call.args
        values = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        return None
    return lambda run, remedy: replace(run, arguments={**run.arguments, **values})


def repair(remedy: Remedy) -> Repair | None:
    """How a remedy changes a run; None for one that is advice to a reader."""
    if remedy.trl in TO_READ:
        return None
    return REPAIRS.get(remedy.trl or remedy.do) or literal(remedy)


def accuracy(model: Any, tokenizer: Any) -> float:
    """The share of right completions of held-out prompts; NaN if the model cannot be sampled."""
    problems = tasks.load("addition").batch(HELD_OUT_SEED, 0, HELD_OUT)
    tokenizer.padding_side = "left"
    prompts = tokenizer([problem.prompt for problem in problems], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            tokens = model.eval().generate(**prompts, do_sample=True, temperature=1.0, max_new_tokens=12)
    except RuntimeError:  # probabilities of NaN
        return math.nan
    texts = tokenizer.batch_decode(tokens[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [recipes.right(text, problem.columns["answer"]) for text, problem in zip(texts, problems, strict=True)]
    return sum(right) / len(right)


def trained(run: Spec, seed: int) -> tuple[Diagnosis, float]:
    """The diagnosis of a run from everything that it leaves, and its held-out accuracy."""
    with tempfile.TemporaryDirectory() as scratch:
        made = recipes.train(run, seed, Path(scratch))
        return diagnose(scratch), accuracy(made.model, loading.load("tiny", "fp32", "cpu")[1])


def measure(seeds: Sequence[int], only: Sequence[str]) -> dict[str, Any]:
    """A row for each broken run and each remedy that its diagnosis names and that can be set."""
    chosen = [name for name, recipe in trl_runs.RECIPES.items() if recipe.truth and (not only or name in only)]
    start = accuracy(*loading.load("tiny", "fp32", "cpu"))
    rows = []
    with console.progress() as bars:
        task = bars.add_task("runs", total=len(chosen) * len(seeds), note="")
        for name in chosen:
            for seed in seeds:
                bars.update(task, note=f"{name}, seed {seed}")
                rows += tried(name, seed)
                bars.advance(task)
    return {"start": start, "rows": rows}


def tried(name: str, seed: int) -> list[dict[str, Any]]:
    """The remedies of one broken run."""
    found, before = trained(trl_runs.spec(name, seed), seed)
    row: dict[str, Any] = {"recipe": name, "seed": seed, "verdict": found.verdict, "before": before}
    rows = []
    for remedy in advised(found)[:FIRST]:
        change = repair(remedy)
        if change is not None:
            rows.append({**row, **followed(name, seed, remedy, change)})
    return rows or [{**row, "remedy": "", "times": 0, "after": None, "verdict after": ""}]


def advised(found: Diagnosis) -> list[Remedy]:
    """The remedies of the first finding; none if there are remarks alone."""
    named = [finding for finding in found.findings if finding.cause.level != "note"]
    return [remedy for finding in named[:1] for remedy in finding.remedies]


def followed(name: str, seed: int, remedy: Remedy, change: Repair) -> dict[str, Any]:
    """The run with a remedy, which is followed again while the diagnosis names it again and it changes a setting."""
    row: dict[str, Any] = {}
    times, again = 0, True
    while again and times < PATIENCE:
        before = run = trl_runs.spec(name, seed)  # anew each time: reward functions count their calls
        times += 1
        for _ in range(times):
            before, run = run, change(run, remedy)
        found, after = trained(run, seed)
        again = remedy in advised(found) and run.arguments != before.arguments
        row = {"remedy": remedy.trl or remedy.do, "times": times, "after": after, "verdict after": found.verdict}
    return row


def markdown(found: dict[str, Any]) -> str:
    """The results as a table in Markdown."""
    head = [
        "broken run",
        "seed",
        "diagnosis",
        "held out",
        "remedy in TRL",
        "times",
        "held out with it",
        "diagnosis then",
    ]
    rows = [head]
    for row in found["rows"]:
        after = "" if row["after"] is None else f"{row['after']:.2f}"
        cells = [row["recipe"], str(row["seed"]), row["verdict"], f"{row['before']:.2f}"]
        rows.append(
            [
                *cells,
                f"`{row['remedy']}`" if row["remedy"] else "none to set",
                str(row["times"]),
                after,
                row["verdict after"],
            ]
        )
    said = (
        f"Held out: the share of right completions of {HELD_OUT} prompts that no run trains on, sampled at temperature "
        f"1; {found['start']:.2f} before any training. Of the first {FIRST} remedies of the first finding, each "
        f"that can be set is tried alone, and again, {PATIENCE} times at most, as long as the diagnosis names it again."
    )
    return f"{said}\n\n{table(rows)}\n"
