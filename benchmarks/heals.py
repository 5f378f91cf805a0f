"""`python -m benchmarks.heals`: does the heal of each scenario heal on seeds that were not used to find it?

Trains every scenario's trial under the guards of `stable`, without its heal and with it, on five fresh seeds. Writes
results/heals.md. With `--scenario` only some are trained, and their rows put into the page that is there.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.analysis.markdown import number, table
from grpo_lab.analysis.matrix.cells import HEALED, HELD_OUT, UNHEALED, Cell, cells
from grpo_lab.analysis.matrix.results import GAIN
from grpo_lab.config.catalog import scenario, scenario_names
from grpo_lab.events import Ended, Evaluated, Stepped
from grpo_lab.runs import child_pool, environment
from grpo_lab.runs.parallel import side_by_side
from grpo_lab.runs.session import Session
from grpo_lab.ui import console

LARGE = 10
"""A healed run stays below this norm, but for the steps that the table counts."""
HEADER = ["scenario", "heal", "before", "guards alone, by seed", "healed, by seed", "gains", "above", "largest norm"]
HEADER += [f"steps above {LARGE}"]
MADE = re.compile("^Made by .+$", re.MULTILINE)
"""The lines of the page that name the commands."""
Run = dict[str, float]
"""Held-out reward `before` and `after`, the largest norm, and the number of steps with a norm above LARGE."""


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each run.")] = 5,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 100,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = os.cpu_count() or 1,
    only: Annotated[list[str] | None, typer.Option("--scenario", help="A scenario to train; repeatable.")] = None,
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("benchmarks/results/heals.md"),
) -> None:
    """Train every trial, healed and not, and write a table of rewards and norms."""
    names = only or scenario_names()
    wanted = cells(names, {}, seeds, heals=True, first=first)
    runs = train(wanted, jobs)
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for cell in wanted:
        found[cell.scenario, cell.column].append(runs[same(cell)])
    rows = [row(name, found[name, UNHEALED], found[name, HEALED]) for name in names]
    here = environment.describe(threads=1)
    some = "".join(f" --scenario {name}" for name in only or ())
    command = f"python -m benchmarks.heals --seeds {seeds} --first {first}{some}"
    page = f"""# The heals on {seeds} fresh seeds

Made by `{command}` on a CPU, torch {here["packages"]["torch"]}.
Both runs have the guards of `stable` and the length and batch of the scenario's trial. Rewards are means of {HELD_OUT}
held-out problems, of each objective where there are several, whose mean is taken; `-` means that the run did not end.
*gains*: seeds on which the healed run gains {GAIN} or more. *above*: seeds on which it ends above the run with guards
alone.

{table([HEADER, *rows], literal=True)}
"""
    out.write_text(with_rows(out.read_text(encoding="utf-8"), page) if only else page, encoding="utf-8")
    console.out.print(console.table([HEADER, *rows]))


def with_rows(old: str, new: str) -> str:
    """The new page with the rows of the old one that it lacks, and the commands of both."""
    lines = [line for page in (old, new) for line in page.splitlines() if line.startswith("| ")]
    header, *body = {line.split(" | ")[0]: line for line in lines}.values()
    made = "\n".join(dict.fromkeys(MADE.findall(old) + MADE.findall(new)))
    text = MADE.sub(lambda _: made, new[: new.index("\n| ")])
    return "\n".join([text, header, "|" + "---|" * len(HEADER), *sorted(body), ""])


def train(wanted: list[Cell], jobs: int) -> dict[str, Run]:
    """The result of every run; scenarios that heal to the same config share one."""
    unique = list({same(cell): cell for cell in wanted}.values())

    def run(cell: Cell) -> tuple[str, Run]:
        with child_pool.warm_child() as child:
            session = Session(cell.config, None, child=child)
            session.run()
        return same(cell), measured(session)

    with console.progress() as bars:
        task = bars.add_task("runs", total=len(unique), note="")
        results = {}
        for key, result in side_by_side(unique, run, jobs, lambda: None):
            results[key] = result
            bars.update(task, advance=1)
    if len(results) < len(unique):
        raise typer.Exit(1)
    return results


def same(cell: Cell) -> str:
    """The config without its name."""
    return json.dumps(cell.config.with_("run.name=heals").to_dict(), sort_keys=True)


def measured(session: Session) -> Run:
    """The numbers of a run; `after` is NaN unless it ended."""
    rewards = [event.reward for event in session.events if isinstance(event, Evaluated)]
    steps = [event.metrics for event in session.events if isinstance(event, Stepped)]
    norms = [metrics["grad_norm"] for metrics in steps if "grad_norm" in metrics]
    done = any(isinstance(event, Ended) and event.status == "done" for event in session.events)
    large = sum(not norm <= LARGE for norm in norms)
    return {
        "before": rewards[0],
        "after": rewards[1] if done and len(rewards) > 1 else float("nan"),
        "norm": max(norms, key=lambda norm: (norm != norm, norm)),
        "large": large,
    }


def row(name: str, unhealed: list[Run], healed: list[Run]) -> list[str]:
    """The cells of one scenario."""
    gains = sum(run["after"] - run["before"] >= GAIN for run in healed)
    pairs = zip(healed, unhealed, strict=True)
    above = sum(after["after"] == after["after"] and not after["after"] <= other["after"] for after, other in pairs)
    return [
        name,
        ", ".join(scenario(name).heals[0].change),
        number(statistics.fmean(run["before"] for run in healed), 2),
        *(", ".join(number(run["after"], 2) for run in runs) for runs in (unhealed, healed)),
        f"{gains} of {len(healed)}",
        f"{above} of {len(healed)}",
        number(max(run["norm"] for run in healed), 2),
        str(sum(int(run["large"]) for run in healed)),
    ]


if __name__ == "__main__":
    typer.run(main)
