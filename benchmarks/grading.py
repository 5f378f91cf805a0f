"""`python -m benchmarks.grading`: a class of a hundred, graded unattended, and the result of each notebook.

Reference solutions, untouched notebooks, notebooks with one wrong answer, and attacks; the points that each must earn
are known. Seconds depend on the machine; they must be bounded, and no notebook may be lost.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_lab.course.editions import build
from grpo_lab.course.registry import lab_page
from grpo_lab.grading.results import BY_HAND, RIGHT, Result
from grpo_lab.grading.sandbox.confinement import descendants
from grpo_lab.runs import environment
from tests.grading import hostile, mutants

RESULTS = Path("benchmarks/results/grading.json")
SOURCES = Path("labs")
SHARES = {"reference": 0.27, "untouched": 0.18, "one wrong answer": 0.35, "attack": 0.2}
"""The share of each kind of notebook in a class."""


@dataclasses.dataclass(frozen=True)
class Handed:
    """A notebook of the class: the reference, with these wrong sources by exercise, which must earn no points."""

    kind: str
    lab: str
    wrong: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        """The notebook."""
        edition = build.LEARNER if self.kind == "untouched" else build.REFERENCE
        made = json.loads(build.notebook(SOURCES, self.lab, edition))
        page = lab_page(self.lab)
        by_cell = {page.cell_id(name): f"%%exercise {name}\n{source}" for name, source in self.wrong.items()}
        for cell in made["cells"]:
            cell["source"] = by_cell.get(cell["id"], cell["source"])
        return json.dumps(made)

    def as_it_should_be(self, result: Result) -> bool:
        """Whether exactly the right exercises earned their points."""
        names = set(lab_page(self.lab).exercises)
        lost = names if self.kind == "untouched" else set(self.wrong)
        earned = {mark.exercise for mark in result.marks if mark.status in (RIGHT, BY_HAND)}
        return not result.problem and len(result.marks) == len(names) and earned == names - lost


def a_class(size: int, seed: int) -> Iterator[Handed]:
    """Notebooks of all labs in turn, in their shares."""
    draw = random.Random(seed)
    wrong, attacks = mutants.wrong(), list(_attacks())
    for kind, share in SHARES.items():
        for number in range(round(size * share)):
            lab = mutants.LABS[number % len(mutants.LABS)]
            if kind == "one wrong answer":
                one = draw.choice([each for each in wrong if each.lab == lab])
                yield Handed(kind, lab, {one.exercise: one.source})
            elif kind == "attack":
                yield attacks[number % len(attacks)]
            else:
                yield Handed(kind, lab)


def _attacks() -> Iterator[Handed]:
    """The attacks that need no knowledge of the machine, each in place of an answer of lab 5."""
    for each in hostile.attacks().values():
        if each.called and hostile.KNOWN not in each.source:
            yield Handed("attack", "05_kl", {"k3": each.answer("05_kl", "k3", {})})


class Watch(threading.Thread):
    """The largest memory of the command and its grade workers, without sandboxes, in each tenth of the time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self._process, self.seen = process, []

    def run(self) -> None:
        while self._process.poll() is None:
            self.seen.append(sum(map(_resident, [self._process.pid, *_grade_workers()])))
            time.sleep(0.5)

    def tenths(self) -> list[int]:
        """MB, from the beginning to the end."""
        cuts = [len(self.seen) * tenth // 10 for tenth in range(11)]
        return [max(self.seen[a:b], default=0) for a, b in itertools.pairwise(cuts)]


def _grade_workers() -> list[int]:
    def command(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            return ""

    return [pid for pid in descendants() if "grpo_lab.grading.worker" in command(pid)]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1_000_000
    except OSError:
        return 0


def main(
    size: Annotated[int, typer.Option(min=10, help="Notebooks.")] = 100,
    jobs: Annotated[int, typer.Option(min=1, help="Notebooks at a time.")] = 2,
    seed: Annotated[int, typer.Option(help="Draws the wrong answers.")] = 0,
    out: Annotated[Path, typer.Option(help="File of the results.")] = RESULTS,
) -> None:
    """Make a class, grade it, count, and write one JSON file."""
    handed = dict(enumerate(a_class(size, seed)))
    with tempfile.TemporaryDirectory() as home:
        for number, one in handed.items():
            path = Path(home) / "submitted" / f"s{number:03d}" / f"{one.lab}.ipynb"
            path.parent.mkdir(parents=True)
            path.write_text(one.text(), encoding="utf-8")
        begun = time.monotonic()
        command = ["-P", "-m", "grpo_lab", "grade", "submitted", "--jobs", str(jobs)]
        process = subprocess.Popen([sys.executable, *command], cwd=home, stdout=subprocess.DEVNULL)
        (watch := Watch(process)).start()
        code, seconds = process.wait(), time.monotonic() - begun
        watch.join()
        files = (Path(home) / "grades" / "results").iterdir()
        results = {result.student: result for result in (Result.from_json(file.read_text()) for file in files)}
    found = summary(handed, results) | {
        "exit code": code,
        "seconds in all": round(seconds),
        "MB by tenths": watch.tenths(),
    }
    report = {"command": shlex.join(["python", "-m", "benchmarks.grading", *sys.argv[1:]]), "jobs": jobs, **found}
    report |= {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "environment": environment.describe()}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    typer.echo(json.dumps(found, indent=2))


def summary(handed: Mapping[int, Handed], results: Mapping[str, Result]) -> dict[str, Any]:
    """The number of notebooks of each kind, those with the right points, and their times."""
    missing = [number for number in handed if f"s{number:03d}" not in results]
    kinds: dict[str, Any] = {}
    for kind, count in Counter(one.kind for one in handed.values()).items():
        ours = {n: results[f"s{n:03d}"] for n, one in handed.items() if one.kind == kind and n not in missing}
        wrong = [_told(handed[n], result) for n, result in ours.items() if not handed[n].as_it_should_be(result)]
        times = [result.seconds for result in ours.values()]
        kinds[kind] = {
            "handed in": count,
            "as it should be": len(ours) - len(wrong),
            "median seconds": round(statistics.median(times), 2),
            "most seconds": max(times),
            "otherwise": wrong,
        }
    tiers = sorted({result.tier for result in results.values()})
    return {"notebooks": len(handed), "not accounted for": len(missing), "tier": tiers, "kinds": kinds}


def _told(one: Handed, result: Result) -> str:
    marks = ", ".join(f"{mark.exercise}: {mark.status} {mark.note}".strip() for mark in result.marks)
    return f"{one.kind}, {one.lab}, wrong {sorted(one.wrong)}: {result.problem or marks}"


if __name__ == "__main__":
    typer.run(main)
