"""`python -m benchmarks.same_events OLD_CHECKOUT`: do two checkouts train the same runs, number by number?

Each checkout trains every scenario, as it is and under the guards of `stable`, and three presets, in a process of its
own. The events of the two are compared one by one. Step times are not compared; a setting that only the new checkout
has is not a difference; NaN equals NaN. A text that was rewritten, such as a guard's reason, is counted apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).parents[1]
STEPS = 30
SETTINGS = ("run.threads=1", "run.device=cpu", "run.num_eval=20")
PRESETS = ("smoke", "plain", "stable")
GUARDS = {"alone": None, "stable": "stable"}
"""The guards that a scenario runs with: its own, or those of the preset."""
WORDS = ("reason", "message", "text", "explanation")
"""Fields that hold a sentence."""


@dataclass(frozen=True)
class Case:
    """A run that both checkouts make: a scenario with its own guards or those of `stable`, or a preset."""

    kind: str
    name: str
    guards: str
    seed: int

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.name}, {self.guards}, seed {self.seed}"


@dataclass
class Comparison:
    """How the events of one case differ: for each field its first step, with the old and the new value."""

    case: Case
    events: int
    differences: dict[str, tuple[int, Any, Any]] = field(default_factory=dict)
    rewritten: int = 0
    """Sentences that differ."""

    @property
    def verdict(self) -> str:
        """`identical`, or the first step and field that differ."""
        if self.differences:
            name, (step, old, new) = next(iter(self.differences.items()))
            more = f"; {len(self.differences) - 1} more fields" if len(self.differences) > 1 else ""
            return f"step {step}, {name}: {old!r} → {new!r}{more}"
        return f"identical; sentences rewritten: {self.rewritten}" if self.rewritten else "identical"


def main(
    old: Annotated[Path, typer.Argument(help="Folder of the checkout to compare this one with.", exists=True)],
    scenario: Annotated[list[str] | None, typer.Option(help="A scenario or preset; all if not given.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each case: 0, 1, …")] = 1,
    out: Annotated[Path | None, typer.Option(envvar="OUT", help="Folder of same_events.json.")] = None,
) -> None:
    """Train every case in both checkouts and print a table; exit code 1 if any number differs."""
    from benchmarks.__main__ import about

    chosen = list(cases(seeds, scenario))
    with tempfile.TemporaryDirectory() as scratch:
        folders = {checkout: Path(scratch, name) for name, checkout in (("old", old.resolve()), ("new", ROOT))}
        recorders = [_recorder(*pair, chosen) for pair in folders.items()]
        if any([recorder.wait() for recorder in recorders]):
            raise typer.Exit(2)
        found = [compare(case, *(folder / case.folder for folder in folders.values())) for case in chosen]
    _show(found)
    if out:
        rows = [asdict(each) | {"verdict": each.verdict} for each in found]
        out.mkdir(parents=True, exist_ok=True)
        (out / "same_events.json").write_text(json.dumps({**about(), "cases": rows}, indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(int(any(each.differences for each in found)))


def cases(seeds: int, names: list[str] | None = None) -> Iterator[Case]:
    """Every case of these scenarios and presets, or of all."""
    import grpo_lab as gl

    for seed in range(seeds):
        for name in gl.scenario_names():
            if not names or name in names:
                yield from (Case("scenario", name, guards, seed) for guards in GUARDS)
        yield from (Case("preset", name, "alone", seed) for name in PRESETS if not names or name in names)


def _recorder(checkout: Path, folder: Path, chosen: list[Case]) -> subprocess.Popen[bytes]:
    """A process that trains every case with the code of a checkout."""
    given = json.dumps([asdict(case) for case in chosen])
    # -P leaves this file's folder out of the search path, so that the checkout's package is the first to be found.
    command = [sys.executable, "-P", __file__, str(checkout), str(folder), given]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(checkout)}, cwd=checkout)


def record(checkout: Path, folder: Path, chosen: list[Case]) -> None:
    """Train every case, and leave its `events.jsonl` in a folder of its own.

    Uses the public names of the package alone, so that any version runs it. Raises RuntimeError where the package is
    not the checkout's.
    """
    import grpo_lab as gl

    if not Path(str(gl.__file__)).is_relative_to(checkout):
        raise RuntimeError(f"grpo_lab was imported from {gl.__file__}, not from {checkout}")
    for case in chosen:
        config = gl.preset(case.name) if case.kind == "preset" else gl.scenario(case.name).config(GUARDS[case.guards])
        steps = min(config.run.num_steps, STEPS) if case.kind == "preset" else config.run.num_steps
        config = config.with_(*SETTINGS, f"run.seed={case.seed}", f"run.num_steps={steps}")
        gl.Session(config, folder / case.folder).run()


def compare(case: Case, old: Path, new: Path) -> Comparison:
    """Compare the events of two folders, each with the one in the same place."""
    # Imported here: the other checkout, which runs this file too, may not have it.
    from grpo_lab.analysis.run_difference import differing, fields_of

    texts = [(folder / "events.jsonl").read_text(encoding="utf-8") for folder in (old, new)]
    events = [[json.loads(line) for line in text.splitlines()] for text in texts]
    found = Comparison(case, events=len(events[1]))
    for before, after in zip_longest(*events, fillvalue={}):
        step = after.get("step", before.get("step", -1))
        known = dict(fields_of(before))
        for name, pair in differing(before, after):
            if name.startswith("Started.") and name not in known:
                continue  # a setting, or a fact of the machine, that only the new checkout has
            if name.rpartition(".")[2] in WORDS and None not in pair:
                found.rewritten += 1
            else:
                found.differences.setdefault(name, (step, *pair))
    return found


def _show(found: list[Comparison]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "guards", "seed", "events", "old and new")
    for each in found:
        table.add_row(each.case.name, each.case.guards, str(each.case.seed), str(each.events), each.verdict)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    same = sum(not each.differences for each in found)
    console.print(f"{same} of {len(found)} runs are the same")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3].startswith("["):  # a process that `_recorder` started
        record(Path(sys.argv[1]), Path(sys.argv[2]), [Case(**case) for case in json.loads(sys.argv[3])])
    else:
        typer.run(main)
