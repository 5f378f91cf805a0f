"""Folders made of labs: no solution leaves with the release, the reference answers all, nbgrader finds its cells."""

import json
import os
import re
from pathlib import Path

import jupytext
import nbformat
import pytest

from grpo_lab.course import registry
from grpo_lab.course.editions import build, release
from grpo_lab.course.editions.nbgrader import course
from grpo_lab.course.editions.solutions import learners, solutions
from grpo_lab.course.evaluate import all_right, check
from grpo_lab.errors import DataError, GrpoLabError
from grpo_lab.ui.notebook import Lab

LABS = Path(__file__).parents[1] / "labs"
COURSE = registry.course_labs()


def cells(text):
    return {cell.id: cell for cell in nbformat.reads(text, as_version=4).cells}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A folder with the release of the whole course."""
    out = tmp_path_factory.mktemp("release")
    release.write_new(release.edition(build.LEARNER, LABS, out))
    return out


def test_the_release_is_the_learners_notebooks_and_a_page_about_them(released):
    assert {path.name for path in released.rglob("*")} == {"README.md", *(f"{name}.ipynb" for name in COURSE)}
    for name in COURSE:
        assert (released / f"{name}.ipynb").read_text() == build.place(LABS, name).read_text()
    readme = (released / "README.md").read_text()
    assert re.findall(r"\]\((.*?)\)", readme) == [f"{name}.ipynb" for name in COURSE]
    assert "| [GRPO by hand](01_grpo_by_hand.ipynb) | 60 | ★☆☆ | 18 | You can work a GRPO loss out" in readme


def test_no_line_of_a_solution_and_no_note_leaves_with_the_release(released):
    """But for lines that stand in the prose, a stub or a hint of some lab too; a last hint may be nearly the answer."""
    sources = [cell for name in COURSE for cell in jupytext.read(LABS / name / "notebook.py", fmt="py:percent").cells]
    notes = [cell.source for cell in sources if build.INSTRUCTOR in cell.metadata.get("tags", ())]
    shown = [learners(cell.source) for cell in sources if cell.source not in notes]
    shown += [hint for name in COURSE for each in registry.lab_page(name).exercises.values() for hint in each.hints]
    shared = "\n".join(shown)
    lines = {line.strip() for cell in sources for solved in solutions(cell.source) for line in solved}
    lines |= {line for note in notes for line in note.split("\n")}
    telling = {line for line in lines if len(line) > 12 and line not in shared}
    assert len(telling) > 200
    everything = "".join(path.read_text() for path in released.rglob("*") if path.is_file())
    # In the file of a notebook, a line is a text of JSON.
    assert {line for line in telling if line in everything or json.dumps(line)[1:-1] in everything} == set()


def test_the_reference_is_what_a_learner_hands_in_who_answered_all(sample_lab):
    (text,) = release.edition(build.REFERENCE, Path(), Path("out")).values()
    solved, learner = cells(text), cells(build.notebook(sample_lab, "sample", "learner"))
    assert list(solved) == list(learner)
    differing = [name for name in solved if solved[name] != learner[name]]
    assert differing == [f"sample-{name}" for name in ("guess", "double", "guards", "letter", "words")]
    for name, exercise in registry.lab_page("sample").exercises.items():
        answer = sample_lab / f"{name}.py"
        answer.write_text(solved[f"sample-{name}"].source.partition("\n")[2])
        assert all_right(check(exercise, answer)), name


def test_somebodys_work_is_not_overwritten(tmp_path):
    files = {tmp_path / "new" / f"{name}.ipynb": name for name in "abcde"}
    assert release.write_new(files) == list(files) and release.write_new(files) == []
    for path in files:
        path.write_bytes(b"\xff mine")
    with pytest.raises(DataError, match=r"already there, and different: .*a\.ipynb, .*c\.ipynb and 2 more"):
        release.write_new({**files, tmp_path / "more": ""})
    assert (tmp_path / "new" / "a.ipynb").read_bytes() == b"\xff mine" and not (tmp_path / "more").exists()
    assert release.write_new(files, force=True) == list(files)
    assert (tmp_path / "new" / "a.ipynb").read_text() == "a"


# For nbgrader. What the real one makes of it is in tests/instructor.


def test_nbgraders_notebook_is_the_learners_with_cells_for_points(sample_lab):
    files = course(Path(), Path("course"), with_reference=True)
    assert [str(path) for path in files] == [
        "course/nbgrader_config.py",
        "course/source/sample/sample.ipynb",
        "course/submitted/reference/sample/sample.ipynb",
    ]
    source, reference = map(cells, list(files.values())[1:])
    learner = cells(build.notebook(sample_lab, "sample", "learner"))
    assert {name: cell.source for name, cell in source.items() if not name.endswith("-points")} == {
        name: cell.source for name, cell in learner.items()
    }
    order = list(source)
    assert list(reference) == order and reference["sample-letter"].source == '%%exercise letter\nanswer = "b"'
    answer = {"schema_version": 3, "task": False, "grade": False, "solution": True, "locked": False}
    points = {"schema_version": 3, "task": False, "grade": True, "solution": False, "locked": True}
    marked = {name: cell.metadata["nbgrader"] for name, cell in source.items() if "nbgrader" in cell.metadata}
    # A person marks the words: the answer itself is what is graded.
    words = {"sample-words": {**answer, "grade_id": "sample-words", "grade": True, "points": 1}}
    for name, worth in {"guess": 1, "double": 3, "guards": 3, "letter": 1}.items():
        words[f"sample-{name}"] = {**answer, "grade_id": f"sample-{name}"}
        words[f"sample-{name}-points"] = {**points, "grade_id": f"sample-{name}-points", "points": worth}
        assert order[order.index(f"sample-{name}") + 1] == f"sample-{name}-points"
        assert source[f"sample-{name}-points"].source == f'lab.points("{name}")'
    assert marked == words


def test_points_are_earned_by_the_last_look_and_by_nothing_else(sample_lab, capfd):
    lab = Lab("sample")
    assert lab.points("double") == 0.0
    lab.exercise("double", "import sys\ndef double(x):\n    print('!', file=sys.stderr)\n    return x + x")
    capfd.readouterr()
    assert repr(lab.points("double")) == "3.0"  # a float: nbgrader takes anything else for full marks
    assert capfd.readouterr() == ("", "")  # a word on stderr would cost the points
    for wrong in ("def double(x):\n    return x", "def double(x):\n    ...  # your answer", "def double(x:"):
        lab.exercise("double", "def double(x):\n    return x + x")
        with pytest.raises(GrpoLabError):
            lab.exercise("double", wrong)
        assert lab.points("double") == 0.0
    assert Lab("sample").points("double") == 0.0  # another session, which has looked at nothing
    with pytest.raises(GrpoLabError, match="unknown exercise of sample 'twice'"):
        lab.points("twice")


def test_nbgraders_settings(sample_lab, monkeypatch):
    """They are Python, as nbgrader reads them."""
    from traitlets.config import Config

    monkeypatch.delenv("GRPO_LAB_FAST", raising=False)
    config = Config()
    settings = next(iter(course(Path(), Path("course")).values()))
    exec(compile(settings, "nbgrader_config.py", "exec"), {"get_config": lambda: config})
    assert config.ClearSolutions.enabled is False  # else nbgrader would replace our stubs, and the names in them
    assert config.Execute.timeout >= 120  # its own 30 seconds are fewer than a check that trains may take
    assert os.environ.pop("GRPO_LAB_FAST") == "1"


SOURCE = "source/sample/sample.ipynb"


@pytest.mark.parametrize(
    ("command", "written"),
    [
        (["release", "out"], ["README.md", "sample.ipynb"]),
        (["solutions", "out", "sample"], ["sample.ipynb"]),
        (["nbgrader", "out"], ["nbgrader_config.py", SOURCE]),
        (
            ["nbgrader", "out", "--reference"],
            ["nbgrader_config.py", SOURCE, "submitted/reference/sample/sample.ipynb"],
        ),
    ],
)
def test_a_command_writes_and_overwrites_when_told_to(command, written, sample_lab, call):
    paths = [f"out/{name}" for name in written]
    words = ("labs", *command, "--folder", ".")
    assert call(*words) == (0, "".join(f"{path} written\n" for path in paths), "")
    assert call(*words) == (0, "", "")
    Path(paths[-1]).write_text("mine")
    code, out, error = call(*words)
    assert (code, out) == (2, "") and f"different: {paths[-1]};" in error and "--force" in error
    assert call(*words, "--force") == (0, f"{paths[-1]} written\n", "")


def test_what_is_no_lab_is_not_handed_out(sample_lab, call):
    (sample_lab / "talk").mkdir()
    (sample_lab / "talk" / "notebook.py").write_text("# %%\n1 + 1\n")
    assert call("labs", "release", "out", "--folder", ".")[0] == 0 and not Path("out/talk.ipynb").exists()
    code, _, error = call("labs", "release", "out", "talk", "--folder", ".")
    assert code == 2 and "unknown lab 'talk'" in error
