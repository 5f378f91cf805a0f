"""Answers in the learner's own words: they are accepted and shown, and instructors find how to mark them."""

from pathlib import Path

import nbformat
import pytest

from grpo_lab.course import evaluate
from grpo_lab.course.registry import LABS, lab_page
from grpo_lab.ui.notebook import feedback_view

FOLDER = Path(__file__).parents[2] / "labs"
TEXTS = [(lab, name) for lab in LABS for name, each in lab_page(lab).exercises.items() if each.kind == "text"]


@pytest.fixture(params=TEXTS, ids="-".join)
def asked(request):
    """The exercise, and the four cells from its own on: the learner's, and the instructor's."""
    lab, name = request.param
    editions = []
    for folder in ("", "instructor"):
        cells = nbformat.read(FOLDER / folder / f"{lab}.ipynb", as_version=4).cells
        here = [cell.id for cell in cells].index(f"{lab}-{name}")
        editions.append(cells[here : here + 4])
    return lab_page(lab).exercises[name], *editions


def test_the_labs_that_ask_for_words():
    assert TEXTS == [("02_explosion", "in_words"), ("05_kl", "review"), ("08_mystery_runs", "defence")]


def test_a_model_answer_is_taken_and_called_given(asked, tmp_path):
    exercise, _, instructor = asked
    path = tmp_path / "answer.py"
    path.write_text(instructor[0].source.partition("\n")[2])
    found = evaluate.check(exercise, path)
    assert evaluate.all_right(found)
    assert feedback_view.as_text(exercise, found).startswith(f"{exercise.title}: given\n✓ given: your words")


@pytest.mark.parametrize("answer", ["", "word " * 39, 40, ["word"] * 40, None])
def test_what_is_no_text_is_not_taken(asked, answer):
    (found,) = evaluate.check(asked[0], {"answer": answer})
    assert not found.right and found.why


def test_the_instructor_is_told_how_to_mark_and_the_learner_what_is_asked(asked):
    exercise, learner, instructor = asked
    assert exercise.points == 2 and exercise.hints[2].startswith("A full answer names (1)")
    marking = next(cell for cell in instructor if "**Marking" in cell.source)
    assert marking.metadata["tags"] == ["instructor"]
    assert all(f"*{level}" in marking.source for level in ("Full:", "Half (1):", "None:"))
    assert "Marking" not in "".join(cell.source for cell in learner)
