"""Folders of labs: the learners' notebooks, and the reference with every answer filled in."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_lab.analysis.markdown import render
from grpo_lab.course import pages
from grpo_lab.course.editions import build
from grpo_lab.course.editions.build import LEARNER, chosen, has_exercises, lab_names, notebook, place, stale, write
from grpo_lab.errors import DataError
from grpo_lab.messages import ENGLISH, text_in

_HEAD = ("lab", "minutes", "difficulty", "points", "afterwards")
"""Columns of the table in a release's README, by their ids in data/locale."""


def with_exercises(folder: Path, names: Sequence[str] = ()) -> Sequence[str]:
    """The named labs, or all with a source below a folder; the lecture has no exercises and is not among them."""
    return chosen(folder, [name for name in lab_names(folder) if has_exercises(folder, name)], names)


def edition(which: str, folder: Path, out: Path, names: Sequence[str] = (), language: str = ENGLISH) -> dict[Path, str]:
    """The notebooks of an edition, by file; with those for learners a README."""
    labs = with_exercises(folder, names)
    readme = {out / "README.md": _readme(folder, labs, language)} if which == LEARNER else {}
    return readme | {out / f"{name}.ipynb": notebook(folder, name, which, language) for name in labs}


def copies(folder: Path, out: Path, names: Sequence[str], language: str) -> dict[Path, str]:
    """The built notebooks of these labs, by the file of a copy that does not exist yet; and a README for many."""
    files = [place(folder, name, language) for name in names]
    labs = [name for name in names if has_exercises(folder, name)]
    readme = {out / "README.md": _readme(folder, labs, language)} if labs else {}
    found = {**readme, **{out / path.name: path.read_text(encoding="utf-8") for path in files}}
    return {path: text for path, text in found.items() if not path.exists()}


def _readme(folder: Path, labs: Sequence[str], language: str) -> str:
    head = [text_in(language, f"course.{column}") for column in _HEAD]
    return render("course", language, labs=[head, *(_row(folder / name, language) for name in labs)])


def write_new(files: Mapping[Path, str], force: bool = False) -> list[Path]:
    """Write new and unchanged files, and return the new ones.

    Raises DataError for a file that differs, which may be somebody's work, unless `force` is set.
    """
    differing = [path for path in stale(files) if path.exists()]
    if differing and not force:
        listed = ", ".join(map(str, differing[:3])) + (f" and {len(differing) - 3} more" if differing[3:] else "")
        what = f"already there, and different: {listed}"
        raise DataError(f"{what}; write to another folder, or overwrite with --force")
    return write(files)


def _row(folder: Path, language: str) -> Sequence[str]:
    page = pages.in_language(pages.page(folder), language)
    points = sum(exercise.points for exercise in page.exercises.values())
    return (
        f"[{page.title}]({page.name}.ipynb)",
        str(page.minutes),
        build.stars(page.difficulty),
        str(points),
        page.summary,
    )
