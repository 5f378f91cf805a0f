"""The command that grades what a class handed in."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_lab.cli.app import app
from grpo_lab.errors import ConfigError

if TYPE_CHECKING:
    from grpo_lab.grading.grader import Course
    from grpo_lab.grading.results import Result
    from grpo_lab.grading.rules import Rules
    from grpo_lab.grading.sandbox.tiers import Tier
    from grpo_lab.grading.submissions import Found

Paths = Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Folders of notebooks, or notebooks.")]
Folder = Annotated[Path, typer.Option(help="Folder for reports; what is graded in it already is not graded again.")]
RulesFile = Annotated[Path | None, typer.Option("--rules", help="A grading.toml with limits, scoring and the secret.")]
Required = Annotated[
    int | None,
    typer.Option(min=0, max=2, help="2, the default: bubblewrap. 0: a plain process, if a container is the sandbox."),
]
Attempt = Annotated[int | None, typer.Option(min=1, help="Another number asks other questions of the same notebooks.")]
TRUST = """\
A grade computed on the learner's own machine is self-assessment: who owns the machine owns the grader. These grades \
are computed here. An answer is run in a sandbox that learns the questions only; it gives data, and what they are \
worth is said outside. Questions are drawn for each notebook from a secret of yours, so that answers learnt by heart \
fail. A right answer shows that somebody gave it: not who, and not with whose help."""


@app.command()
def grade(
    paths: Paths = None,
    out: Folder = Path("grades"),
    rules: RulesFile = None,
    jobs: Annotated[int, typer.Option(min=1, help="Notebooks at a time.")] = os.cpu_count() or 1,
    require_tier: Required = None,
    attempt: Attempt = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what a grade can be trusted for; grade nothing.")
    ] = False,
    print_rules: Annotated[bool, typer.Option("--print-rules", help="Print a grading.toml to begin with.")] = False,
) -> None:
    """Grade notebooks: run their answers again in a sandbox, ask them questions of the grader's own, write reports.

    Ctrl-C stops after the notebooks in work; the same command goes on from there. Marks that a person has entered in
    to_mark.csv are counted by the next run. Exit code 1 where something could not be graded, 2 where the sandbox does
    not work.
    """
    if sys.platform != "linux":
        raise ConfigError(
            f"grading is not possible on {sys.platform}: its sandbox needs Linux. Grade in a virtual machine, or in a "
            "container with --require-tier 0"
        )
    from grpo_lab.grading import rules as ruling
    from grpo_lab.grading import submissions

    given = {"attempt": attempt, "tier": require_tier}
    ruled = dataclasses.replace(
        ruling.read(rules), **{name: value for name, value in given.items() if value is not None}
    )
    if print_rules:
        typer.echo(ruling.as_toml(ruled), nl=False)
    elif explain:
        _explain(ruled)
    elif paths:
        every = submissions.found(paths)
        _grade(every, out, _course(ruled), jobs)
    else:
        raise typer.BadParameter("name a folder of notebooks, or notebooks", param_hint="PATH...")


def _explain(rules: Rules) -> None:
    """Print what a grade can be trusted for, and the containment on this machine."""
    from grpo_lab.ui import console

    console.out.print(TRUST, markup=False)
    tier = _tier(rules)
    console.out.print(f"Here: tier {tier.number}. {tier.trust}", markup=False)


def _tier(rules: Rules) -> Tier:
    from grpo_lab.grading.grader import limits
    from grpo_lab.grading.sandbox import tier_checks
    from grpo_lab.ui import console

    with console.err.status("probing the sandbox"):
        return tier_checks.working(rules.tier, limits(rules))


def _course(rules: Rules) -> Course:
    """The rules with a secret, once the sandbox has been probed."""
    from grpo_lab.grading import challenges
    from grpo_lab.grading.grader import Course
    from grpo_lab.ui import console

    tier = _tier(rules)
    console.err.print(f"tier {tier.number}: {tier.name}", markup=False)

    def made(path: Path) -> None:
        text = (
            f"secret: {path} is new; keep it, since only the same secret asks the same questions, and give it to nobody"
        )
        console.err.print(text, markup=False, soft_wrap=True)

    return Course(rules, challenges.secret(Path(rules.secret), made))


def _grade(every: Sequence[Found], out: Path, course: Course, jobs: int) -> None:
    """Grade, with a bar, and write the reports; exit code 1 where Ctrl-C stopped it."""
    from grpo_lab.grading import class_run, reports
    from grpo_lab.grading.reports import marking
    from grpo_lab.ui import console

    kept = class_run.Kept(out / "results", course)
    with console.progress() as bars:
        task = bars.add_task("notebooks", total=len(every), note="")

        def tell(result: Result) -> None:
            earned = result.problem or f"{result.score:g} of {result.out_of:g}"
            bars.update(task, advance=1, note=f"{result.student}: {earned}"[:60])

        results = class_run.grade(every, course, kept, jobs, tell)
    if results is None:
        message = f"stopped: what was graded is kept in {out}; the same command goes on from there"
        console.err.print(message, markup=False, soft_wrap=True)
        raise typer.Exit(1)
    if (sheet := out / marking.TO_MARK).exists():
        results = marking.with_marks(results, marking.read_marks(sheet))
    reports.write(results, out)
    _say(results, out)


def _say(results: Sequence[Result], out: Path) -> None:
    """The class in short; exit code 1 where the grader itself failed, since then a person has to look."""
    from grpo_lab.grading.worker_client import failed
    from grpo_lab.ui import console

    rows = [("student", "lab", "score", "of", "to mark", "problem")]
    for result in results:
        points = (f"{result.score:g}", f"{result.out_of:g}", str(len(result.by_hand) or ""))
        rows.append((result.student, result.lab or result.file, *points, result.problem))
    console.out.print(console.table(rows))
    console.out.print(f"reports: {out / 'index.html'}", markup=False, soft_wrap=True)
    if lost := [result for result in results if failed(result)]:
        message = f"{len(lost)} of {len(results)} notebooks were not graded in full; the reports say where and why"
        console.err.print(message, markup=False, soft_wrap=True)
        raise typer.Exit(1)
