"""Predicted and measured peak memory, and the table of a report that halved its memory, row by row.

Each row is predicted in one process and measured in others: `--repeat` children that make three steps each. Rows that
are not chosen stay in the results.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import shapes
from benchmarks.__main__ import about
from benchmarks.timing import PRETRAINED, settle
from grpo_lab.config.schema import Config
from grpo_lab.models.registry import MODELS

RESULTS = Path("benchmarks/results")
REPORT = (*PRETRAINED, "data.num_generations=2", "sampling.max_completion_length=128")
"""The batch of the report on SmolLM2-135M: 4 prompts, here with 2 completions each, of 128 tokens."""
TWICE, SHORT, LORA, LOW = (
    ("data.micro_batch_prompts=2",),
    ("sampling.max_completion_length=96",),
    ("lora.r=16",),
    ("lora.r=8",),
)
TINY = ("data.num_prompts=16", "data.num_generations=8", "sampling.max_completion_length=8")
ROWS: dict[str, tuple[str, ...]] = {
    "tiny: 16 × 8 completions of 8 tokens": TINY,
    "tiny: 32 × 8 completions of 24 tokens": (*TINY, "data.num_prompts=32", "sampling.max_completion_length=24"),
    "tiny: the same, four prompts a pass": (
        *TINY,
        "data.num_prompts=32",
        "sampling.max_completion_length=24",
        "data.micro_batch_prompts=4",
    ),
    "135M: 4 × 4 completions of 12 tokens": PRETRAINED,
    "full: batch of 4, 128 tokens": REPORT,
    "full: batch of 2 in two passes": (*REPORT, *TWICE),
    "full: 96 tokens": (*REPORT, *SHORT),
    "full: both": (*REPORT, *TWICE, *SHORT),
    "lora: batch of 4, 128 tokens, r = 16": (*REPORT, *LORA),
    "lora: batch of 2 in two passes": (*REPORT, *LORA, *TWICE),
    "lora: 96 tokens": (*REPORT, *LORA, *SHORT),
    "lora: r = 8": (*REPORT, *LOW),
    "lora: all three": (*REPORT, *LOW, *TWICE, *SHORT),
}
"""The other rows of `full` and of `lora` are compared with the first of their group."""
CLAIMS = {"batch of 2 in two passes": "~40 %", "96 tokens": "~20 %", "r = 8": "~15 %"}
"""Savings as the report has them; nothing there says how they were found."""


def main(
    only: Annotated[list[str] | None, typer.Option(help="Rows that begin so: tiny, 135M, full, lora.")] = None,
    repeat: Annotated[int, typer.Option(help="Measurements of each row.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = RESULTS,
    row: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Predict and measure, print the table, and write memory_parts.json and memory_parts.md."""
    if row:
        return print(json.dumps(predicted_and_measured(Config.from_dict(json.loads(row)), repeat)))
    console, path = Console(stderr=True), out / "memory_parts.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}
    chosen = [name for name in ROWS if not only or name.startswith(tuple(only))]
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            console.print(f"{name} …", style="dim")
            found = in_a_process(settle(settings(ROWS[name], Path(folder))), repeat)
            rows[name] = {**found, "environment": about()["environment"]}
            write(out, {key: rows[key] for key in ROWS if key in rows})
    print(table(rows))


def settings(row: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """The settings of a row; where SmolLM2-135M was not fetched, of its shape with random weights."""
    if "model.name=smollm2-135m" not in row or MODELS["smollm2-135m"].present:
        return row
    return (*row, f"model.name={shapes.save('135M', folder)}")


def in_a_process(config: Config, repeat: int) -> dict[str, Any]:
    """`predicted_and_measured` in a fresh process, so that it has imported the same each time."""
    command = [sys.executable, "-m", "benchmarks.memory_parts", "--repeat", str(repeat)]
    command += ["--row", json.dumps(config.to_dict())]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(said.stdout.splitlines()[-1])


def predicted_and_measured(config: Config, repeat: int) -> dict[str, Any]:
    """MiB of each part, of the predicted peak, and of each measurement."""
    from grpo_lab.runs import session  # noqa: F401, as the command line has imported it
    from grpo_lab.runs.measured_memory import measure
    from grpo_lab.runs.memory import predict

    found = predict(config)
    parts = {name: [round(size, 1) for size in sizes] for name, sizes in found.parts.items()}
    measured = [round(measure(config), 1) for _ in range(repeat)]
    return {
        "model": config.model.name,
        "predicted": round(found.peak, 1),
        "when": found.when,
        "measured": measured,
        "parts": parts,
    }


def write(out: Path, rows: dict[str, Any]) -> None:
    """Write both files, at once after each row."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"command": "python -m benchmarks.memory_parts", "rows": rows}, indent=1)
    (out / "memory_parts.json").write_text(text + "\n", encoding="utf-8")
    (out / "memory_parts.md").write_text(table(rows), encoding="utf-8")


def table(rows: dict[str, Any]) -> str:
    """A page with the rows and the saving of each, predicted and measured."""
    lines = ["# Predicted and measured peak memory", "", "`python -m benchmarks.memory_parts`", ""]
    lines += ["| row | predicted MiB | measured MiB | spread | off | saves, predicted | saves, measured | report |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    firsts: dict[str, Any] = {}
    for name in (name for name in ROWS if name in rows):
        found, (group, _, what) = rows[name], name.partition(": ")
        predicted, measured = found["predicted"], statistics.median(found["measured"])
        spread = f"{(max(found['measured']) - min(found['measured'])) / measured:.1%}" if found["measured"][1:] else ""
        first = firsts.setdefault(group, (predicted, measured))
        compared = group in ("full", "lora") and first != (predicted, measured)
        saves = [
            f"{1 - new / old:.1%}" if compared else "" for new, old in zip((predicted, measured), first, strict=True)
        ]
        cells = [name, f"{predicted:,.0f}", f"{measured:,.0f}", spread, f"{predicted / measured - 1:+.1%}"]
        lines.append(_row([*cells, *saves, CLAIMS.get(what, "") if compared else ""]))
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    typer.run(main)
