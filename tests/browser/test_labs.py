"""Labs in the browser: Run All stops a learner in one line, exercises give feedback, and questions explain."""

from pathlib import Path

from playwright.sync_api import expect

LABS = Path(__file__).parents[2] / "labs"
REGISTER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "labs")!r})
import lab_sample
from grpo_lab.course import registry
registry.LABS = (*registry.LABS, "sample")
sys.modules["grpo_lab.course.labs.lab_sample.page"] = lab_sample
import grpo_lab as gl
lab = gl.Lab("sample")
"""
WRONG = "%%exercise double\ndef double(x):\n    return x + '<b>'"
RIGHT = "%%exercise double\ndef double(x):\n    return x + x"
STUB = "%%exercise guess\nanswer = ...  # your answer"
RUN = 'run = lab.run(gl.preset("smoke"), "short")'


def test_run_all_stops_a_learner_at_the_first_question(notebook):
    nb = notebook(copy=LABS / "02_explosion.ipynb")
    nb.run_all()
    expect(nb.find("plot")).to_be_attached()
    stopped = nb.page.locator("[data-mime-type='application/vnd.jupyter.stderr']")
    expect(stopped).to_contain_text("Unanswered")
    assert stopped.count() == 1
    assert "Traceback" not in stopped.inner_text()


def test_exercises_answer_in_words(notebook, server):
    book = notebook(REGISTER, STUB, WRONG, RIGHT, RUN, "lab.questions()")
    for number in range(6):
        book.run_cell(number)
        book.idle()
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
