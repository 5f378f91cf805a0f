"""Folders made of labs: no solution leaves with the release, the reference answers all, nbgrader finds its cells."""

import json
import os
import re
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

from grpo_lab import cli
from grpo_lab.course import registry
from grpo_lab.course.editions import build, release
from grpo_lab.course.editions.nbgrader import course
from grpo_lab.course.editions.solutions import learners, solutions
from grpo_lab.course.evaluate import all_right, check
from grpo_lab.errors import DataError
from grpo_lab.ui.notebook import Lab

LABS = Path(__file__).parents[1] / "labs"


def cells(text):
    return {cell.id: cell for cell in nbformat.reads(text, as_version=4).cells}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A folder with the release of the whole course."""
    out = tmp_path_factory.mktemp("release")
    release.write_new(release.release(LABS, out))
    return out


def test_the_release_is_the_learners_notebooks_and_a_page_about_them(released):
    names = {path.name for path in released.rglob("*")}
    assert names == {"README.md", *(f"{name}.ipynb" for name in registry.course_labs())}
    for name in registry.course_labs():
        assert (released / f"{name}.ipynb").read_text() == build.place(LABS, name).read_text()
    readme = (released / "README.md").read_text()
    assert re.findall(r"\]\((.*?)\)", readme) == [f"{name}.ipynb" for name in registry.course_labs()]
    assert "| [GRPO by hand](01_grpo_by_hand.ipynb) | 40 | ★☆☆ | 11 | You can work a GRPO loss out" in readme


def test_no_line_of_a_solution_and_no_note_leaves_with_the_release(released):
    """But for lines that stand in the prose, a stub or a hint of some lab too; a last hint may be nearly the answer."""
    sources = [
        cell
        for name in registry.course_labs()
        for cell in jupytext.read(LABS / name / "notebook.py", fmt="py:percent").cells
    ]
    notes = [cell.source for cell in sources if build.INSTRUCTOR in cell.metadata.get("tags", ())]
    shown = [learners(cell.source) for cell in sources if cell.source not in notes]
    shown += [
        hint
        for name in registry.course_labs()
        for each in registry.lab_page(name).exercises.values()
        for hint in each.hints
    ]
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
    assert release.write_new(files) == list(files)
    assert release.write_new(files) == []
    for name in "abcde":
        (tmp_path / "new" / f"{name}.ipynb").write_bytes(b"\xff mine")
    with pytest.raises(
        DataError, match=r"already there, and different: .*a\.ipynb, .*c\.ipynb and 2 more; write to ano"
    ):
        release.write_new({**files, tmp_path / "more": ""})
    assert (tmp_path / "new" / "a.ipynb").read_bytes() == b"\xff mine"
    assert not (tmp_path / "more").exists()
    assert release.write_new(files, force=True) == list(files)
    assert (tmp_path / "new" / "a.ipynb").read_text() == "a"


# For nbgrader. What the real one makes of it is in tests/instructor.


@pytest.fixture
def gradable(sample_lab):
    """The cells of the sample lab in a course folder, by id."""
    files = course(Path(), Path("course"), with_reference=True)
    assert [str(path) for path in files] == [
        "course/nbgrader_config.py",
        "course/source/sample/sample.ipynb",
        "course/submitted/reference/sample/sample.ipynb",
    ]
    _, source, reference = files.values()
    return cells(source), cells(reference)


def test_nbgraders_notebook_is_the_learners_with_cells_for_points(gradable, sample_lab):
    source, reference = gradable
    learner = cells(build.notebook(sample_lab, "sample", "learner"))
    assert [name for name in source if not name.endswith("-points")] == list(learner)
    assert {name: cell.source for name, cell in source.items() if name in learner} == {
        name: cell.source for name, cell in learner.items()
    }
    order = list(source)
    for name in ("guess", "double", "guards", "letter"):
        assert order[order.index(f"sample-{name}") + 1] == f"sample-{name}-points"
        assert source[f"sample-{name}-points"].source == f'lab.points("{name}")'
    assert reference["sample-letter"].source == '%%exercise letter\nanswer = "b"'
    assert list(reference) == order


def test_nbgraders_metadata(gradable):
    marked = {
        name: dict(cell.metadata["nbgrader"]) for name, cell in gradable[0].items() if "nbgrader" in cell.metadata
    }
    common = {"schema_version": 3, "task": False}
    answer = {**common, "grade": False, "solution": True, "locked": False}
    points = {**common, "grade": True, "solution": False, "locked": True}
    assert marked == {
        "sample-guess": {**answer, "grade_id": "sample-guess"},
        "sample-guess-points": {**points, "grade_id": "sample-guess-points", "points": 1},
        "sample-double": {**answer, "grade_id": "sample-double"},
        "sample-double-points": {**points, "grade_id": "sample-double-points", "points": 3},
        "sample-guards": {**answer, "grade_id": "sample-guards"},
        "sample-guards-points": {**points, "grade_id": "sample-guards-points", "points": 3},
        "sample-letter": {**answer, "grade_id": "sample-letter"},
        "sample-letter-points": {**points, "grade_id": "sample-letter-points", "points": 1},
        # A person marks it: the answer itself is what is graded.
        "sample-words": {**answer, "grade_id": "sample-words", "grade": True, "points": 1},
    }


def test_points_are_earned_by_the_last_look_and_by_nothing_else(sample_lab, capfd):
    lab = Lab("sample")
    assert lab.points("double") == 0.0
    lab.exercise("double", "import sys\ndef double(x):\n    print('!', file=sys.stderr)\n    return x + x")
    capfd.readouterr()
    assert repr(lab.points("double")) == "3.0"  # a float: nbgrader takes anything else for full marks
    assert capfd.readouterr() == ("", "")  # a word on stderr would cost the points
    for wrong in ("def double(x):\n    return x", "def double(x):\n    ...  # your answer", "def double(x:"):
        lab.exercise("double", "def double(x):\n    return x + x")
        with pytest.raises(Exception, match=r"right so far|waits for your answer"):
            lab.exercise("double", wrong)
        assert lab.points("double") == 0.0
    assert Lab("sample").points("double") == 0.0  # another session, which has looked at nothing
    with pytest.raises(Exception, match="unknown exercise of sample 'twice'"):
        lab.points("twice")


def test_nbgraders_settings(gradable, monkeypatch):
    """They are Python, as nbgrader reads them."""
    from traitlets.config import Config

    monkeypatch.delenv("GRPO_LAB_FAST", raising=False)
    config = Config()
    settings = next(iter(course(Path(), Path("course")).values()))
    exec(compile(settings, "nbgrader_config.py", "exec"), {"get_config": lambda: config})
    assert config.ClearSolutions.enabled is False  # else nbgrader would replace our stubs, and the names in them
    assert config.Execute.timeout >= 120  # its own 30 seconds are fewer than a check that trains may take
    assert os.environ.pop("GRPO_LAB_FAST") == "1"


# The commands.


@pytest.fixture
def run(sample_lab, monkeypatch, capsys):
    """`grpo-lab labs` with more words: exit code, standard output, standard error."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["grpo-lab", "labs", *words, "--folder", "."])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


@pytest.mark.parametrize(
    ("command", "written"),
    [
        (["release", "out"], ["README.md", "sample.ipynb"]),
        (["solutions", "out", "sample"], ["sample.ipynb"]),
        (["nbgrader", "out"], ["nbgrader_config.py", "source/sample/sample.ipynb"]),
        (
            ["nbgrader", "out", "--reference"],
            ["nbgrader_config.py", "source/sample/sample.ipynb", "submitted/reference/sample/sample.ipynb"],
        ),
    ],
)
def test_a_command_writes_and_overwrites_when_told_to(command, written, run):
    paths = [f"out/{name}" for name in written]
    assert run(*command) == (0, "".join(f"{path} written\n" for path in paths), "")
    assert run(*command) == (0, "", "")
    Path(paths[-1]).write_text("mine")
    code, out, error = run(*command)
    assert (code, out) == (2, "")
    assert error == (
        f"error: already there, and different: {paths[-1]}; write to another folder, or overwrite with --force\n"
    )
    assert run(*command, "--force") == (0, f"{paths[-1]} written\n", "")


def test_what_is_no_lab_is_not_handed_out(run, sample_lab):
    (sample_lab / "talk").mkdir()
    (sample_lab / "talk" / "notebook.py").write_text("# %%\n1 + 1\n")
    assert run("release", "out")[0] == 0
    assert not Path("out/talk.ipynb").exists()
    code, _, error = run("release", "out", "talk")
    assert code == 2
    assert "unknown lab 'talk'" in error
