"""Every lab runs: each stub stops it with one line, each reference solution goes on, and nothing is on stderr.

What is run is the instructor's edition, with the learner's cell of each exercise before the solution of it.
"""

import copy
import os
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from grpo_lab.course import registry
from grpo_lab.course.editions import build
from grpo_lab.ui import notebook_mode

ROOT = Path(__file__).parents[1]
LABS = ROOT / "labs"
BEGIN = "%reset -f\nfrom grpo_lab.ui import notebook_mode; notebook_mode.SHORT = {}"
"""Runs of 5 steps are enough to run every cell; `GRPO_LAB_FAST=1` alone asks for 12."""
FEWEST = 5
OWN = f"import os; os.environ['GRPO_LAB_DATA'] = {str(ROOT / 'tests' / 'own')!r}"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folder that notebooks run in, each with answers and runs of its own below it, as labs/ is."""
    return tmp_path_factory.mktemp("labs")


@pytest.fixture(scope="module")
def kernel(home):
    """One kernel for all, short and headless: torch is loaded once, and a child stays warm from lab to lab."""
    short = {"GRPO_LAB_FAST": "1", "GRPO_LAB_HEADLESS": "1", "OMP_NUM_THREADS": "1"}
    manager = AsyncKernelManager(kernel_name="python3")
    run_sync(manager.start_kernel)(
        cwd=str(home), env={**os.environ, **short, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(home / "ipython")}
    )
    yield manager
    run_sync(manager.shutdown_kernel)()


@pytest.fixture
def execute(kernel, home):
    """Runs a notebook in an empty namespace and returns it with its outputs."""

    def run(notebook, steps=FEWEST):
        notebook.cells.insert(0, nbformat.v4.new_code_cell(BEGIN.format(steps), id="reset"))
        # Should a kernel die, the client starts another: in the same folder, and not in the checkout.
        client = NotebookClient(notebook, timeout=600, km=kernel, resources={"metadata": {"path": str(home)}})
        try:
            client.execute()
        finally:
            assert client.kc is not None
            client.kc.stop_channels()
        return notebook

    return run


def both(learner, instructor):
    """The instructor's edition, and before each solution the stub, which may raise."""
    stubs = {cell.id: cell for cell in learner.cells if cell.source.startswith("%%exercise")}
    cells = []
    for cell in instructor.cells:
        if cell.id in stubs:
            stub = copy.deepcopy(stubs[cell.id])
            stub.id += "-stub"
            stub.metadata["tags"] = ["raises-exception"]
            cells.append(stub)
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells, metadata=instructor.metadata)


def outputs(cell, kind):
    return [output for output in cell.get("outputs", ()) if output.output_type == kind]


def looked_at(notebook):
    """What must hold of a notebook that was run: stubs stop it, nothing else raises, nothing is on stderr."""
    for cell in notebook.cells:
        if cell.id.endswith("-stub"):
            (error,) = outputs(cell, "error")
            assert error.ename == "Unanswered", f"{cell.id}: {error.evalue}"
            assert len(error.traceback) == 1, f"{cell.id} shows a traceback"
        else:
            assert outputs(cell, "error") == [], cell.id
        warned = [output.text for output in outputs(cell, "stream") if output.name == "stderr"]
        assert warned == [], f"{cell.id} writes to stderr, which costs a learner the points of nbgrader: {warned}"


NAMES = [name for name in build.lab_names(LABS) if name in registry.course_labs()]
SHORT = {"02_explosion": notebook_mode.SHORT}
"""A lab in as many steps as `GRPO_LAB_FAST=1` alone asks for."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_lab(name, execute):
    learner = nbformat.read(build.place(LABS, name), as_version=4)
    instructor = nbformat.reads(build.notebook(LABS, name, build.INSTRUCTOR), as_version=4)
    notebook = execute(both(learner, instructor), SHORT.get(name, FEWEST))
    stubs = [cell.id for cell in notebook.cells if cell.id.endswith("-stub")]
    assert stubs == [f"{name}-{exercise}-stub" for exercise in registry.lab_page(name).exercises]
    looked_at(notebook)


@pytest.mark.parametrize("name", [name for name in build.lab_names(LABS) if name not in registry.course_labs()])
def test_what_is_no_lab(name, execute):
    looked_at(execute(nbformat.read(build.place(LABS, name), as_version=4)))


@pytest.fixture
def sample(sample_lab):
    """An edition of the lab of tests/own, which the kernel is told about first."""

    def made(edition):
        notebook = nbformat.reads(build.notebook(sample_lab, "sample", edition), as_version=4)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(OWN, id="own"))
        return notebook

    return made


def test_a_learner_is_stopped_at_the_first_exercise_and_nowhere_before(sample, execute):
    notebook = sample("learner")
    with pytest.raises(CellExecutionError, match="waits for your answer in line 3"):
        execute(notebook)
    raised = [cell.id for cell in notebook.cells if outputs(cell, "error")]
    assert raised == ["sample-guess"]
    assert next(cell for cell in notebook.cells if cell.id == "sample-double").execution_count is None


def test_the_sample_runs_whole(sample, execute, home):
    notebook = execute(both(sample("learner"), sample("instructor")))
    looked_at(notebook)
    cells = {cell.id: cell for cell in notebook.cells}
    (shown,) = outputs(cells["sample-double"], "display_data")
    assert 'class="grpo-lab-feedback"' in shown.data["text/html"]
    assert shown.data["text/plain"] == "Double it: right"
    assert outputs(cells["sample-05"], "stream")[0].text == "6 answers/sample/double.py:double\n"
    assert outputs(cells["sample-09"], "stream")[0].text == "done 3\n"
    assert (home / "sample.zip").is_file()
