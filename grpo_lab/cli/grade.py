"""The command that grades a class's notebooks."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from grpo_lab import messages
from grpo_lab.cli.app import INTERRUPTED, Backend, Scheduler, app
from grpo_lab.errors import ConfigError
from grpo_lab.ui import console

if TYPE_CHECKING:
    from grpo_lab.grading.grader import Course
    from grpo_lab.grading.results import Result
    from grpo_lab.grading.rules import Rules
    from grpo_lab.grading.sandbox.box import Tier
    from grpo_lab.grading.submissions import Found
    from grpo_lab.runs.clusters import Cluster


@app.command(example="grade submissions/ --out grades/")
def grade(
    paths: Annotated[list[Path] | None, Argument(metavar="PATH...", help="Folders of notebooks, or notebooks.")] = None,
    out: Annotated[Path, Option(help="Folder for reports; results in it are not made again.")] = Path("grades"),
    rules: Annotated[Path | None, Option(help="A grading.toml with limits, scoring and the secret.")] = None,
    jobs: Annotated[int, Option(min=1, help="Notebooks at a time.")] = os.cpu_count() or 1,
    require_tier: Annotated[
        int | None, Option(min=0, max=2, help="2, the default: bubblewrap. 0: a plain process, for a container only.")
    ] = None,
    no_isolation: Annotated[
        bool,
        Option("--no-isolation", help="Allow tier 0 without being root: answers can read your files, secret included."),
    ] = False,
    attempt: Annotated[int | None, Option(min=1, help="Another number draws other inputs for the same work.")] = None,
    lab: Annotated[list[str] | None, Option(help="Grade and list this lab only; repeatable.")] = None,
    keep: Annotated[Literal["latest", "best"], Option(help="Of several: the last changed, or the best.")] = "latest",
    results_json: Annotated[Path | None, Option(help="Write this for Gradescope; all files are one student's.")] = None,
    language: Annotated[str, Option(envvar=messages.VARIABLE, help="Of pages: en or zh. Tables are English.")] = "en",
    explain: Annotated[bool, Option("--explain", help="Explain the limits of a grade; grade nothing.")] = False,
    backend: Backend = "local",
    scheduler: Scheduler = "",
    print_rules: Annotated[bool, Option("--print-rules", help="Print a grading.toml with the defaults.")] = False,
) -> None:
    """Grade notebooks: run their answers again in a sandbox on fresh inputs, and write reports.

    Ctrl-C stops after the notebooks in progress; the exit code is 130. The same command continues from there, and
    counts the marks that a person has entered in to_mark.csv. Exit code 1: a notebook, or a zip in its place, could not
    be graded, or not in full. Exit code 2: the sandbox does not work, or an option or rule is wrong.
    """
    if sys.platform != "linux":
        raise ConfigError(
            f"grading is not possible on {sys.platform}: its sandbox needs Linux. Grade in a virtual machine, or in a "
            "container with --require-tier 0 (and --no-isolation where the container's user is not root)"
        )
    sys.executable = os.path.normpath(sys.executable)  # `..` in it would name folders that the sandbox does not have
    from grpo_lab.grading import repeats, reports, submissions
    from grpo_lab.grading import rules as ruling
    from grpo_lab.grading.reports import marking
    from grpo_lab.grading.reports.words import Words
    from grpo_lab.grading.sandbox import box
    from grpo_lab.runs import clusters

    options = {"attempt": attempt, "tier": require_tier, "labs": lab and tuple(lab)}
    options["no_isolation"] = no_isolation or None
    given = {name: value for name, value in options.items() if value is not None}
    ruled = dataclasses.replace(ruling.read(rules), **given)
    if print_rules:
        return typer.echo(ruling.as_toml(ruled), nl=False)
    if explain:
        console.out.print(box.SAID["self_assessed"], markup=False)
        tier = _tier(ruled)
        return console.out.print(f"Here: tier {tier.number}. {tier.trust}", markup=False)
    if not paths:
        raise typer.BadParameter("name a folder of notebooks, or notebooks", param_hint="PATH...")
    every = submissions.found(paths, [out, Path(ruled.secret), *([rules] if rules else [])])
    Words(language)  # an unknown one is an error now, not after the grading
    cluster = clusters.connect(backend, scheduler, jobs)
    results = repeats.told_apart(every, _graded(every, out, _course(ruled), jobs, cluster))
    if (sheet := out / marking.TO_MARK).exists():
        marks = marking.read_marks(sheet)
        for line in marking.unplaced(results, marks):
            console.report(f"warning: {line}")
        results = marking.with_marks(results, marks)
    results = repeats.one_each(every, results, keep, alone=results_json is not None)
    reports.write(results, out, results_json, language)
    _say(results, out)


def _tier(rules: Rules) -> Tier:
    from grpo_lab.grading.sandbox import box

    with console.err.status("probing the sandbox"):
        tier = box.working(rules.tier, rules.limits, rules.no_isolation)
    if tier.exposed:
        console.err.print(box.SAID["no_isolation"], markup=False, style="bold red")
    return tier


def _course(rules: Rules) -> Course:
    """The rules and the secret, after the sandbox has been probed."""
    from grpo_lab.grading import challenges
    from grpo_lab.grading.grader import Course

    tier = _tier(rules)
    console.err.print(f"tier {tier.number}: {tier.name}", markup=False)

    def made(path: Path) -> None:
        console.report(
            f"secret: {path} is new; keep it, because only the same secret draws the same inputs, and never share it"
        )

    return Course(rules, challenges.secret(Path(rules.secret), made))


def _graded(every: Sequence[Found], out: Path, course: Course, jobs: int, cluster: Cluster | None) -> list[Result]:
    """Grade with a progress bar; exit code 130 after Ctrl-C."""
    from grpo_lab.grading import class_run

    clients = class_run.FarClients(course, cluster) if cluster else class_run.Clients(course, jobs)
    store = class_run.ResultStore(out / "results", course)
    done = itertools.count(1)
    with console.progress() as bars:
        task = bars.add_task("notebooks", total=len(every), note="")

        def tell(result: Result) -> None:
            earned = result.problem or f"{result.score:g} of {result.out_of:g}"
            note = f"{result.student}: {earned}"
            if console.err.is_terminal:
                bars.update(task, advance=1, note=_cut(note, 60))
            else:
                console.report(f"{next(done)} of {len(every)}: {note}")

        results = class_run.grade(every, store, clients, tell)
    if results is None:
        console.report(f"stopped: finished results are saved in {out}; the same command continues from there")
        raise typer.Exit(INTERRUPTED)
    return results


def _say(results: Sequence[Result], out: Path) -> None:
    """Print a summary of the class; exit code 1 if a notebook was not graded in full: a person has to look then."""
    from grpo_lab.grading.reports.words import Words
    from grpo_lab.grading.results import counted

    word = Words("en")
    rows = [("student", "lab", "score", "of", "to mark", "problem or warning")]
    for result in results:
        left = word("incomplete", exercises=word.count("exercise", result.not_graded)) if result.not_graded else ""
        said = [each for each in (result.problem, left, *result.warnings) if each]
        points = (f"{result.score:g}", f"{result.out_of:g}", str(len(result.by_hand) or ""))
        rows.append((_cut(result.student), _cut(result.lab or result.file), *points, "; ".join(said)))
    console.out.print(console.table(rows))
    console.say(f"reports: {out / 'index.html'}")
    counts = counted(results)
    if counts.ungraded:
        share = f"{counts.ungraded} of {word.count('notebook', counts.notebooks)}"
        console.report(f"not graded, or not in full: {share}; the reports say where and why")
        raise typer.Exit(1)


def _cut(text: str, most: int = 40) -> str:
    """The beginning of a text: one long name would widen the table for all."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
