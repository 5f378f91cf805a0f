"""Commands about the labs and the lecture, and the start of JupyterLab for them."""

import os
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from grpo_lab.cli.app import AsJson, Browser, Check, Language, app, spoken, sub
from grpo_lab.errors import DataError, GrpoLabError, RunError
from grpo_lab.messages import ENGLISH
from grpo_lab.paths import data_directory, is_installed, labs_directory, own_directory
from grpo_lab.ui import console

LECTURE, FIRST = "lecture", "00_start.ipynb"

labs_app = sub("labs", "The notebooks of the course.", no_args_is_help=True)

Labs = Annotated[list[str] | None, Argument(metavar="[LAB]...", help="Labs; by default all.")]
Out = Annotated[Path, Argument(metavar="DIR", help="Output folder.")]
Force = Annotated[bool, Option("--force", help="Overwrite files that differ.")]
Source = Annotated[Path | None, Option(help="Folder of the labs; by default labs/ here, or the package's own.")]


@labs_app.command(example="labs build --check")
def build(
    names: Labs = None,
    check: Check = False,
    folder: Annotated[Path, Option(help="Folder of the labs; each receives its notebooks.")] = Path("labs"),
) -> None:
    """Generate the learners' notebooks, labs/<lab>/<lab>.ipynb, each from the notebook.py beside it."""
    from grpo_lab.course.editions import build

    notebooks = build.render(folder, names or ())
    if not check:
        _say(build.write(notebooks))
    elif stale := build.stale(notebooks):
        raise RunError(f"out of date: {', '.join(map(str, stale))}; run grpo-lab labs build")


@labs_app.command(example="labs answers 04_guards")
def answers(names: Labs = None, folder: Source = None) -> None:
    """Try the known answers of labs, answers.toml: wrong ones must earn nothing, right ones all, each with its reason.

    Answers whose check trains take seconds each.
    """
    from grpo_lab.course.editions.release import with_exercises
    from grpo_lab.course.known_answers import known_answers
    from grpo_lab.course.tried_answers import fault

    home = _sources(folder, names)
    known = [(each, home / name) for name in with_exercises(home, names or ()) for each in known_answers(home / name)]
    faults = 0
    with console.progress() as bars:
        task = bars.add_task("answers", total=len(known), note="")
        for answer, lab in known:
            bars.update(task, note=str(answer))
            if said := fault(answer, lab):
                faults += 1
                console.say(f"{answer}: {said}")
            bars.advance(task)
    if faults:
        raise RunError(f"{faults} of {len(known)} known answers are not judged as answers.toml says")
    console.say(f"{len(known)} known answers are judged as answers.toml says")


def _edition_command(name: str, which: str, help: str) -> None:
    """Add the command that writes an edition of the notebooks to a folder."""

    @labs_app.command(name, help=help, example=f"labs {name} out/")
    def write(
        out: Out, names: Labs = None, force: Force = False, folder: Source = None, language: Language = None
    ) -> None:
        from grpo_lab.course.editions.release import edition, write_new

        _say(write_new(edition(which, _sources(folder, names), out, names or (), spoken(language)), force))


_edition_command(
    "release", "learner", "Write the learners' edition to a folder: notebooks and a README, without solutions."
)
_edition_command(
    "solutions",
    "reference",
    "Write the reference submission to a folder: the learners' notebooks with every answer filled in.",
)
_edition_command(
    "instructor",
    "instructor",
    "Write the instructor's edition to a folder: with solutions, timing, misconceptions and questions to ask.",
)


@labs_app.command(example="labs nbgrader course/")
def nbgrader(
    out: Out,
    names: Labs = None,
    reference: Annotated[bool, Option("--reference", help="Also submit the reference, as a student.")] = False,
    force: Force = False,
    folder: Source = None,
    language: Language = None,
) -> None:
    """Write a course folder for nbgrader: settings, and source/ with the cells that nbgrader grades."""
    from grpo_lab.course.editions.nbgrader import course
    from grpo_lab.course.editions.release import write_new

    _say(write_new(course(_sources(folder, names), out, names or (), reference, spoken(language)), force))


@labs_app.command("open", example="labs open --no-browser")
def open_labs(browser: Browser = True, language: Language = None) -> None:
    """Open lab 0 in JupyterLab, beside all others and your own in GRPO_LAB_DATA: copies in work/, which are kept."""
    here = _copied(labs_folder(), spoken(language))
    if own := own_directory():
        _copy_own(own / "labs", here, spoken(language))
    first = [f"--LabApp.default_url=/lab/tree/{FIRST}"] if (here / FIRST).is_file() else []
    start([f"--ServerApp.root_dir={here.resolve()}", *first], browser)


@labs_app.command(example="labs progress")
def progress(
    folder: Annotated[Path | None, Argument(metavar="[DIR]", help="By default here, work/ or labs/.")] = None,
    as_json: AsJson = False,
) -> None:
    """List every exercise of every lab: passed, attempted or open."""
    from grpo_lab.course import progress
    from grpo_lab.ui.notebook.lab import progress_as_text

    folders = [folder] if folder else [Path(), Path("work"), Path("labs")]
    found = next((each for each in folders if (each / progress.FILE).is_file()), None)
    if not found:
        where = " or ".join(map(str, folders))
        raise DataError(f"no {progress.FILE} in {where}: check an exercise first, or name the folder of its notebook")
    rows = progress.rows(found, spoken(None))
    if not as_json:
        return console.say(progress_as_text(rows))
    console.say_json(
        [{"lab": r.lab.name, "exercise": r.exercise.name, "title": r.exercise.title, "status": r.status} for r in rows]
    )


def _sources(folder: Path | None, names: Labs = None) -> Path:
    """The folder of --folder, or the first with these labs of labs/ here, the package's, and that of GRPO_LAB_DATA."""
    from grpo_lab.course.editions.build import lab_names

    homes = [Path("labs"), labs_directory(), *([own / "labs"] if (own := own_directory()) else [])]
    known = [home for home in homes if lab_names(home)]
    return folder or next((home for home in known if {*(names or ())} <= {*lab_names(home)}), known[0])


def _say(written: Iterable[Path]) -> None:
    for path in written:
        console.say(f"{path} written")


@app.command(example="lecture --no-browser")
def lecture(
    port: Annotated[int | None, Option(min=1, max=65535, help="Port of the server; by default a free one.")] = None,
    browser: Browser = True,
    language: Language = None,
) -> None:
    """Open the lecture in JupyterLab: ten recorded failures, as they happen and healed, on any machine.

    Press Shift+Enter once to begin. Ctrl-C in the terminal ends the server.
    """
    from grpo_lab.course.editions.build import place

    labs, spoken_in = labs_folder(), spoken(language)
    notebook = place(labs, LECTURE, spoken_in)
    if is_installed(labs):  # JupyterLab saves what it opens, and nothing is written into the package
        notebook = _copied(labs, spoken_in, LECTURE) / notebook.name
    # This notebook alone in the window, its folder as root.
    words = [f"--ServerApp.root_dir={notebook.parent.resolve()}", f"--LabApp.default_url=/doc/tree/{notebook.name}"]
    start([*words, *([f"--ServerApp.port={port}"] if port else [])], browser)


def labs_folder() -> Path:
    """The folder labs/ below the current one, or that of the labs that ship with the package.

    Raises DataError if neither has the notebooks.
    """
    from grpo_lab.course.editions.build import place

    here = (Path.cwd() / "labs", labs_directory())
    for folder in here:
        if place(folder, LECTURE).is_file():
            return folder
    raise DataError(f"no {place(Path(), LECTURE)} in {here[0]} or {here[1]}: install grpo_lab again")


def _copied(labs: Path, language: str, *names: str) -> Path:
    """The folder of the copies of these labs, or of all: work/ beside them, or here if they are in the package."""
    from grpo_lab.course.editions.build import lab_names
    from grpo_lab.course.editions.release import copies, write

    home = Path.cwd() if is_installed(labs) else labs.parent
    here = home / "work" / ("" if language == ENGLISH else language)
    _say(path.relative_to(home) for path in write(copies(labs, here, names or lab_names(labs), language)))
    return here


def _copy_own(labs: Path, here: Path, language: str) -> None:
    """Copy the built notebooks of one's own labs, in English where a lab has no other language."""
    from grpo_lab.course.editions.build import lab_names, languages, place
    from grpo_lab.course.editions.release import copies, write

    for name in lab_names(labs):
        known = language if language in languages(labs, name) else ENGLISH
        if place(labs, name, known).is_file():
            _say(path for path in write(copies(labs, here, [name], known)) if path.suffix == ".ipynb")
        else:
            console.say(f"{place(labs, name, known)} is missing; grpo-lab labs build --folder {labs} writes it")


def start(arguments: Sequence[str], browser: bool) -> None:
    """Serve JupyterLab until Ctrl-C, in a `browser` window or not. Raises GrpoLabError where it is not installed."""
    if not find_spec("jupyterlab"):
        raise GrpoLabError("JupyterLab is not installed: pip install 'grpo-lab[lab]', or `make lab` in the checkout")
    # The page_config.json there switches off JupyterLab's question about news; the kernel there knows `%%exercise`.
    for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"):
        paths = [str(data_directory() / "jupyter"), os.environ.get(name, "")]
        os.environ[name] = os.pathsep.join(filter(None, paths))
    from jupyterlab import labapp

    # JupyterLab refuses to run as root, as containers do; it listens on this machine alone.
    root = getattr(os, "geteuid", lambda: 1)() == 0
    labapp.main(argv=[*arguments, *([] if browser else ["--no-browser"]), *(["--allow-root"] if root else [])])
