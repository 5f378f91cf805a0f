"""Runs of TRL's GRPOTrainer, diagnosed from what Trainer leaves behind: is the true cause the first one named?"""

from __future__ import annotations

import collections
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.diagnosis import blind_recipes, recipes
from benchmarks.diagnosis.recipes import Recipe, Spec
from grpo_lab.analysis.diagnosis import Diagnosis, diagnose
from grpo_lab.analysis.markdown import table
from grpo_lab.ui import console

SETS: dict[str, dict[str, Recipe]] = {
    "recipes beside which the rules were written": recipes.RECIPES,
    "recipes by an engineer who had not read the rules": blind_recipes.BLIND,
}
RECIPES = {name: recipe for chosen in SETS.values() for name, recipe in chosen.items()}
VIEWS = {
    "trainer_state.json alone": ("trainer_state.json",),
    "with settings and console": ("trainer_state.json", "args.json", "console.log"),
}
"""The files of a run's folder that the diagnosis is given."""
GRADES = ("first", "second", "later", "other", "not enough", "silent")
"""Places of the true cause among the suspects; `other` are named; nothing is: `not enough` to judge, or `silent`."""


def spec(name: str, seed: int) -> Spec:
    """The run of a recipe and a seed."""
    return RECIPES[name].make(random.Random(f"{name} {seed}"))


def suspects(found: Diagnosis) -> list[str]:
    """The suspects of all findings, in order, each once."""
    each = [suspect for finding in found.findings if finding.cause.level != "note" for suspect in finding.suspects]
    return list(dict.fromkeys(suspect.name or suspect.says for suspect in each))


def graded(found: Diagnosis, truth: Sequence[str]) -> str:
    """The grade of a diagnosis: one of `GRADES`, or `healthy` and `false alarm` for a healthy run."""
    named = suspects(found)
    if not truth:
        return "false alarm" if any(f.cause.level == "failure" for f in found.findings) else "healthy"
    if not named:
        return "not enough" if found.lacking else "silent"
    place = next((place for place, name in enumerate(named) if name in truth), None)
    return "other" if place is None else GRADES[min(place, 2)]


def diagnosed(folder: Path, files: Sequence[str]) -> Diagnosis:
    """The diagnosis of a run from some of its files."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in files:
            shutil.copy(folder / name, scratch)
        return diagnose(scratch)


def measure(seeds: Sequence[int], only: Sequence[str], kept: Path) -> dict[str, Any]:
    """Grades of every recipe and view, and each run whose cause is not the first."""
    chosen = [name for name in RECIPES if not only or name in only]
    planned = [
        (name, seed * RECIPES[name].times + n) for seed in seeds for name in chosen for n in range(RECIPES[name].times)
    ]
    grades: dict[str, dict[str, collections.Counter[str]]] = {
        view: collections.defaultdict(collections.Counter) for view in VIEWS
    }
    misses: list[str] = []
    with console.progress() as bars:
        task = bars.add_task("runs", total=len(planned), note="")
        for name, seed in planned:
            bars.update(task, note=f"{name}, seed {seed}")
            folder = kept / f"{name}-{seed}"
            if not (folder / "args.json").exists():
                recipes.train(spec(name, seed), seed, folder)
            for view, files in VIEWS.items():
                found = diagnosed(folder, files)
                grade = graded(found, RECIPES[name].truth)
                grades[view][name][grade] += 1
                if grade not in ("first", "healthy"):
                    misses.append(f"{view}, {name}, seed {seed}: {grade}; {found.verdict}")
            bars.advance(task)
    return {
        "grades": {view: {name: dict(row) for name, row in rows.items()} for view, rows in grades.items()},
        "misses": misses,
    }


def markdown(found: dict[str, Any]) -> str:
    """The results as tables in Markdown."""
    parts = []
    for title, chosen in SETS.items():
        for view, grades in found["grades"].items():
            rows = {name: row for name, row in grades.items() if name in chosen}
            if rows:
                parts.append(f"## {title[0].upper()}{title[1:]}: {view}\n\n{_tables(rows)}")
    misses = "\n".join(f"- {miss}" for miss in found["misses"])
    return "\n\n".join(parts) + f"\n\n{misses}\n"


def _tables(grades: dict[str, dict[str, int]]) -> str:
    """The broken runs by recipe and grade, and the healthy ones in a sentence."""
    sick = {name: row for name, row in grades.items() if RECIPES[name].truth}
    total: collections.Counter[str] = collections.Counter()
    for row in sick.values():
        total.update(row)
    runs = sum(total.values())
    rows = [["broken run", "true cause", *GRADES]]
    for name, row in sick.items():
        rows.append([name, " or ".join(RECIPES[name].truth), *(str(row.get(grade, "")) for grade in GRADES)])
    rows.append([f"all {runs}", "", *(str(total[grade]) for grade in GRADES)])
    healthy = [row for name, row in grades.items() if name not in sick]
    alarms, count = sum(row.get("false alarm", 0) for row in healthy), sum(sum(row.values()) for row in healthy)
    first, second = total["first"], total["first"] + total["second"]
    said = f"True cause first in {first} of {runs}, first or second in {second}. " if runs else ""
    return f"{said}A failure is named on {alarms} of {count} healthy runs.\n\n{table(rows)}"
