"""`python -m benchmarks.precision`: the healed run of cuda-001 in every precision, and with a representable eps.

Precision is half of the heal of cuda-001. Each row trains the other half, the right ratio, with weights and moments of
one precision; the rows of `fp16_pure` differ in AdamW's eps. Writes results/precision.md.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.analysis.markdown import number, table
from grpo_lab.config.catalog import scenario
from grpo_lab.config.schema import Config
from grpo_lab.events import Evaluated, Stepped
from grpo_lab.runs import environment
from grpo_lab.runs.child_pool import warm_child
from grpo_lab.runs.session import Session
from grpo_lab.ui import console

ROWS = {
    "fp32": ("fp32 weights and moments", ()),
    "bf16": ("bf16 autocast; fp32 weights and moments", ()),
    "fp16": ("fp16 autocast with loss scaling; fp32 weights and moments", ()),
    "bf16_pure": ("bf16 weights and moments", ()),
    "fp16_pure": ("fp16 weights and moments, eps as in the scenario", ()),
    "fp16_pure, eps 1e-4": ("fp16 weights and moments, a representable eps", ("optimizer.adam_eps=1e-4",)),
}


def config_for(row: str, seed: int) -> Config:
    """The healed scenario in the precision of a row."""
    precision = row.partition(",")[0]
    settings = (
        f"model.precision={precision}",
        f"run.seed={seed}",
        "run.num_eval=250",
        "run.threads=1",
        "run.device=cpu",
    )
    return scenario("cuda-001").config(heal=True).with_(*settings, *ROWS[row][1])


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds a row.")] = 3,
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("benchmarks/results/precision.md"),
) -> None:
    """Train every row on every seed and write a table of rewards and norms."""
    rows = [["precision", "held by", "held-out reward before", "after, by seed", "mean", "largest norm", "crashes"]]
    with console.progress() as bars:
        for row, (what, _) in ROWS.items():
            sessions = []
            for seed in range(seeds):
                with warm_child() as child:
                    sessions.append(Session(config_for(row, seed), None, child=child))
                    sessions[-1].views.append(console.ProgressView(bars, f"{row}, seed {seed}"))
                    sessions[-1].run()
            rows.append([row, what, *measured(sessions)])
    here = environment.describe(threads=1)
    made = f"Made by `python -m benchmarks.precision --seeds {seeds}` on a CPU, torch {here['packages']['torch']}."
    page = f"# The healed `cuda-001` in every precision\n\n{made}\n\n{table(rows, literal=True)}\n"
    out.write_text(page, encoding="utf-8")
    console.out.print(console.table(rows))


def measured(sessions: list[Session]) -> list[str]:
    """The cells of a row: rewards before and after, their mean, the largest finite norm, and the number of crashes."""
    rewards = [[event.reward for event in session.events if isinstance(event, Evaluated)] for session in sessions]
    ends = [values[1] for values in rewards if len(values) > 1]
    steps = [event for session in sessions for event in session.events if isinstance(event, Stepped)]
    norms = [note.magnitude for event in steps for note in event.links if note.link == "gradients" and not note.broken]
    return [
        number(statistics.fmean(values[0] for values in rewards), 2),
        ", ".join(number(end, 2) for end in ends) or "-",
        number(statistics.fmean(ends), 2) if ends else "-",
        number(max(norms), 2) if norms else "-",
        str(sum(session.crash is not None for session in sessions)),
    ]


if __name__ == "__main__":
    typer.run(main)
