"""Exercises in a real browser: feedback, one line in place of a traceback, a run's line, and questions that answer."""

from pathlib import Path

REGISTER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "labs")!r})
import lab_sample
from grpo_lab.grading import checks
checks.LABS = (*checks.LABS, "sample")
sys.modules["grpo_lab.course.labs.lab_sample.page"] = lab_sample
import grpo_lab as gl
lab = gl.Lab("sample")
"""
WRONG = "%%exercise double\ndef double(x):\n    return x + '<b>'"
RIGHT = "%%exercise double\ndef double(x):\n    return x + x"
STUB = "%%exercise guess\nanswer = ...  # your answer"
RUN = 'run = lab.run(gl.preset("smoke"), "short")'


def test_exercises_answer_in_words(notebook, server):
    book = notebook(REGISTER, STUB, WRONG, RIGHT, RUN, "lab.questions()")
    book.run_cell(0)
    book.run_cell(1)
    book.output(1).get_by_text("waits for your answer in line 2").wait_for(timeout=60_000)  # after torch is there
    book.run_cell(2)
    feedback = book.output(2).locator(".grpo-lab-feedback")
    feedback.wait_for(timeout=60_000)
    assert "Double it: not yet, 0 of 1 right" in feedback.inner_text()
    assert "TypeError" in feedback.inner_text()
    assert feedback.locator("b").count() == 0  # the learner's text is text
    book.output(2).get_by_text("NotYet: Double it: 0 of 1 right so far").wait_for()
    assert "Traceback" not in book.output(2).inner_text()
    book.run_cell(3)
    book.output(3).get_by_text("✓ right").wait_for()
    assert (server.folder / "answers/sample/double.py").read_text().startswith("# %%exercise double\ndef double")
    book.run_cell(4)
    book.output(4).get_by_text("end: done").wait_for(timeout=60_000)
    assert book.output(4).locator(".jp-OutputArea-child").count() == 1  # one line, that changed
    book.run_cell(5)
    questions = book.output(5).locator(".grpo-lab-questions")
    questions.get_by_label("no", exact=True).check()
    questions.get_by_text("Not this one. It is.").wait_for()
    questions.get_by_label("yes", exact=True).check()
    questions.get_by_text("Right. So it is, & always.").wait_for()
