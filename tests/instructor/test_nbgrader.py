"""The real nbgrader on a course folder: it releases our stubs, and grades what comes back as the labs do.

`pip install -e .[instructor]` brings it. The lab is that of tests/own.
"""

import csv
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

from grpo_lab.course.editions import build
from grpo_lab.course.editions.nbgrader import course
from grpo_lab.course.editions.release import write_new
from grpo_lab.grading import notebooks, submissions

pytestmark = pytest.mark.skipif(not find_spec("nbgrader"), reason="nbgrader comes with the extra `instructor`")
ROOT = Path(__file__).parents[2]
HALF = {
    "sample-guess": '%%exercise guess\nanswer = "c"',
    "sample-double": "%%exercise double\nimport warnings\n\n\ndef double(x):\n    warnings.warn('!')\n    return x + x",
    "sample-guards": '%%exercise guards\nguards = ("clip_gradients",)',
    "sample-words": '%%exercise words\nanswer = "it takes two"',
}
"""Answers of a learner: right with a warning on stderr, wrong, left out, and in words."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The course folder."""
    return tmp_path_factory.mktemp("course")


@pytest.fixture(scope="module")
def nbgrader(home):
    """Runs nbgrader in the course folder, with settings of no user; what it logs."""
    names = {"IPYTHONDIR": "ipython", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(home / path) for name, path in names.items()}}
    environment |= {"GRPO_LAB_DATA": str(ROOT / "tests" / "own"), "PYTHONPATH": str(ROOT)}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # it runs alembic

    def run(*words):
        command = [sys.executable, "-m", "nbgrader", *words]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


@pytest.fixture
def graded(home, nbgrader, sample_lab):
    """A course in which a learner answered all, one nothing and one a part, and all was graded: its folder."""
    if not (home / "source").exists():
        write_new({home / path: text for path, text in course(sample_lab, Path(), with_reference=True).items()})
        nbgrader("generate_assignment", "sample")
        released = home / "release" / "sample" / "sample.ipynb"
        hand_in(released, home, "untouched", {})
        hand_in(released, home, "half", HALF)
        nbgrader("autograde", "sample")
        nbgrader("generate_feedback", "sample")
        nbgrader("export")
    assert (home / "grades.csv").exists(), "nbgrader failed, as the first test to ask for it says"
    return home


def hand_in(released, home, student, answers):
    """The notebook that nbgrader released, with answers in its cells, as JupyterLab saves it."""
    notebook = nbformat.read(released, as_version=4)
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    folder = home / "submitted" / student / "sample"
    (folder / "answers" / "sample").mkdir(parents=True)
    (folder / "answers" / "sample" / "letter.py").write_text('answer = "b"')  # right, and not in the notebook
    nbformat.write(notebook, folder / "sample.ipynb")


def cells(path):
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


def scores(home, student):
    """What the cells of points say in a notebook that was graded."""
    made = cells(home / "autograded" / student / "sample" / "sample.ipynb")
    return {
        name.removeprefix("sample-").removesuffix("-points"): float(cell.outputs[0]["data"]["text/plain"])
        for name, cell in made.items()
        if name.endswith("-points")
    }


def rows(home):
    """What nbgrader exports: score and maximum of each student."""
    with (home / "grades.csv").open() as file:
        return {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in csv.DictReader(file)}


def test_nbgrader_releases_the_learners_cells_under_their_ids(graded, sample_lab):
    released = cells(graded / "release" / "sample" / "sample.ipynb")
    learner = nbformat.reads(build.notebook(sample_lab, "sample", "learner"), as_version=4).cells
    assert {name: cell.source for name, cell in released.items() if not name.endswith("-points")} == {
        cell.id: cell.source for cell in learner
    }
    assert released["sample-letter"].source.endswith("answer = ...  # your answer")
    assert released["sample-letter-points"].metadata.editable is False


def test_all_nothing_and_a_part(graded):
    assert scores(graded, "reference") == {"guess": 1, "double": 3, "guards": 3, "letter": 1}
    assert scores(graded, "untouched") == dict.fromkeys(("guess", "double", "guards", "letter"), 0)
    assert scores(graded, "half") == {"guess": 1, "double": 3, "guards": 0, "letter": 0}


def test_the_gradebook_says_the_same(graded):
    """The point for words waits for a person, but where there are none."""
    assert {name: row for name, row in rows(graded).items() if name != "bold"} == {
        "reference": (8.0, 9.0),
        "untouched": (0.0, 9.0),
        "half": (4.0, 9.0),
    }


def test_nothing_is_on_stderr_where_it_would_cost_points(graded):
    for student in ("reference", "untouched", "half"):
        for name, cell in cells(graded / "autograded" / student / "sample" / "sample.ipynb").items():
            if name.endswith("-points"):
                assert [output.output_type for output in cell.outputs] == ["execute_result"], (student, name)


def test_ids_survive_and_so_does_every_answer(graded):
    released = list(cells(graded / "release" / "sample" / "sample.ipynb"))
    for step in ("submitted", "autograded"):
        made = cells(graded / step / "half" / "sample" / "sample.ipynb")
        assert list(made) == released
        assert {name: made[name].source for name in HALF} == HALF


def test_our_grader_finds_the_same_answers_in_what_nbgrader_collected(graded):
    found = [notebooks.read(each, 10**7) for each in submissions.found([graded / "submitted"])]
    answered = {
        each.student: (each.lab, sorted(each.answers), each.problem) for each in found if each.student != "bold"
    }
    assert answered == {
        "half": ("sample", ["double", "guards", "guess", "words"], ""),
        "reference": ("sample", ["double", "guards", "guess", "letter", "words"], ""),
        "untouched": ("sample", [], ""),
    }


def test_feedback_is_the_notebook_and_not_what_it_wrote(graded):
    files = {path.name for path in (graded / "feedback" / "half").rglob("*") if path.is_file()}
    assert files == {"sample.html"}
    assert "Score: 4.0 / 9.0" in (graded / "feedback" / "half" / "sample" / "sample.html").read_text()


def test_a_cell_of_points_that_was_changed_is_put_back_and_one_that_was_deleted_earns_nothing(graded, nbgrader):
    shutil.copytree(graded / "submitted" / "half", graded / "submitted" / "bold")
    file = graded / "submitted" / "bold" / "sample" / "sample.ipynb"
    notebook = nbformat.read(file, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id != "sample-double-points"]
    (guards,) = (cell for cell in notebook.cells if cell.id == "sample-guards-points")
    guards.source = "3.0"
    nbformat.write(notebook, file)
    assert "has changed" in nbgrader("autograde", "sample", "--student", "bold")
    nbgrader("export")
    assert scores(graded, "bold") == {"guess": 1, "guards": 0, "letter": 0}
    assert rows(graded)["bold"] == (1.0, 9.0)
