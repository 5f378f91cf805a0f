"""`python -m benchmarks.derive`: the smallest set of guards. Start from all of them, and drop each that is not needed.

Writes derived.json and the cells that were run, which a second call does not run again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.matrix import MARGIN, mean_gain
from grpo_lab.analysis.matrix import HEALTHY, HELD_OUT, Cell, Journal, Measurement, Pool, cells, rows, run_all
from grpo_lab.config.catalog import guards_named
from grpo_lab.config.catalog import scenario as scenario_of
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui import console

GAIN = 0.15
"""Held-out reward, in the mean over seeds, that a scenario has to gain so that it counts as learned here."""
Run = Callable[[tuple[str, ...]], Sequence[Measurement]]
"""A function that runs every scenario and seed, and the healthy run, under these guards."""


@dataclass(frozen=True)
class Derivation:
    """The result of the elimination: the guards kept, each with the cells that fail without it, and the others."""

    kept: dict[str, tuple[str, ...]]
    dropped: tuple[str, ...]
    """Dropped guards, in order; without them no cell got worse."""
    harmful: dict[str, str]
    """Guards that were never in the set, because they disturb a healthy run or keep one from learning, with reasons."""
    false_alarms: int
    """Steps of the healthy runs that the kept guards refuse."""


def derive(guards: Sequence[str], run: Run, learn: Run = lambda guards: ()) -> Derivation:
    """Backward elimination from all of `guards`; `run` and `learn` get their names in this order.

    `learn` returns runs that are long enough to learn from. A guard that alone refuses steps of a healthy run, lowers
    its reward, or keeps a run from learning, is never in the set. The others are tried in turn, and the guard that
    alone stops the fewest cells is tried first (ties: in the given order). A guard is dropped if without it every cell
    that survived still survives, every failure that was stopped still is, and every scenario that was learned still is.
    Rounds go on until one drops nothing, so that each guard kept is needed beside the others.
    """
    plain, lessons = run(()), learn(())
    alone = {guard: run((guard,)) for guard in guards}
    harmful = {guard: why for guard in guards if (why := objection(alone[guard], plain))}
    harmful |= {guard: "; ".join(why) for guard in guards if (why := unlearned(lessons, learn((guard,))))}
    kept = [guard for guard in guards if guard not in harmful]
    order = sorted(kept, key=lambda guard: sum(result.stopped for result in alone[guard]))
    needed: dict[str, tuple[str, ...]] = {}
    dropped: list[str] = []
    before, learned = run(tuple(kept)), learn(tuple(kept))
    again = True
    while again:
        again = False
        for guard in [name for name in order if name in kept]:
            console.report(f"deriving: without {guard}, of {len(kept)}")
            rest = [name for name in kept if name != guard]
            after, still = run(tuple(rest)), learn(tuple(rest))
            needed[guard] = lost(before, after) + unlearned(learned, still)
            if not needed[guard]:
                kept, before, learned, again = rest, after, still, True
                dropped.append(guard)
    alarms = sum(result.refused for result in before if result.scenario == HEALTHY)
    return Derivation({guard: needed[guard] for guard in kept}, tuple(dropped), harmful, alarms)


def objection(guarded: Sequence[Measurement], plain: Sequence[Measurement]) -> str:
    """The reason to leave a guard out of the set, from its healthy runs and those without guards; or an empty text."""
    with_it, without = ([result for result in results if result.scenario == HEALTHY] for results in (guarded, plain))
    refused = sum(result.refused for result in with_it)
    if refused:
        return f"{refused} false alarms on the healthy run"
    if not all(result.survived for result in with_it):
        return "the healthy run does not survive it"
    if with_it and mean_gain(with_it) < mean_gain(without) - MARGIN:
        return f"the healthy run gains {mean_gain(with_it):.3f} of reward with it, {mean_gain(without):.3f} without"
    return ""


def lost(before: Sequence[Measurement], after: Sequence[Measurement]) -> tuple[str, ...]:
    """The cells that survived or were stopped `before` and no longer are, each with its new fate."""
    then = {(result.scenario, result.seed): result for result in before}
    worse = []
    for now in after:
        was = then[now.scenario, now.seed]
        if (was.stopped and not now.stopped) or (was.survived and not now.survived):
            worse.append(f"{now.scenario}, seed {now.seed}: {now.fate}")
    return tuple(worse)


def unlearned(before: Sequence[Measurement], after: Sequence[Measurement]) -> tuple[str, ...]:
    """The scenarios learned `before`, in the mean over seeds, and no longer learned, with both gains.

    A run that did not go through gains nothing. A change within MARGIN is chance.
    """
    worse = []
    for name in dict.fromkeys(result.scenario for result in after):
        was, now = (
            statistics.fmean(0.0 if math.isnan(one.gained) else one.gained for one in runs if one.scenario == name)
            for runs in (before, after)
        )
        if was >= GAIN > now and now < was - MARGIN:
            worse.append(f"{name} gains {now:.2f}, not {was:.2f}")
    return tuple(worse)


def trial(cell: Cell) -> Cell:
    """The cell as long as its scenario's trial, in which a model can learn."""
    config = cell.config.merged(scenario_of(cell.scenario).trial).with_(f"run.num_eval={HELD_OUT}")
    return dataclasses.replace(cell, config=config)


def main(
    guard: Annotated[list[str] | None, typer.Option(help="A guard to try; repeatable; by default all.")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help="A scenario, or `healthy`; repeatable.")] = None,
    learn: Annotated[list[str] | None, typer.Option(help="A scenario that has to be learned; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each cell: 0, 1, …")] = 3,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of a run; by default those of its file.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells to run in parallel.")] = os.cpu_count() or 1,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds after which a cell counts as hung.")] = 120.0,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/derive"),
) -> None:
    """Find the set by backward elimination, and print it."""
    names, lessons, settings = rows(scenario or ()), rows(learn) if learn else [], guards_named(",".join(GUARDS))
    pool, journal = Pool(limit), Journal(out / "cells.jsonl")

    def finished(wanted: Sequence[Cell]) -> list[Measurement]:
        if not run_all(wanted, journal, pool, jobs):
            console.report(f"stopped: finished cells are in {out}; the same command goes on from there")
            raise typer.Exit(130)
        return journal.of(wanted)

    def column(name: str, kept: tuple[str, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {name: {guard: settings[guard] for guard in kept}}

    with closing(pool):
        found = derive(
            [name for name in GUARDS if name in (guard or GUARDS)],
            lambda kept: finished(cells(names, column("derived", kept), seeds, steps)),
            lambda kept: finished([trial(cell) for cell in cells(lessons, column("learns", kept), seeds)]),
        )
    (out / "derived.json").write_text(json.dumps(dataclasses.asdict(found), indent=2) + "\n", encoding="utf-8")
    console.say(f"derived: {', '.join(found.kept) or 'no guard'}")


if __name__ == "__main__":
    typer.run(main)
