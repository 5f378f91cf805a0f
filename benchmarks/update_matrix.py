"""`python -m benchmarks.update_matrix PARTIAL PUBLISHED --why …`: replace rows of the published matrix.

PARTIAL is the folder of a `grpo-lab matrix --scenario …` with the same columns and seeds. Its rows replace the old rows
of the same scenarios. The table, the figure and the page are written again; the page names the command of these rows.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

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
MADE = re.compile(r"^Made by `.+?(?=\n\n)", re.MULTILINE | re.DOTALL)
"""The paragraph of the page that names the command."""


def main(
    partial: Annotated[Path, typer.Argument(help="Folder of the rows that were measured again.", exists=True)],
    why: Annotated[str, typer.Option(help="Why they were measured again: because …")],
    published: Annotated[Path, typer.Argument(help="Folder of the whole matrix.", exists=True)] = Path("docs/matrix"),
) -> None:
    """Put the rows into the published matrix."""
    old, new = read(published / "cells.csv"), {_name(row): row for row in read(partial / "cells.csv")}
    results = merged(old, new)
    scenarios = ", ".join(f"`{name}`" for name in dict.fromkeys(row.scenario for row in new.values()))
    command = _made(partial).removeprefix("Made by ").rstrip(".")
    made = f"{_made(published)}\nThe rows of {scenarios} were measured again {why}: {command}."
    found = Findings(results)
    (published / "cells.csv").write_text(to_csv(results), encoding="utf-8")
    figure = plots.save(plots.heat_map_figure(found), published / "heat_map.png")
    text = page(found, (figure.name, plots.heat_map_in_words(found)), "")
    (published / "findings.md").write_text(MADE.sub(lambda _: made, text, count=1), encoding="utf-8")
    fates = sum(before.fate != after.fate for before, after in zip(old, results, strict=True))
    print(f"{len(new)} rows replaced; the fate differs in {fates}")


def read(path: Path) -> list[Measurement]:
    """The rows of a `cells.csv`."""
    fields = {field.name: KINDS[field.type] for field in dataclasses.fields(Measurement)}
    with path.open(encoding="utf-8", newline="") as file:
        return [Measurement(**{name: kind(row[name]) for name, kind in fields.items()}) for row in csv.DictReader(file)]


def merged(old: list[Measurement], new: dict[tuple[str, str, int], Measurement]) -> list[Measurement]:
    """The old rows with the new ones in their places.

    Raises BadParameter unless the new rows are exactly those of whole scenarios of the old table.
    """
    scenarios = {row.scenario for row in new.values()}
    wanted = {_name(row) for row in old if row.scenario in scenarios}
    if wanted != set(new):
        raise typer.BadParameter(
            f"{sorted(scenarios)}: {len(wanted - set(new))} rows are missing and {len(set(new) - wanted)} are unknown; "
            "measure whole scenarios with the columns and seeds of the published matrix"
        )
    return [new.get(_name(row), row) for row in old]


def _name(row: Measurement) -> tuple[str, str, int]:
    return row.scenario, row.column, row.seed


def _made(folder: Path) -> str:
    found = MADE.search((folder / "findings.md").read_text(encoding="utf-8"))
    if not found:
        raise typer.BadParameter(f"{folder / 'findings.md'} does not say by which command it was made")
    return found.group()


if __name__ == "__main__":
    typer.run(main)
