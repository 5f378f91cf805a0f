"""The notebooks that people open: Run All in a browser stops a learner in one line, takes an instructor to the end.

With GRPO_LAB_PICTURES=docs/figures the panel after its crash is kept as panel.png: the README shows it.
"""

import os
import shutil
from pathlib import Path

from playwright.sync_api import expect

LABS = Path(__file__).parents[2] / "labs"
LATER = 90_000
LEFT = """() => jupyterapp.shell.currentWidget.content.widgets
    .filter(cell => cell.model.type === 'code' && cell.model.executionCount === null).length"""
CRASH = """import grpo_lab as gl
panel = gl.Panel("cuda-001", controls=("learning_rate", "beta", "temperature", "precision"))
panel"""


def open_lab(server, notebook, source: Path):
    """A lab in the browser, from a copy: what it writes stays out of the checkout."""
    nb = notebook("0")  # its fixture ends the kernel
    shutil.copy(source, server.folder / source.name)
    nb.path = source.name
    nb.open(reset=True)
    return nb


def test_run_all_stops_a_learner_at_the_first_question(server, notebook):
    nb = open_lab(server, notebook, LABS / "02_explosion.ipynb")
    nb.run_all()
    expect(nb.find("plot")).to_be_attached(timeout=LATER)
    stopped = nb.page.locator("[data-mime-type='application/vnd.jupyter.stderr']")
    expect(stopped).to_contain_text("Unanswered", timeout=LATER)
    assert stopped.count() == 1
    assert "Traceback" not in stopped.inner_text()


def test_run_all_takes_an_instructor_through_a_crash_to_the_end(server, notebook, wait_until):
    nb = open_lab(server, notebook, LABS / "instructor" / "03_error_chain.ipynb")
    nb.run_all()
    wait_until("a cell of every exercise has run", lambda: nb.page.evaluate(LEFT) == 0, 120)
    expect(nb.page.get_by_text("03_error_chain.zip").first).to_be_attached(timeout=LATER)


def test_what_a_crash_looks_like(notebook):
    nb = notebook(CRASH)
    nb.page.set_viewport_size({"width": 1380, "height": 1800})
    nb.run_cell(0)
    nb.find("start").click(timeout=LATER)
    expect(nb.find("status")).to_contain_text("crashed in torch.multinomial", timeout=LATER)
    expect(nb.find("banner")).to_contain_text("probability tensor")
    expect(nb.find("plot")).to_be_visible()
    if folder := os.environ.get("GRPO_LAB_PICTURES"):
        nb.page.wait_for_timeout(1500)
        nb.find("panel").screenshot(path=Path(folder) / "panel.png")
