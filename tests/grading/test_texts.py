"""What learners say in their own words is taken as given, and only words are."""

import pytest

from grpo_lab.course import evaluate
from grpo_lab.course.registry import course_labs, lab_page
from grpo_lab.ui.notebook import feedback_view
from tests.grading import mutants

LABS = course_labs()

TEXTS = [(lab, name) for lab in LABS for name, each in lab_page(lab).exercises.items() if each.kind == "text"]
EACH = pytest.mark.parametrize(("lab", "name"), TEXTS, ids="-".join)


def test_the_labs_that_ask_for_words():
    assert TEXTS == [("02_explosion", "in_words"), ("05_kl", "review"), ("08_mystery_runs", "defence")]


@EACH
def test_a_model_answer_is_taken_and_called_given(lab, name, tmp_path):
    exercise, path = lab_page(lab).exercises[name], tmp_path / "answer.py"
    path.write_text(mutants.solution(lab, name))
    found = evaluate.check(exercise, path)
    assert evaluate.all_right(found)
    assert feedback_view.as_text(exercise, found).startswith(f"{exercise.title}: given\n✓ given: your words")


@EACH
def test_what_is_no_text_is_not_taken(lab, name):
    for answer in ("", "word " * 39, 40, ["word"] * 40, None):
        (found,) = evaluate.check(lab_page(lab).exercises[name], {"answer": answer})
        assert not found.right and found.why, answer
