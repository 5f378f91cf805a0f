"""`python -m benchmarks.same_events OLD`: do two versions train the same runs, number by number?

OLD is a commit or the folder of a checkout. Each version trains every scenario, as it is and under the guards of
`stable`, every preset, every algorithm, SFT, LoRA, two objectives and two processes, in a process of its own. The
events of the two are compared one by one. Step times are not compared; a setting that only one version has is no
difference; NaN equals NaN. A text that was rewritten, such as a guard's reason, is counted apart. With `--within 1e-5`
numbers may differ by that share, so long as verdicts, actions and links are the same.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).parents[1]
STEPS = 30
SETTINGS = ("run.threads=1", "run.device=cpu", "run.num_eval=20")
SHORT = "run.num_steps=12"
WAYS: dict[str, tuple[str, ...]] = {
    "sft": ("run.stages=sft", "sft.data=dual", "sft.num_steps=12"),
    "sft, then grpo": ("run.stages=sft,grpo", "sft.data=dual", "sft.num_steps=6"),
    "lora": ("lora.r=4", "optimizer.learning_rate=4e-3"),
    "adapters with norms": ("lora.r=4", "lora.modules_to_save=ln_1,ln_2,ln_f"),
    "plain pass": ("model.prompt_pass=plain",),
    "micro-batches": ("data.micro_batch_prompts=5", "loss.num_iterations=2"),
    "four updates": ("loss.num_iterations=4", "optimizer.learning_rate=1e-3"),
    "filters": ("sampling.top_k=20", "sampling.top_p=0.9", "sampling.temperature=0.8"),
    "penalties": ("sampling.repetition_penalty=1.2", "sampling.frequency_penalty=0.1", "sampling.presence_penalty=0.1"),
    "bf16": ("model.precision=bf16",),
    "fp16": ("model.precision=fp16",),
    "exact KL": ("run.exact_kl=true", "loss.beta=0.05"),
    "two streams": ("run.streams=2",),
    "two processes": ("run.processes=2",),
}
"""Ways to train the preset `plain`."""
GUARDS = {"alone": None, "stable": "stable"}
"""The guards that a scenario runs with: its own, or those of the preset."""
WORDS = ("reason", "message", "text", "explanation")
"""Fields that hold a sentence."""


@dataclass(frozen=True)
class Case:
    """A run that both versions make: a scenario with its own guards or those of `stable`, or another kind of run.

    `kind` is `scenario`, `preset`, `algorithm` or `way`, the last two of the preset `plain`.
    """

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
    furthest: float = 0.0
    """The largest difference that was allowed, as a share of the number."""

    @property
    def verdict(self) -> str:
        """`identical`, or the first step and field that differ."""
        if self.differences:
            name, (step, old, new) = next(iter(self.differences.items()))
            more = f"; {len(self.differences) - 1} more fields" if len(self.differences) > 1 else ""
            return f"step {step}, {name}: {old!r} → {new!r}{more}"
        same = f"within {self.furthest:.1g}" if self.furthest else "identical"
        return f"{same}; sentences rewritten: {self.rewritten}" if self.rewritten else same


def main(
    old: Annotated[str, typer.Argument(help="The commit, or the folder of the checkout, to compare this one with.")],
    only: Annotated[list[str] | None, typer.Option(help="A scenario, preset, algorithm or way; repeatable.")] = None,
    within: Annotated[float, typer.Option(help="Share by which a number may differ.")] = 0.0,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are compared.")] = 10**6,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each case: 0, 1, …")] = 1,
    out: Annotated[Path | None, typer.Option(envvar="OUT", help="Folder of same_events.json.")] = None,
) -> None:
    """Train every case in both checkouts and print a table; exit code 1 if any number differs."""
    from benchmarks.__main__ import about

    chosen = list(cases(seeds, only))
    with tempfile.TemporaryDirectory() as scratch, checked_out(old, Path(scratch, "checkout")) as before:
        folders = {checkout: Path(scratch, name) for name, checkout in (("old", before), ("new", ROOT))}
        recorders = [_recorder(*pair, chosen) for pair in folders.items()]
        if any([recorder.wait() for recorder in recorders]):
            raise typer.Exit(2)
        found = [
            compare(case, *(folder / case.folder for folder in folders.values()), within=within, steps=steps)
            for case in chosen
        ]
    _show(found)
    if out:
        rows = [asdict(each) | {"verdict": each.verdict} for each in found]
        out.mkdir(parents=True, exist_ok=True)
        (out / "same_events.json").write_text(json.dumps({**about(), "cases": rows}, indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(int(any(each.differences for each in found)))


@contextmanager
def checked_out(old: str, scratch: Path) -> Iterator[Path]:
    """The folder of a checkout, or a new one of a commit. Raises BadParameter for what is neither."""
    if Path(old).is_dir():
        yield Path(old).resolve()
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    if subprocess.run([*git, "add", "--quiet", "--detach", str(scratch), old]).returncode:
        raise typer.BadParameter(f"{old!r} is no folder and no commit of this repository")
    try:
        yield scratch
    finally:
        subprocess.run([*git, "remove", "--force", str(scratch)], check=True)


def cases(seeds: int, names: list[str] | None = None) -> Iterator[Case]:
    """Every case with one of these names, or all; a preset of a model that is not here is left out."""
    import grpo_lab as gl
    from grpo_lab.models.registry import MODELS

    absent = {name for name, model in MODELS.items() if not model.present}
    presets = [name for name in gl.preset_names() if gl.preset(name).model.name not in absent]
    kinds = {"preset": presets, "algorithm": gl.algorithm_names(), "way": WAYS}
    for seed in range(seeds):
        rows = [("scenario", name, guards) for name in gl.scenario_names() for guards in GUARDS]
        rows += [(kind, name, "alone") for kind, known in kinds.items() for name in known]
        yield from (Case(kind, name, guards, seed) for kind, name, guards in rows if not names or name in names)


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
        gl.Session(config_of(case).with_(*SETTINGS, f"run.seed={case.seed}"), folder / case.folder).run()


def config_of(case: Case) -> Any:
    """The config of a case, without its seed."""
    import grpo_lab as gl

    if case.kind == "scenario":
        return gl.scenario(case.name).config(GUARDS[case.guards])
    if case.kind == "preset":
        config = gl.preset(case.name)
        return config.with_(f"run.num_steps={min(config.run.num_steps, STEPS)}")
    plain = gl.preset("plain").with_(SHORT)
    return plain.with_algorithm(case.name) if case.kind == "algorithm" else plain.with_(*WAYS[case.name])


def compare(case: Case, old: Path, new: Path, within: float = 0.0, steps: int = 10**6) -> Comparison:
    """Compare the events of two folders, each with the one in the same place."""
    # Imported here: the other checkout, which runs this file too, may not have it.
    from grpo_lab.analysis.run_difference import differing

    texts = [(folder / "events.jsonl").read_text(encoding="utf-8") for folder in (old, new)]
    events = [[json.loads(line) for line in text.splitlines()] for text in texts]
    found = Comparison(case, events=len(events[1]))
    for before, after in zip_longest(*events, fillvalue={}):
        step = after.get("step", before.get("step", -1))
        if step >= steps:
            break
        for name, pair in differing(before, after):
            if name.startswith("Started.") and (None in pair):
                continue  # a setting, or a fact of the machine, that only one version has
            if (gap := _share(*pair)) <= within:
                found.furthest = max(found.furthest, gap)
            elif name.rpartition(".")[2] in WORDS and None not in pair:
                found.rewritten += 1
            else:
                found.differences.setdefault(name, (step, *pair))
    return found


def _share(old: Any, new: Any) -> float:
    """The difference of two numbers as a share of the larger one; inf for others."""
    if not all(isinstance(each, float) and math.isfinite(each) for each in (old, new)):
        return math.inf
    return abs(old - new) / max(abs(old), abs(new), 1e-6)


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
