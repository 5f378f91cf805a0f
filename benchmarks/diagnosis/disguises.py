"""`python -m benchmarks.diagnosis.disguises`: every scenario's run as the log of somebody's own loop.

The rows of a run are renamed, printed in another form, thinned or cut, written to a file, and diagnosed. What the
diagnosis says of the same rows under the names of this project is the standard: same steps, same verdict, same
sentence. A name or form that is not read shows as a row that is not 100 %. Writes results/disguises.md.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from grpo_lab import diagnose
from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import Diagnosis
from grpo_lab.analysis.diagnosis.report import story
from grpo_lab.analysis.markdown import table
from grpo_lab.config.catalog import scenario, scenario_names
from grpo_lab.errors import LogError
from grpo_lab.runs.session import Session

Row = dict[str, float]
"""A row of a log by the names that it prints; `step` is among them."""
TEXTBOOK = {
    "reward": "reward_avg",
    "kl": "kl_loss",
    "entropy": "entropy_avg",
    "grad_norm": "grad_norm",
    "loss": "policy_loss",
    "completions/mean_length": "avg_response_len",
    "completions/clipped_ratio": "truncation_rate",
    "frac_reward_zero_std": "zero_advantage_fraction",
    "clip_ratio/region_mean": "clip_fraction",
    "learning_rate": "LR",
}
SPOKEN = {
    "reward": "Mean Reward",
    "kl": "KL_ref",
    "entropy": "Policy Entropy",
    "grad_norm": "Gradient Norm",
    "loss": "Actor Loss",
    "completions/mean_length": "Avg Response Len",
    "completions/clipped_ratio": "Truncated Fraction",
    "learning_rate": "Learning Rate",
}
ROLLOUT = {
    "reward": "rollout/raw_reward",
    "kl": "rollout/kl",
    "entropy": "train/entropy_loss",
    "grad_norm": "train/grad_norm",
    "loss": "train/pg_loss",
    "completions/mean_length": "rollout/response_lengths",
    "completions/clipped_ratio": "rollout/truncated_ratio",
    "learning_rate": "train/lr",
}
VERL = {
    "reward": "critic/rewards/mean",
    "kl": "actor/kl_loss",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "loss": "actor/pg_loss",
    "completions/mean_length": "response_length/mean",
    "completions/clipped_ratio": "response_length/clip_ratio",
    "clip_ratio/region_mean": "actor/pg_clipfrac",
    "learning_rate": "actor/lr",
}
TRL = {name: name for name in (*TEXTBOOK, "reward_std")}


@dataclass(frozen=True)
class Disguise:
    """Names, the rows that are kept, and a form."""

    suffix: str
    names: dict[str, str]
    write: Callable[[Sequence[Row]], str]
    first: int = 0
    last: int | None = None
    every: int = 1


def _said(value: float) -> str:
    return f"{value:.6g}"


def _parts(row: Row) -> dict[str, str]:
    return {name: _said(value) for name, value in row.items() if name != "step"}


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    return pd.DataFrame([{**_parts(row), "step": str(int(row["step"]))} for row in rows])


def _lines(form: Callable[[int, int, Row], str]) -> Callable[[Sequence[Row]], str]:
    """A writer of one line a row: `form` gets the step, the last step and the row."""
    return lambda rows: "\n".join(form(int(row["step"]), int(rows[-1]["step"]), row) for row in rows) + "\n"


def _lists(rows: Sequence[Row]) -> str:
    names = [name for name in rows[0] if name != "step"]
    return json.dumps({name: [float(_said(row[name])) for row in rows] for name in names})


def _notebook(rows: Sequence[Row]) -> str:
    html = _frame(rows).rename(columns={"step": "Step"}).set_index("Step").reset_index().to_html(index=False)
    output = {"output_type": "display_data", "data": {"text/html": [html]}, "metadata": {}}
    cell = {"cell_type": "code", "source": [], "outputs": [output], "metadata": {}, "execution_count": 1}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def _markdown(rows: Sequence[Row]) -> str:
    frame = _frame(rows)
    return "# My run\n\n" + table([list(frame.columns), *frame.to_numpy().tolist()]) + "\n"


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    _frame(rows).to_csv(text, index=False)
    return text.getvalue()


def _pairs(row: Row, sep: str, between: str) -> str:
    return between.join(f"{name}{sep}{value}" for name, value in _parts(row).items())


DISGUISES = {
    "CSV of a textbook's loop": Disguise("csv", TEXTBOOK, _csv),
    "JSON, one list a metric": Disguise("json", TEXTBOOK, _lists),
    "JSON lines, nested": Disguise(
        "jsonl", TEXTBOOK, _lines(lambda step, _, row: json.dumps({"iteration": step, "metrics": _parts(row)}))
    ),
    "step 3 | reward_avg: 0.5 | …": Disguise(
        "log", TEXTBOOK, _lines(lambda step, _, row: f"step {step} | " + _pairs(row, ": ", " | "))
    ),
    "[time] INFO Step 3: reward_avg=0.5, …": Disguise(
        "log",
        TEXTBOOK,
        _lines(
            lambda step, _, row: f"[2026-03-01 10:{step % 60:02d}:07] INFO - Step {step}: " + _pairs(row, "=", ", ")
        ),
    ),
    "Epoch 1/1, step in brackets, Mean Reward: …": Disguise(
        "log", SPOKEN, _lines(lambda step, last, row: f"Epoch:[1/1]({step}/{last}), " + _pairs(row, ": ", ", "))
    ),
    "rollout 3: {…}": Disguise("log", ROLLOUT, _lines(lambda step, _, row: f"rollout {step}: {row_of(row)}")),
    "tensor(…) in a dictionary": Disguise(
        "log",
        TEXTBOOK,
        _lines(
            lambda step, _, row: (
                f"{{'update': {step}, " + ", ".join(f"'{n}': tensor({v})" for n, v in _parts(row).items()) + "}"
            )
        ),
    ),
    "tqdm's 3/60 and a dictionary of texts": Disguise(
        "log",
        TRL,
        _lines(
            lambda step, last, row: f" {100 * step // last}%|█▌  | {step}/{last} [00:09<01:02,  1.1s/it]{_parts(row)}"
        ),
    ),
    "the same, every third step": Disguise(
        "log",
        TRL,
        _lines(
            lambda step, last, row: f" {100 * step // last}%|█▌  | {step}/{last} [00:09<01:02,  1.1s/it]{_parts(row)}"
        ),
        first=2,
        every=3,
    ),
    "verl through Ray, np.float64(…)": Disguise(
        "log",
        VERL,
        _lines(
            lambda step, _, row: (
                f"\x1b[36m(TaskRunner pid=4711)\x1b[0m step:{step} - "
                + " - ".join(f"{name}:np.float64({value})" for name, value in _parts(row).items())
            )
        ),
    ),
    "verl's JSON lines": Disguise(
        "jsonl", VERL, _lines(lambda step, _, row: json.dumps({"step": step, "data": row_of(row)}))
    ),
    "HTML table in a notebook": Disguise("ipynb", TRL, _notebook),
    "table in Markdown": Disguise("md", TEXTBOOK, _markdown),
    "CSV without its first third": Disguise("csv", TEXTBOOK, _csv, first=20),
    "CSV without its last third": Disguise("csv", TEXTBOOK, _csv, last=40),
}


def row_of(row: Row) -> dict[str, float]:
    """The numbers of a row as they are printed."""
    return {name: float(value) for name, value in _parts(row).items()}


@dataclass(frozen=True)
class Result:
    """Whether a disguised log was read, its steps were right, and verdict and sentence were those of the bare rows."""

    scenario: str
    disguise: str
    read: bool
    steps: bool = False
    verdict: bool = False
    sentence: bool = False
    said: str = ""


def judged(name: str, seed: int, folder: Path) -> list[Result]:
    """A scenario's run in every disguise."""
    config = scenario(name).config().with_("run.device=cpu", "run.threads=1", f"run.seed={seed}")
    log = logs.from_events(Session(config, folder / "run").run().events)
    frame = pd.DataFrame(dict(log.metrics), pd.Index(log.steps, name="step")).reset_index()
    frame["step"] += 1  # as nearly everybody counts
    return [_judged(name, kind, disguise, frame, folder) for kind, disguise in DISGUISES.items()]


def _judged(name: str, kind: str, disguise: Disguise, frame: pd.DataFrame, folder: Path) -> Result:
    known = {own: theirs for own, theirs in disguise.names.items() if own in frame}
    kept = frame[["step", *known]].iloc[disguise.first : disguise.last : disguise.every]
    rounded = kept.map(lambda value: float(_said(value)))
    if len(rounded) < 2:
        return Result(name, kind, True, True, True, True)  # the run had ended by then
    path = folder / f"{name}.{disguise.suffix}"
    names = {"step": "step", **known}
    rows = [{theirs: row[own] for own, theirs in names.items()} for row in rounded.to_dict("records")]
    path.write_text(disguise.write(rows), encoding="utf-8")
    bare = diagnose(
        rounded.assign(step=range(len(rounded))) if disguise.write is _lists else rounded
    )  # lists have none
    try:
        found = diagnose(path)
    except LogError as error:
        return Result(name, kind, False, said=str(error))
    said = f"{found.verdict}, not {bare.verdict}" if found.verdict != bare.verdict else ""
    right = (_steps(found) == _steps(bare), found.verdict == bare.verdict, _told(found) == _told(bare))
    return Result(name, kind, True, *right, said)


def _steps(found: Diagnosis) -> list[int]:
    return found.log.steps.tolist()


def _told(found: Diagnosis) -> str:
    return story(found.log, "en")


def main(
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 500,
    only: Annotated[list[str] | None, typer.Option(help="A scenario; may be given again.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 2,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the page.")] = Path("benchmarks/results"),
) -> None:
    """Diagnose every scenario's run in every disguise."""
    names = only or scenario_names()
    with tempfile.TemporaryDirectory() as scratch, ProcessPoolExecutor(jobs) as pool:
        folders = [Path(scratch) / name for name in names]
        for folder in folders:
            folder.mkdir()
        found = [result for each in pool.map(judged, names, [seed] * len(names), folders) for result in each]
    for result in found:
        if not (result.read and result.steps and result.verdict and result.sentence):
            print(f"{result.scenario:28} {result.disguise:40} {result}"[:300])
    out.mkdir(parents=True, exist_ok=True)
    (out / "disguises.md").write_text(page(found, len(names), seed), encoding="utf-8")
    print(page(found, len(names), seed))


def page(found: Sequence[Result], runs: int, seed: int) -> str:
    """The shares by kind of disguise."""
    rows = []
    for kind in DISGUISES:
        own = [result for result in found if result.disguise == kind]
        counts = [sum(getattr(result, name) for result in own) for name in ("read", "steps", "verdict", "sentence")]
        rows.append([kind, *[f"{count} of {len(own)}" for count in counts]])
    head = ["disguise", "read", "right steps", "same verdict", "same sentence"]
    intro = (
        f"# Runs of {runs} scenarios in {len(DISGUISES)} disguises, seed {seed}\n\nMade by `python -m "
        "benchmarks.diagnosis.disguises`. The standard is what the diagnosis says of the same rows under the names of "
        "this project.\n\n"
    )
    return intro + table([head, *rows]) + "\n"


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
