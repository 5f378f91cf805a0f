"""`python -m benchmarks.fairness`: does every known answer to the labs earn what it should, with twenty seeds?

A right answer has to earn all points with each seed, in both rounds of a grade. A near miss has to earn none, and any
other wrong answer none with two seeds; each is told its reason. Writes results/fairness.md. The tests do the same with
fewer seeds where the check trains.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from grpo_lab.analysis.markdown import table
from grpo_lab.course import registry
from grpo_lab.course.tried_answers import fault
from grpo_lab.ui import console
from tests.grading import mutants

SEEDS = [0, *(random.Random(17 + number).randrange(1, 2**31) for number in range(20))]
"""The inputs of the notebook, and twenty seeds like a grader's: 31 bits, drawn from a secret."""
PAGE = Path(__file__).parent / "results" / "fairness.md"
HEADER = ("exercise", "right", "near", "wrong", "seeds", "wrong scores")
WORDS = """# Known answers of the labs

Made by `{command}` in {minutes} minutes: {counted}.
A right answer earns all points with each seed, in both rounds of a grade; a wrong one earns none, and is told its
reason. Right answers and near misses are tried with *seeds* seeds: 1 where an exercise asks the same with every seed.
Other wrong answers are tried with two, and with one where they lose by a training run.

**Wrong scores: {faults}.**

{table}
"""


class Tried(NamedTuple):
    """An exercise, the numbers of its known answers by kind, the seeds, and the faults."""

    exercise: str
    counts: tuple[int, ...]
    seeds: int
    faults: list[str]


def tried(answers: Sequence[mutants.KnownAnswer], seeds: Sequence[int]) -> Tried:
    """The known answers to one exercise, each with every seed that it needs."""
    faults = []
    for each in answers:
        if said := fault(each, registry.lab_folder(each.lab), needed(each, seeds)):
            faults.append(f"{each}: {said}")
    counts = tuple(sum(each.kind == kind for each in answers) for kind in (mutants.RIGHT, mutants.NEAR, mutants.WRONG))
    most = len(needed(answers[0], seeds))
    return Tried(f"{answers[0].lab}/{answers[0].exercise}", counts, most, faults)


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds besides 0.")] = 20,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Try every known answer and write the page; exit code 1 for a wrong score."""
    os.environ["OMP_NUM_THREADS"] = "1"
    together: dict[str, list[mutants.KnownAnswer]] = {}
    for each in (*mutants.references(), *mutants.right(), *mutants.near(), *mutants.wrong()):
        together.setdefault(f"{each.lab}/{each.exercise}", []).append(each)
    # What trains with each seed comes first, because it takes longest.
    order = sorted(together.values(), key=lambda answers: not mutants.trains(answers[0]))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        begun = time.monotonic()
        found = []
        for each in pool.map(tried, order, [SEEDS[: seeds + 1]] * len(order)):
            console.say(f"{each.exercise}: {len(each.faults)} wrong scores")
            found.append(each)
    found.sort()
    rows = [[each.exercise, *map(str, each.counts), str(each.seeds), str(len(each.faults))] for each in found]
    console.out.print(console.table([HEADER, *rows]))
    faults = [fault for each in found for fault in each.faults]
    right, near, wrong = (sum(each.counts[place] for each in found) for place in range(3))
    PAGE.write_text(
        WORDS.format(
            command=f"python -m benchmarks.fairness --seeds {seeds}",
            counted=f"{right} right answers with the references, {near} near misses and {wrong} other wrong answers",
            minutes=math.ceil((time.monotonic() - begun) / 60),
            faults=len(faults),
            table=table([HEADER, *rows]),
        ),
        encoding="utf-8",
    )
    for each in faults:
        console.say(each)
    if faults:
        raise typer.Exit(1)


def needed(answer: mutants.KnownAnswer, seeds: Sequence[int]) -> Sequence[int]:
    """The seeds that an answer is tried with.

    One is enough for a check that does not look at it, and for a wrong answer that loses by a run: each run costs
    seconds. Other wrong answers are far off, so that two are enough, and the one that recites what the notebook asks
    is right there, with the first seed.
    """
    if not mutants.draws(answer) or (answer.kind == mutants.WRONG and mutants.trains(answer)):
        return seeds[:1]
    if answer.kind == mutants.WRONG:
        return seeds[1:2] if answer.name == mutants.HARD_CODED else seeds[:2]
    return seeds


if __name__ == "__main__":
    typer.run(main)
