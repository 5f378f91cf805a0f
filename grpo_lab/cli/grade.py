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
from grpo_lab.errors import RunError

if TYPE_CHECKING:
    from grpo_lab.grading.grader import Course
    from grpo_lab.grading.results import Result
    from grpo_lab.grading.rules import Rules
    from grpo_lab.grading.sandbox.tiers import Tier
    from grpo_lab.grading.submissions import Found

Paths = Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Folders of notebooks, or notebooks.")]
Folder = Annotated[Path, typer.Option(help="Folder for reports; what is graded in it already is not graded again.")]
RulesFile = Annotated[Path | None, typer.Option("--rules", help="A grading.toml with limits, scoring and the secret.")]
Required = Annotated[int | None, typer.Option(min=0, max=2, help="Grade only if answers are contained this strongly.")]
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
    to_mark.csv are counted by the next run. Exit code 1 where something could not be graded.
    """
    if sys.platform != "linux":
        raise RunError(f"grading is not possible on {sys.platform}: its sandbox is Linux's; use a virtual machine")
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
    """What grades are worth, and how strongly answers are contained on this machine."""
    from grpo_lab.ui import console

    tier, missing = _strongest(rules)
    console.out.print(TRUST, markup=False)
    console.out.print(f"Here: tier {tier.number}. {tier.trust}", markup=False)
    for why in missing.values():
        console.out.print(f"Not here: {why}", markup=False)


def _strongest(rules: Rules) -> tuple[Tier, dict[int, str]]:
    from grpo_lab.grading.grader import limits
    from grpo_lab.grading.sandbox.tier_checks import strongest
    from grpo_lab.ui import console

    with console.err.status("trying sandboxes"):
        return strongest(limits(rules), rules.tier)


def _course(rules: Rules) -> Course:
    """The rules with a secret, and a tier that works; that it is not the strongest one is said, with the reason."""
    from grpo_lab.grading import challenges
    from grpo_lab.grading.grader import Course
    from grpo_lab.ui import console

    tier, missing = _strongest(rules)
    console.err.print(f"tier {tier.number}: {tier.name}", markup=False)
    for why in missing.values():
        console.err.print(f"not {why}", markup=False, soft_wrap=True)

    def made(path: Path) -> None:
        text = (
            f"secret: {path} is new; keep it, since only the same secret asks the same questions, and give it to nobody"
        )
        console.err.print(text, markup=False, soft_wrap=True)

    return Course(rules, challenges.secret(Path(rules.secret), made), tier)


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
