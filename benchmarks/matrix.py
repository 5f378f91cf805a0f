"""`python -m benchmarks.matrix PARTIAL… --made … --why …`: put rows into the published matrix, docs/matrix.

PARTIAL is the folder of a `grpo-lab matrix --scenario …` with the same columns and seeds, or of a `--column …` with the
same scenarios; `--made` is its command. Its rows replace the old ones or are added. The table, the figure and the page
are written again; the page names the command of these rows.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_lab.analysis.markdown import number, render
from grpo_lab.analysis.matrix import (
    AT_LEAST,
    HEALED,
    HEALTHY,
    HELD_OUT,
    NONE,
    REPORTED,
    STABLE,
    STEPS,
    UNHEALED,
    Fate,
    Findings,
    Measurement,
    summary,
    to_csv,
    without,
)
from grpo_lab.config.catalog import load_preset, scenario
from grpo_lab.errors import ConfigError
from grpo_lab.runs import environment
from grpo_lab.ui import plots

MARGIN = 0.05
"""The difference in held-out reward from which on a column counts as worse than another: two standard errors of the
difference between two means over 3 seeds of 250 problems."""
MEANINGS = {
    Fate.STOPPED: "the run went through and trained, and the symptom showed in no step",
    Fate.REFUSED: "the run went through and trained; the symptom showed only in steps that a guard refused",
    Fate.IDLE: "the run went through without the symptom, but no update was kept",
    Fate.SHOWN: "the run went through, and the symptom showed in a step that counted",
    Fate.BROKEN: "the run went through and left weights that are not finite",
    Fate.HALTED: "a guard ended the run, with the last healthy weights in place",
    Fate.CRASHED: "the run ended in an error, killed its process, or hung",
    Fate.FAILED: "nothing was measured, because of a mistake in model, data or rewards",
}
KINDS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: int,
    Fate: Fate,
    bool: "True".__eq__,
    float: lambda text: float(text or "nan"),
}
"""For each type of a field, the function that reads it from a cell of the table."""
Rows = dict[tuple[str, str, int], Measurement]
"""Rows by scenario, column and seed."""
MADE = re.compile(r"^Made by `.+?(?=\n\n)", re.MULTILINE | re.DOTALL)
"""The paragraph of the page that names the commands."""


def main(
    partials: Annotated[
        list[Path], typer.Argument(help="Folders of what was measured, the later ones over the earlier.")
    ],
    made: Annotated[list[str], typer.Option(help="The command that made a folder; once for each, in their order.")],
    why: Annotated[str, typer.Option(help="Why it was measured: because …")],
    published: Annotated[Path, typer.Option(help="Folder of the whole matrix.", exists=True)] = Path("docs/matrix"),
) -> None:
    """Put the rows into the published matrix."""
    old = {_name(row): row for row in read(published / "cells.csv")}
    new: Rows = {}
    told = [said_by(published / "findings.md")]
    for partial, command in zip(partials, made, strict=True):
        rows = {_name(row): row for row in read(partial / "cells.csv")}
        told.append(f"{_in_words(old, rows)} {why}: `{command}`.")
        new |= rows
    results = merged(old, new)
    found = Findings(results)
    (published / "cells.csv").write_text(to_csv(results), encoding="utf-8")
    figure = plots.save(plots.heat_map_figure(found), published / "heat_map.png")
    text = page(found, figure.name, "")
    (published / "findings.md").write_text(MADE.sub(lambda _: "\n".join(told), text, count=1), encoding="utf-8")
    replaced = [name for name in new if name in old]
    fates = sum(new[name].fate != old[name].fate for name in replaced)
    print(f"{len(replaced)} rows replaced, of which {fates} have another fate; {len(new) - len(replaced)} added")


def read(path: Path) -> list[Measurement]:
    """The rows of a `cells.csv`."""
    fields = {field.name: KINDS[field.type] for field in dataclasses.fields(Measurement)}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [Measurement(**{name: kind(row[name]) for name, kind in fields.items() if name in row}) for row in rows]


def merged(old: Rows, new: Rows) -> list[Measurement]:
    """The old rows with the new ones in their places, and those of new scenarios and columns in their order.

    Raises BadParameter unless every failure then has the same columns and seeds, and the healthy run has all but those
    of the heals.
    """
    rows = old | new
    scenarios, columns, seeds = (list(dict.fromkeys(names)) for names in zip(*rows, strict=True))
    heals = (UNHEALED, HEALED)
    whole = {name for name in product(scenarios, columns, seeds) if name[0] != HEALTHY or name[1] not in heals}
    if whole != set(rows):
        raise typer.BadParameter(
            f"{len(whole - set(rows))} rows would be missing, as {min(whole - set(rows))}; "
            "measure whole scenarios, or a whole column, with the seeds of the published matrix"
        )
    return [rows[name] for name in sorted(rows, key=lambda name: (name[0] != HEALTHY, name[0], columns.index(name[1])))]


def said_by(page: Path) -> str:
    """The paragraph of a page that names the commands which made it."""
    if found := MADE.search(page.read_text(encoding="utf-8")):
        return found.group()
    raise typer.BadParameter(f"{page} does not say by which command it was made")


def _name(row: Measurement) -> tuple[str, str, int]:
    return row.scenario, row.column, row.seed


def _in_words(old: Rows, new: Rows) -> str:
    """The rows that were measured: a column of all scenarios, or all columns of some."""
    scenarios, columns, _ = (list(dict.fromkeys(names)) for names in zip(*new, strict=True))
    known = {row.scenario for row in old.values()} - {HEALTHY}
    kind, names = ("columns", columns) if known <= set(scenarios) else ("rows of", scenarios)
    return f"The {kind} {', '.join(f'`{name}`' for name in names)} were measured"


# --- the page --------------------------------------------------------------------------------------------------------


def page(found: Findings, figure: str, command: str) -> str:
    """The page of findings in Markdown, from data/templates/matrix.md; `figure` is the file of the heat map."""
    here = environment.describe(threads=1)
    versions = ", ".join(f"{name} {here['packages'][name]}" for name in ("grpo-lab", "torch", "transformers"))
    left_out = [column.removeprefix(without("")) for column in found.columns if column.startswith(without(""))]
    unneeded = "nothing more: it is not needed here"
    return render(
        "matrix",
        found=found,
        file=figure,
        alt=heat_map_in_words(found),
        command=command,
        machine=f"{here['platform']}, {here['cpu_count']} cores, one thread a run, Python {here['python']}, {versions}",
        lengths=sorted({result.asked for result in found.results}),
        at_least=AT_LEAST,
        steps=STEPS,
        held_out=HELD_OUT,
        margin=MARGIN,
        fates=MEANINGS,
        reported=REPORTED,
        stable=STABLE,
        stable_source=load_preset(STABLE).source,
        failures=_failures(found) if found.of_guards else [],
        algorithms=_algorithms(found),
        titles={name: _of_scenario(name, attrgetter("title"), "a scenario of your own") for name in found.scenarios},
        needed=[[guard, ", ".join(needed_for(found, guard)) or unneeded] for guard in left_out],
        idle=idle(found),
        heals=_heals(found),
        healthy=_healthy(found),
        # Cells that did not end by themselves, or measured nothing.
        disturbed=sorted(
            (r for r in found.results if r.status not in ("done", "stopped", "crashed")), key=lambda r: r.status
        ),
    )


def heals(found: Findings, scenario: str) -> tuple[int, int]:
    """Seeds on which the healed run learns and ends above the unhealed run, and seeds on which it was tried.

    An unhealed run that crashed counts as one that ends lower.
    """
    unhealed = {result.seed: result.after for result in found.cells(scenario, UNHEALED)}
    healed = found.cells(scenario, HEALED)
    better = [result for result in healed if not result.after <= unhealed.get(result.seed, -math.inf)]
    return sum(result.learned for result in better), len(healed)


def outcome(found: Findings, scenario: str, column: str) -> str:
    """The fates of all runs under a column, and how many of them learned: `crashed`, `shown, 2 of 3 learn`."""
    cells = found.cells(scenario, column)
    fates = Counter(result.fate for result in cells)
    words = [f"{fate} {count}" if len(fates) > 1 else fate for fate, count in fates.most_common()]
    if any(result.survived for result in cells):
        words.append(f"{sum(result.learned for result in cells)} of {len(cells)} learn")
    return ", ".join(words) or "-"


def partial(found: Findings, scenario: str) -> list[str]:
    """Guards that alone stop the failure on some seeds only, or refuse every step that shows it."""
    told = []
    for guard in found.guards:
        fates = found.fates(scenario, guard)
        ways = {"stops": fates[Fate.STOPPED], "refuses": fates[Fate.REFUSED]}
        said = ", ".join(f"{way} {count}" for way, count in ways.items() if count)
        if said and found.share(scenario, guard) < 1:
            told.append(f"{guard} ({said} of {fates.total()})")
    return told


def idle(found: Findings) -> list[str]:
    """Guards that alone neither stop nor refuse any failure on any seed."""
    seen = {guard: Counter[str]() for guard in found.guards}
    for guard, fates in seen.items():
        for name in found.scenarios:
            fates.update(found.fates(name, guard))
    return [guard for guard, fates in seen.items() if not fates[Fate.STOPPED] + fates[Fate.REFUSED]]


def needed_for(found: Findings, guard: str) -> list[str]:
    """Scenarios that `stable` stops or survives on more seeds with the guard than without it, with the numbers."""
    told = []
    for name in found.scenarios:
        full, less = found.telling(name, STABLE), found.telling(name, without(guard))
        lost = [
            f"{what} {sum(map(test, full))} to {sum(map(test, less))} of {len(full)}"
            for what, test in (("survives", attrgetter("survived")), ("stopped", attrgetter("stopped")))
            if less and sum(map(test, less)) < sum(map(test, full))
        ]
        if lost:
            told.append(f"{name} ({', '.join(lost)})")
    return told


def cost(found: Findings, column: str) -> float:
    """Seconds a step of the healthy run, divided by those without guards: the median over seeds."""
    plain = {result.seed: result.seconds for result in found.cells(HEALTHY, NONE)}
    ratios = [r.seconds / plain[r.seed] for r in found.cells(HEALTHY, column) if r.seed in plain]
    return statistics.median(ratios) if ratios else math.nan


def mean_gain(results: Iterable[Measurement]) -> float:
    """Mean held-out reward gained by the runs that went through; NaN if none did."""
    gains = [result.gained for result in results if not math.isnan(result.gained)]
    return statistics.fmean(gains) if gains else math.nan


def heat_map_in_words(found: Findings) -> str:
    """The alternative text of the heat map."""
    size = f"{len(found.scenarios)} scenarios by {len(found.columns)} columns of"
    if found.algorithms and not found.guards:
        said = _stopped_by(found, found.algorithms)
        return f"Heat map, {size} algorithms, {found.seeds} seeds. Stopped by: {said or 'none'}."
    parts = [f"Heat map, {size} guards, {found.seeds} seeds."]
    if under_stable := [name for name in found.scenarios if found.telling(name, STABLE)]:
        stopped = [name for name in under_stable if found.share(name, STABLE) == 1]
        names = f": {', '.join(stopped)}" if stopped else ""
        parts.append(f"stable stops {len(stopped)} of {len(under_stable)} on every seed{names}.")
    if found.guards:
        never = [name for name in found.scenarios if not found.stoppers(name, found.guards)]
        alone = _stopped_by(found, found.guards)
        parts.append(f"Stopped by one guard alone: {alone or 'none'}. By no guard alone: {', '.join(never) or 'none'}.")
    if found.has_healthy:
        loud = [column for column in found.columns if found.alarms(column)]
        parts.append(f"False alarms on the healthy run: {', '.join(loud) or 'none'}.")
    return " ".join(parts)


def _stopped_by(found: Findings, columns: list[str]) -> str:
    """Each failure that one of the columns stops, with these columns."""
    stoppers = {name: found.stoppers(name, columns) for name in found.scenarios}
    return "; ".join(f"{name}: {', '.join(by)}" for name, by in stoppers.items() if by)


def _failures(found: Findings) -> list[list[str]]:
    rows = [["scenario", "no guard", "one guard that stops it", "in part", REPORTED, STABLE, f"reward under {STABLE}"]]
    for name, none, stoppers, reported, stable in summary(found)[1:]:
        links = dict.fromkeys(result.first_break for result in found.telling(name, NONE) if result.first_break)
        cause = f" ({', '.join(links)})" if links else ""
        in_part = ", ".join(partial(found, name)) or "none"
        rows.append([name, none + cause, stoppers, in_part, reported, stable, _reward(found, name, STABLE)])
    return rows


def _algorithms(found: Findings) -> list[list[str]]:
    """A row for each scenario and a column for each algorithm; no rows if none was measured."""
    if not (names := found.algorithms):
        return []
    body = [[name, *(outcome(found, name, column) for column in (NONE, *names))] for name in found.scenarios]
    return [["scenario", NONE, *names], *body]


def _of_scenario(name: str, read: Callable[[Any], str], otherwise: str) -> str:
    """What a scenario's file says; an instructor's own file is not here, and one may no longer name a heal."""
    try:
        return read(scenario(name))
    except (ConfigError, IndexError):
        return otherwise


def _reward(found: Findings, name: str, column: str) -> str:
    """Mean before and after, over the runs that went through."""
    ends = [(r.before, r.after) for r in found.cells(name, column) if not math.isnan(r.gained)]
    if not ends:
        return "-"
    before, after = (sum(values) / len(ends) for values in zip(*ends, strict=True))
    return f"{number(before, 2)} to {number(after, 2)}"


def _heals(found: Findings) -> list[list[str]]:
    """A row for each scenario whose heal was tried; no rows if none was."""
    rows = []
    for name in found.scenarios:
        good, tried = heals(found, name)
        if tried:
            heal = _of_scenario(name, lambda case: ", ".join(case.heals[0].change), "-")
            ends = (_reward(found, name, column) for column in (UNHEALED, HEALED))
            rows.append([name, heal, *ends, f"{good} of {tried} seeds"])
    return [["scenario", "heal", f"reward under {STABLE}", "healed too", "heals"], *rows] if rows else []


def _healthy(found: Findings) -> list[list[str]]:
    """A row for each column of guards with a healthy run."""
    rows = [["guards", "false alarms", "steps changed", "reward", "gain against none", "time a step"]]
    plain = mean_gain(found.cells(HEALTHY, NONE))
    for column in found.columns:
        if cells := found.cells(HEALTHY, column):
            finished = sum(result.finished for result in cells)
            difference = mean_gain(cells) - plain
            gain = "-" if math.isnan(difference) else f"{difference:+.3f}" + " (lost)" * (difference < -MARGIN)
            changed = f"{sum(result.changed for result in cells)} of {finished}"
            alarms, time = f"{found.alarms(column)} of {finished}", f"{cost(found, column):.2f} x"
            rows.append([column, alarms, changed, _reward(found, HEALTHY, column), gain, time])
    return rows


if __name__ == "__main__":
    typer.run(main)
