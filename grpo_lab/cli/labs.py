"""Commands about the labs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.cli import lecture
from grpo_lab.cli.app import AsJson, Browser, Check, Language, spoken, sub
from grpo_lab.errors import DataError, RunError, unknown
from grpo_lab.paths import labs_directory
from grpo_lab.ui import console

labs_app = sub("labs", "The notebooks of the course.", no_args_is_help=True)

Labs = Annotated[list[str] | None, typer.Argument(metavar="[LAB]...", help="Labs; by default all.")]
Out = Annotated[Path, typer.Argument(metavar="DIR", help="Output folder.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")]
Source = Annotated[
    Path | None, typer.Option(help="Folder that holds src/; by default labs/ here, or the package's own.")
]


@labs_app.callback()
def labs() -> None:
    """Generate notebooks from labs/src for learners, instructors and graders."""


@labs_app.command(example="labs build --check")
def build(
    names: Labs = None,
    edition: Annotated[str | None, typer.Option(help="learner or instructor; by default both.")] = None,
    check: Check = False,
    folder: Annotated[Path, typer.Option(help="Folder that holds src/ and receives the notebooks.")] = Path("labs"),
) -> None:
    """Generate the notebooks from labs/src: for learners, and with solutions and notes in labs/instructor."""
    from grpo_lab.course.editions import build

    if edition is not None and edition not in build.EDITIONS:
        raise unknown("edition", edition, build.EDITIONS)
    notebooks = build.render(folder, names or (), (edition,) if edition else build.EDITIONS)
    if not check:
        _say(build.write(notebooks))
    elif stale := build.stale(notebooks):
        raise RunError(f"out of date: {', '.join(map(str, stale))}; run grpo-lab labs build")


@labs_app.command(example="labs release out/")
def release(
    out: Out,
    names: Labs = None,
    force: Force = False,
    folder: Source = None,
    language: Language = None,
) -> None:
    """Write the learners' edition to a folder: notebooks and a README, without solutions."""
    from grpo_lab.course.editions.release import release, write_new

    _say(write_new(release(_sources(folder), out, names or (), spoken(language)), force))


@labs_app.command(example="labs solutions out/")
def solutions(
    out: Out, names: Labs = None, force: Force = False, folder: Source = None, language: Language = None
) -> None:
    """Write the reference submission to a folder: the learners' notebooks with every answer filled in."""
    from grpo_lab.course.editions.release import reference, write_new

    _say(write_new(reference(_sources(folder), out, names or (), spoken(language)), force))


@labs_app.command(example="labs nbgrader course/")
def nbgrader(
    out: Out,
    names: Labs = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Also submit the reference, as the student `reference`.")
    ] = False,
    force: Force = False,
    folder: Source = None,
    language: Language = None,
) -> None:
    """Write a course folder for nbgrader: settings, and source/ with the cells that nbgrader grades."""
    from grpo_lab.course.editions.nbgrader import course
    from grpo_lab.course.editions.release import write_new

    _say(write_new(course(_sources(folder), out, names or (), reference, spoken(language)), force))


@labs_app.command("open", example="labs open --no-browser")
def open_labs(browser: Browser = True, language: Language = None) -> None:
    """Open the labs in JupyterLab: copies in the folder work/, which git ignores; copies that are there are kept."""
    from grpo_lab.course.editions.build import place
    from grpo_lab.course.editions.release import copies, write

    labs = lecture.labs_folder()
    work = lecture.work_folder(labs)
    here = place(work, spoken(language))
    written = write(copies(place(labs, spoken(language)), here))
    _say(path.relative_to(work.parent) for path in written)
    lecture.start([f"--ServerApp.root_dir={here.resolve()}", *([] if browser else ["--no-browser"])])


@labs_app.command(example="labs progress")
def progress(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Folder of the notebooks; by default here, work/ or labs/.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every exercise of every lab: passed, attempted or open."""
    from grpo_lab.course import progress
    from grpo_lab.ui.notebook import progress_view

    folders = [folder] if folder else [Path(), Path("work"), Path("labs")]
    found = next((each for each in folders if (each / progress.FILE).is_file()), None)
    if not found:
        where = " or ".join(map(str, folders))
        raise DataError(f"no {progress.FILE} in {where}: check an exercise first, or name the folder of its notebook")
    rows = progress.rows(found, spoken(None))
    if not as_json:
        return console.say(progress_view.as_text(rows))
    named = [(row.lab.name, row.exercise.name, row.exercise.title, row.status) for row in rows]
    console.say_json([dict(zip(("lab", "exercise", "title", "status"), row, strict=True)) for row in named])


def _sources(folder: Path | None) -> Path:
    """The folder of --folder, or the first of labs/ here and the package's own that has sources."""
    from grpo_lab.course.editions.build import SOURCES

    here = Path("labs")
    return folder or (here if (here / SOURCES).is_dir() else labs_directory())


def _say(written: Iterable[Path]) -> None:
    for path in written:
        console.say(f"{path} written")
