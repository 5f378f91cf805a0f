"""`grpo-lab labs open`: learners work in a copy that git ignores, and an exercise before the first cell says so."""

import os
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from grpo_lab.course.answers import MAGIC
from grpo_lab.paths import data_directory, labs_directory
from grpo_lab.ui import first_cell

ROOT = Path(__file__).parents[1]


@pytest.fixture
def open_labs(monkeypatch, tmp_path, call):
    """`grpo-lab labs open …` in a folder with two notebooks: what JupyterLab was told, exit code, output, error."""
    told = []
    monkeypatch.setattr("jupyterlab.labapp.main", lambda argv: told.append(argv))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH"):
        monkeypatch.setenv(name, "/of/the/user")
    labs = tmp_path / "labs"
    for name in ("00_start", "lecture"):
        (labs / name).mkdir(parents=True)
        for file in ("notebook.py", f"{name}.ipynb"):
            (labs / name / file).write_text(f"{name}.ipynb")
    shutil.copy(labs_directory() / "00_start" / "lab.toml", labs / "00_start")
    shutil.copy(labs_directory() / "00_start" / "checks.py", labs / "00_start")
    monkeypatch.chdir(tmp_path)

    return lambda *words: (told, *call("labs", "open", *words))


def test_learners_work_in_a_copy(open_labs, tmp_path):
    (told,), code, *_ = open_labs("--no-browser")
    assert not code
    work = tmp_path / "work"
    assert told == [f"--ServerApp.root_dir={work}", "--LabApp.default_url=/lab/tree/00_start.ipynb", "--no-browser"]
    assert {path.name for path in work.iterdir()} == {"00_start.ipynb", "lecture.ipynb", "README.md"}
    assert os.environ["JUPYTER_PATH"].split(os.pathsep) == [str(data_directory() / "jupyter"), "/of/the/user"]


def test_the_work_of_a_learner_is_kept(open_labs, tmp_path):
    open_labs()
    (tmp_path / "work" / "00_start.ipynb").write_text("of the learner")
    (tmp_path / "labs" / "lecture" / "lecture.ipynb").write_text("newer")
    (tmp_path / "work" / "README.md").unlink()
    _, code, out, _ = open_labs()
    assert not code and (tmp_path / "work" / "00_start.ipynb").read_text() == "of the learner"
    assert (tmp_path / "work" / "lecture.ipynb").read_text() == "lecture.ipynb"
    assert out == "work/README.md written\n"


def test_labs_of_ones_own_are_copied_too(open_labs, monkeypatch, tmp_path):
    """Before: those of the course alone."""
    for name in ("mine", "unbuilt"):
        shutil.copytree(ROOT / "tests" / "own" / "labs" / "sample", tmp_path / "own" / "labs" / name)
    (tmp_path / "own" / "labs" / "mine" / "mine.ipynb").write_text("my own")
    monkeypatch.setenv("GRPO_LAB_DATA", str(tmp_path / "own"))
    _, code, out, _ = open_labs()
    assert not code and (tmp_path / "work" / "mine.ipynb").read_text() == "my own"
    assert "unbuilt.ipynb is missing; grpo-lab labs build --folder" in out.replace("\n", " ")


def test_the_labs_of_an_installed_package_are_copied_to_the_current_folder(open_labs, monkeypatch, tmp_path):
    package, here = tmp_path / "site-packages" / "grpo_lab", tmp_path / "here"
    (package / "data" / "presets").mkdir(parents=True)
    (package / "data" / "templates").symlink_to(data_directory() / "templates")
    (package / "data" / "locale").symlink_to(data_directory() / "locale")
    (tmp_path / "labs").rename(package / "labs")
    monkeypatch.setattr("grpo_lab.paths.__file__", str(package / "paths.py"))
    here.mkdir()
    monkeypatch.chdir(here)
    (told,), code, out, _ = open_labs()
    assert not code and told[0] == f"--ServerApp.root_dir={here / 'work'}"
    assert {path.name for path in (here / "work").iterdir()} == {"00_start.ipynb", "lecture.ipynb", "README.md"}
    assert "work/00_start.ipynb written\n" in out


def test_git_ignores_what_a_learner_does():
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("no git, or no checkout")
    left = ["work/00_start.ipynb", "work/answers/00_start/guess.py", "work/runs/a/events.jsonl", "work/00_start.zip"]
    done = subprocess.run(["git", "check-ignore", *left], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == left
    recipe = (ROOT / "Makefile").read_text().partition("\nlab:")[2].split("\n")[1]
    assert recipe.strip().endswith("grpo-lab labs open")


def test_an_exercise_before_the_first_cell_says_what_to_run(tmp_path, monkeypatch):
    """In the kernel that `labs open` gives JupyterLab."""
    assert first_cell.NAME == MAGIC
    monkeypatch.setenv("JUPYTER_PATH", str(data_directory() / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cell = nbformat.v4.new_code_cell("%%exercise guess\nanswer = 'b'")
    book = nbformat.v4.new_notebook(
        cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "Python"}}
    )
    with pytest.raises(CellExecutionError, match="run the first code cell of this notebook, then this one"):
        NotebookClient(book, timeout=60).execute(cwd=str(tmp_path))
    (error,) = cell.outputs
    assert error.ename == "Unanswered" and len(error.traceback) == 1
