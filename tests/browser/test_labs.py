"""Labs in the browser: Run All stops a learner in one line, exercises give feedback, and a switch saves a run.

With GRPO_LAB_PICTURES=docs/figures the panel of the run that was saved is kept as saved.png, which the README shows.
"""

import json
import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

LABS = Path(__file__).parents[2] / "labs"
REGISTER = f"""
import os
os.environ["GRPO_LAB_DATA"] = {str(Path(__file__).parents[1] / "own")!r}
import grpo_lab as gl
lab = gl.Lab("sample")
"""
WRONG = "%%exercise double\ndef double(x):\n    return x + '<b>'"
RIGHT = "%%exercise double\ndef double(x):\n    return x + x"
STUB = "%%exercise guess\nanswer = ...  # your answer"
RUN = 'run = lab.run(gl.preset("smoke"), "short")'


@pytest.mark.slow
def test_run_all_stops_a_learner_at_the_first_question(notebook):
    nb = notebook(copy=LABS / "02_explosion" / "02_explosion.ipynb")
    nb.run_all()
    expect(nb.find("plot")).to_be_attached()
    stopped = nb.page.locator("[data-mime-type='application/vnd.jupyter.stderr']")
    expect(stopped).to_contain_text("Unanswered")
    assert stopped.count() == 1
    assert "Traceback" not in stopped.inner_text()


def test_exercises_answer_in_words(notebook, server):
    book = notebook(REGISTER, STUB, WRONG, RIGHT, RUN, "lab.questions()")
    for number in range(6):
        book.run_cell_to_its_end(number)
    book.output(1).get_by_text("waits for your answer in line 2").wait_for()
    feedback = book.output(2).locator(".grpo-lab-feedback")
    expect(feedback).to_contain_text("Double it: not yet, 0 of 1 right")
    expect(feedback).to_contain_text("TypeError")
    assert feedback.locator("b").count() == 0  # the learner's text is text
    book.output(2).get_by_text("NotYet: Double it: 0 of 1 right so far").wait_for()
    assert "Traceback" not in book.output(2).inner_text()
    book.output(3).get_by_text("✓ right").wait_for()
    assert (server.folder / "answers/sample/double.py").read_text().startswith("# %%exercise double\ndef double")
    book.output(4).get_by_text("end: done").wait_for()
    assert book.output(4).locator(".jp-OutputArea-child").count() == 1  # one line, that changed
    questions = book.output(5).locator(".grpo-lab-questions")
    questions.get_by_label("no", exact=True).check()
    questions.get_by_text("Not this one. It is.").wait_for()
    questions.get_by_label("yes", exact=True).check()
    questions.get_by_text("Right. So it is, & always.").wait_for()


def cells(lab):
    """Code cells of a lab by their first line: their numbers in the notebook."""
    found = json.loads((LABS / lab / f"{lab}.ipynb").read_bytes())["cells"]
    return {"".join(cell["source"]).partition("\n")[0]: number for number, cell in enumerate(found)}


ALONE_SAVED_SAID = (
    "rescue = lab.panel(",
    'rescue.keep("no guard")',
    "from grpo_lab.runs.summary import summary",
)
"""First lines of the cells of the run without a guard, of the same run for the learner to save, and of its summary."""


@pytest.mark.parametrize(
    ("lab", "guard"),
    [("00_start", "sanitize_rewards")],
)
@pytest.mark.slow
def test_a_guard_switched_on_during_the_run_saves_it(lab, guard, notebook):
    book, number = notebook(copy=LABS / lab / f"{lab}.ipynb"), cells(lab)
    book.run_cell(number["import grpo_lab as gl"])
    book.idle()
    alone, saved, said = (number[line] for line in ALONE_SAVED_SAID)
    book.run_cell(alone)
    full_speed(book.output(alone))
    expect(book.output(alone).locator(".grpo-lab-status")).to_contain_text("crashed in torch.multinomial")

    book.run_cell(saved)
    panel = book.output(saved)
    expect(panel.locator(".grpo-lab-status")).to_contain_text(re.compile(r"healthy\s+step [1-9]"))
    panel.get_by_role("tab", name="Guards").click()
    panel.locator(f".grpo-lab-guard-{guard} input[type=checkbox]").check()
    full_speed(panel)
    expect(panel.locator(".grpo-lab-status")).to_contain_text("done, learned")
    book.run_cell(said)
    rewards = re.compile(r"held-out reward: ([\d.]+) before, ([\d.]+) after")
    expect(book.output(said)).to_contain_text(rewards)
    before, after = map(float, rewards.findall(book.output(said).inner_text())[0])
    assert before < 0.35 and after >= 0.5
    if (folder := os.environ.get("GRPO_LAB_PICTURES")) and lab == "00_start":
        book.page.set_viewport_size({"width": 1600, "height": 1000})
        panel.locator(".grpo-lab-panel").screenshot(path=Path(folder) / "saved.png")
        book.page.set_viewport_size({"width": 1280, "height": 1000})


def full_speed(panel):
    """Choose full speed in the menu of the panel."""
    panel.locator(".grpo-lab-pace-menu select").select_option(label="full speed")
