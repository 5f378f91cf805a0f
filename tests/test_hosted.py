"""A release for GitHub: a first cell that installs, badges that lead to the notebooks, requirements for Binder."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from grpo_lab.course.editions import build
from grpo_lab.course.editions.hosted import hosted
from grpo_lab.course.editions.release import release
from grpo_lab.errors import ConfigError

WHEEL = "https://example.org/grpo_lab-0.1.0-py3-none-any.whl"


@pytest.fixture
def files(sample_lab):
    """A hosted release of the sample lab, by name."""
    made = hosted(release(sample_lab, sample_lab / "out"), "someone/course@v1", WHEEL)
    return {path.name: text for path, text in made.items()}


def ran(cell, monkeypatch, installed: bool, colab: bool):
    """Run the first cell as IPython does: the magics that it calls, and whether Colab was asked for widgets."""
    magics, asked = [], []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: installed or None)
    if colab:
        package, output = (
            ModuleType("google.colab"),
            SimpleNamespace(enable_custom_widget_manager=lambda: asked.append(1)),
        )
        monkeypatch.setattr(package, "output", output, raising=False)
        monkeypatch.setitem(sys.modules, "google", ModuleType("google"))
        monkeypatch.setitem(sys.modules, "google.colab", package)
    shell = SimpleNamespace(run_line_magic=lambda name, line: magics.append((name, line)))
    exec(TransformerManager().transform_cell(cell.source), {"get_ipython": lambda: shell})
    return magics, bool(asked)


@pytest.mark.parametrize(("installed", "colab"), [(False, True), (False, False), (True, True), (True, False)])
def test_the_first_cell_installs_where_the_package_is_missing(files, monkeypatch, installed, colab):
    first = nbformat.reads(files["sample.ipynb"], as_version=4).cells[0]
    pip = [] if installed else [("pip", f'install --quiet "grpo-lab[lab] @ {WHEEL}"')]
    assert ran(first, monkeypatch, installed, colab) == (pip, colab)


def test_nothing_else_of_a_notebook_changes(files, sample_lab):
    cells = nbformat.reads(files["sample.ipynb"], as_version=4).cells
    assert cells[1:] == nbformat.reads(build.notebook(sample_lab, "sample", "learner"), as_version=4).cells


def test_badges_and_requirements_name_the_repository(files):
    assert "(https://mybinder.org/v2/gh/someone/course/v1)" in files["README.md"]
    assert "(https://colab.research.google.com/github/someone/course/blob/v1/sample.ipynb)" in files["README.md"]
    assert files["requirements.txt"] == f"grpo-lab[lab] @ {WHEEL}\n"


@pytest.mark.parametrize("repository", ["course", "https://github.com/someone/course", "a/b/c", "a/b@", ""])
def test_another_form_of_repository_is_refused(repository):
    with pytest.raises(ConfigError, match="OWNER/NAME"):
        hosted({}, repository, WHEEL)


@pytest.mark.parametrize("package", ["", 'x" && rm', "a{b}"])
def test_a_package_that_would_break_the_cell_is_refused(package):
    with pytest.raises(ConfigError, match="wheel's address"):
        hosted({}, "a/b", package)


def test_the_command_wants_both(sample_lab, call):
    code, _, error = call("labs", "release", "out", "--folder", ".", "--github", "someone/course")
    assert (code, "go together" in error) == (2, True)
    code, out, _ = call("labs", "release", "out", "--folder", ".", "--github", "someone/course", "--package", WHEEL)
    assert (code, out.count("written")) == (0, 3)
