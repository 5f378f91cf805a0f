"""`python -m benchmarks.grading_warm`: a class of 100 in a warm sandbox, and with one sandbox for each answer.

Every notebook is the reference solution of a lab, with a comment of its own in each answer. The command grades the
class; a sample is also graded in this process, warm, and with a sandbox for each notebook and for each answer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_lab.course.editions import build
from grpo_lab.grading.grader import Course, Grader
from grpo_lab.grading.results import Result
from grpo_lab.grading.rules import Rules
from grpo_lab.grading.sandbox.box import Sandbox
from grpo_lab.grading.submissions import found
from grpo_lab.runs import environment

RESULTS = Path("benchmarks/results/grading_warm.json")
LABS = ("01_grpo_by_hand", "03_error_chain")


def hand_in(folder: Path, lab: str, size: int) -> None:
    """Write the class: copies of the reference solution that differ in a comment."""
    text = build.notebook(Path("labs"), lab, build.REFERENCE)
    for number in range(size):
        tree = json.loads(text)
        for cell in tree["cells"]:
            source = "".join(cell["source"])
            if source.startswith("%%exercise"):
                cell["source"] = f"{source.rstrip()}\n# student {number}\n"
        path = folder / f"s{number:03d}" / f"{lab}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(tree), encoding="utf-8")


def a_class(home: Path, lab: str, size: int, jobs: int) -> dict[str, Any]:
    """Seconds of the command for the class, and the points."""
    hand_in(home / lab, lab, size)
    begun = time.monotonic()
    command = ["-P", "-m", "grpo_lab", "grade", lab, "--out", f"out-{lab}", "--jobs", str(jobs)]
    code = subprocess.run([sys.executable, *command], cwd=home, capture_output=True).returncode
    seconds = time.monotonic() - begun
    results = [Result.from_json(file.read_text()) for file in (home / f"out-{lab}" / "results").iterdir()]
    full = sum(result.score == result.out_of for result in results)
    median = statistics.median(result.seconds for result in results)
    return {"seconds": round(seconds, 1), "exit code": code, "full marks": full, "median notebook": round(median, 2)}


def each_way(home: Path, lab: str, notebooks: int) -> dict[str, float]:
    """Median seconds of a notebook, by how often the sandbox starts; in turns, so that noise hits all alike."""
    every = found([home / lab])[:notebooks]
    seconds: dict[str, list[float]] = {"warm": [], "a sandbox for each notebook": [], "a sandbox for each answer": []}
    graders = {way: Grader(Course(Rules(), b"for a benchmark, and nothing else")) for way in seconds}
    for way in seconds:
        list(graders[way].results(every[0]))  # imports, and the first start
    for one in every:
        for way, grader in graders.items():
            begun = time.monotonic()
            if way == "a sandbox for each notebook":
                grader.close()
            if way == "a sandbox for each answer":
                _afresh(grader, one)
            else:
                list(grader.results(one))
            seconds[way].append(time.monotonic() - begun)
    for grader in graders.values():
        grader.close()
    return {way: round(statistics.median(times), 2) for way, times in seconds.items()}


def _afresh(grader: Grader, one: Any) -> None:
    """Grade with a sandbox that ends after each answer."""
    ask = Sandbox._ask

    def once(self: Sandbox, request: dict[str, Any], count: int) -> Any:
        try:
            return ask(self, request, count)
        finally:
            self.close()

    Sandbox._ask = once
    try:
        list(grader.results(one))
    finally:
        Sandbox._ask = ask


def main(
    size: Annotated[int, typer.Option(min=1, help="Notebooks of a class.")] = 100,
    jobs: Annotated[int, typer.Option(min=1, help="Notebooks at a time.")] = 2,
    sample: Annotated[int, typer.Option(min=1, help="Notebooks that are graded each way.")] = 3,
    out: Annotated[Path, typer.Option(help="File of the results; a table goes beside it.")] = RESULTS,
) -> None:
    """Measure, and write a JSON file and a table."""
    report: dict[str, Any] = {"size": size, "jobs": jobs, "sample": sample, "load before": os.getloadavg()[0]}
    rows = [f"| lab | a class of {size}, {jobs} at a time | notebook, warm | for each notebook | for each answer |"]
    rows.append("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as home:
        for lab in LABS:
            whole, ways = a_class(Path(home), lab, size, jobs), each_way(Path(home), lab, sample)
            report[lab] = {"class": whole, "seconds of a notebook": ways}
            warm, notebook, answer = ways.values()
            told = f"{notebook} s ({notebook / warm:.1f}x) | {answer} s ({answer / warm:.1f}x)"
            rows.append(f"| {lab} | {whole['seconds']} s | {warm} s | {told} |")
    report |= {"load after": os.getloadavg()[0], "date": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    report["environment"] = environment.describe()
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    noise = f"Load average {report['load before']:.1f} before and {report['load after']:.1f} after."
    table = "\n".join(rows)
    page = f"# A warm sandbox\n\n`python -m benchmarks.grading_warm`\n\n{table}\n\n{noise}\n"
    out.with_suffix(".md").write_text(page, encoding="utf-8")
    typer.echo(page)


if __name__ == "__main__":
    typer.run(main)
