"""`python -m benchmarks.update_matrix PARTIAL… --why …`: put rows into the published matrix.

PARTIAL is the folder of a `grpo-lab matrix --scenario …` with the same columns and seeds, or of a `--column …` with the
same scenarios. Its rows replace the old ones or are added. The table, the figure and the page are written again; the
page names the command of these rows.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_lab.analysis.matrix.cells import HEALED, HEALTHY, UNHEALED
from grpo_lab.analysis.matrix.findings import Findings
from grpo_lab.analysis.matrix.page import page
from grpo_lab.analysis.matrix.results import Fate, Measurement, to_csv
from grpo_lab.ui import plots

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
HEALS = (UNHEALED, HEALED)
MADE = re.compile(r"^Made by `.+?(?=\n\n)", re.MULTILINE | re.DOTALL)
"""The paragraph of the page that names the command."""


def main(
    partials: Annotated[
        list[Path], typer.Argument(help="Folders of what was measured, the later ones over the earlier.")
    ],
    why: Annotated[str, typer.Option(help="Why it was measured: because …")],
    published: Annotated[Path, typer.Option(help="Folder of the whole matrix.", exists=True)] = Path("docs/matrix"),
) -> None:
    """Put the rows into the published matrix."""
    old = read(published / "cells.csv")
    new: Rows = {}
    made = [_made(published)]
    for partial in partials:
        rows = {_name(row): row for row in read(partial / "cells.csv")}
        command = _made(partial).removeprefix("Made by ").rstrip(".")
        made.append(f"{_in_words(old, rows)} {why}: {command}.")
        new |= rows
    results = merged(old, new)
    found = Findings(results)
    (published / "cells.csv").write_text(to_csv(results), encoding="utf-8")
    figure = plots.save(plots.heat_map_figure(found), published / "heat_map.png")
    text = page(found, (figure.name, plots.heat_map_in_words(found)), "")
    (published / "findings.md").write_text(MADE.sub(lambda _: "\n".join(made), text, count=1), encoding="utf-8")
    before = {_name(row): row.fate for row in old}
    fates = sum(row.fate != before[name] for name, row in new.items() if name in before)
    print(f"{sum(name in before for name in new)} rows replaced, of which {fates} have another fate; ", end="")
    print(f"{sum(name not in before for name in new)} added")


def read(path: Path) -> list[Measurement]:
    """The rows of a `cells.csv`."""
    fields = {field.name: KINDS[field.type] for field in dataclasses.fields(Measurement)}
    with path.open(encoding="utf-8", newline="") as file:
        return [Measurement(**{name: kind(row[name]) for name, kind in fields.items()}) for row in csv.DictReader(file)]


def merged(old: list[Measurement], new: Rows) -> list[Measurement]:
    """The old rows with the new ones in their places, and those of new scenarios and columns in their order.

    Raises BadParameter unless every failure then has the same columns and seeds, and the healthy run has all but those
    of the heals.
    """
    rows = {_name(row): row for row in old} | new
    scenarios, columns, seeds = (list(dict.fromkeys(names)) for names in zip(*rows, strict=True))
    whole = {name for name in product(scenarios, columns, seeds) if name[0] != HEALTHY or name[1] not in HEALS}
    if whole != set(rows):
        raise typer.BadParameter(
            f"{len(whole - set(rows))} rows would be missing, as {min(whole - set(rows))}; "
            "measure whole scenarios, or a whole column, with the seeds of the published matrix"
        )
    return [rows[name] for name in sorted(rows, key=lambda name: (name[0] != HEALTHY, name[0], columns.index(name[1])))]


def _name(row: Measurement) -> tuple[str, str, int]:
    return row.scenario, row.column, row.seed


def _in_words(old: list[Measurement], new: Rows) -> str:
    """The rows that were measured: a column of all scenarios, or all columns of some."""
    scenarios, columns, _ = (list(dict.fromkeys(names)) for names in zip(*new, strict=True))
    known = {row.scenario for row in old} - {HEALTHY}
    kind, names = ("columns", columns) if known <= set(scenarios) else ("rows of", scenarios)
    return f"The {kind} {', '.join(f'`{name}`' for name in names)} were measured"


def _made(folder: Path) -> str:
    found = MADE.search((folder / "findings.md").read_text(encoding="utf-8"))
    if not found:
        raise typer.BadParameter(f"{folder / 'findings.md'} does not say by which command it was made")
    return found.group()


if __name__ == "__main__":
    typer.run(main)
