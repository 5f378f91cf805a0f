"""A course folder for nbgrader: notebooks with the cells that it grades, and its settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_lab.course import pages
from grpo_lab.course.editions.build import LEARNER, REFERENCE, as_text, made, new_cell
from grpo_lab.course.editions.release import with_exercises
from grpo_lab.course.exercises import LabPage
from grpo_lab.messages import ENGLISH
from grpo_lab.paths import data_directory

STUDENT = "reference"
"""The student who submits the reference."""


def course(
    folder: Path, out: Path, names: Sequence[str] = (), with_reference: bool = False, language: str = ENGLISH
) -> dict[Path, str]:
    """The settings and source/<lab>/<lab>.ipynb by file; on request also the reference, as one student's submission."""
    settings = data_directory() / "templates" / "nbgrader_config.py"
    editions = {out / "source": LEARNER, **({out / "submitted" / STUDENT: REFERENCE} if with_reference else {})}
    return {
        out / settings.name: settings.read_text(encoding="utf-8"),
        **{
            below / name / f"{name}.ipynb": as_text(gradable(made(folder, name, edition, language), page))
            for name in with_exercises(folder, names)
            for page in [pages.page(folder / name)]
            for below, edition in editions.items()
        },
    }


def gradable(notebook: Any, page: LabPage) -> Any:
    """A lab's notebook with nbgrader's metadata on its exercises, and after each the cell that earns its points."""
    exercises = {page.cell_id(name): exercise for name, exercise in page.exercises.items()}
    cells, notebook.cells = notebook.cells, []
    for cell in cells:
        notebook.cells.append(cell)
        exercise = exercises.get(cell.id)
        if exercise and exercise.kind == "text":  # a person marks the cell itself
            cell.metadata["nbgrader"] = _metadata(cell.id, solution=True, points=exercise.points)
        elif exercise:
            cell.metadata["nbgrader"] = _metadata(cell.id, solution=True)
            points = new_cell("code", f"{cell.id}-points", f'lab.points("{exercise.name}")')
            points.metadata["nbgrader"] = _metadata(points.id, points=exercise.points)
            notebook.cells.append(points)
    return notebook


def _metadata(identity: str, solution: bool = False, points: int | None = None) -> dict[str, Any]:
    """Metadata of nbgrader's schema 3: a graded cell has points, and is locked unless it is a solution."""
    graded = points is not None
    return {
        "schema_version": 3,
        "grade_id": identity,
        "grade": graded,
        "solution": solution,
        "locked": graded and not solution,
        "task": False,
        **({"points": points} if graded else {}),
    }
