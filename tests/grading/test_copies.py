"""Answers that students share: found in spite of comments and layout, never by the reference or by short answers."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_lab.course.registry import course_labs, exercise, lab_page
from grpo_lab.grading import copies
from grpo_lab.grading.results import RIGHT, WRONG, Mark, Result
from grpo_lab.paths import data_tables
from tests.grading import mutants

LABS = course_labs()

OWN, REFERENCE = "def k3(x):\n    return x - 1\n", mutants.solution("05_kl", "k3")


def result(student, group="", **answers):
    """A result of lab 5 with wrong answers of these sources."""
    tasks = lab_page("05_kl").exercises
    marks = [
        Mark(name, name, "code", 0.0, 2, WRONG, answer=copies.fingerprint(tasks[name], source))
        for name, source in answers.items()
    ]
    return Result(student, "05_kl", student, student, 2, "", marks=marks, group=group)


def flags(*results):
    return [list(each.flags) for each in copies.flagged(results)]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (OWN, True),
        ("# mine\ndef k3( x ):  # the third\n\n  return x-1", True),
        (OWN.replace("1", "2"), False),
        (OWN.replace("x", "y"), False),  # documented: another name is another answer
        ("def k3(x:\n", False),
    ],
)
def test_the_same_answer_is_flagged_without_comments_and_layout(other, same):
    ann, ben = flags(result("ann", k3=OWN), result("ben", k3=other))
    assert bool(ann) is bool(ben) is same
    if same:
        assert ann == ["same as ben: 1 of 1 compared answers, 1 of them wrong (k3); not a proof of copying"]


def test_the_reference_is_nobodys_own_and_a_group_shares_its_answers():
    assert flags(result("ann", k3=REFERENCE), result("ben", k3="# x\n" + REFERENCE)) == [[], []]
    assert flags(result("ann", "Red", k3=OWN), result("ben", "Red", k3=OWN)) == [[], []]
    assert all(flags(result("ann", "Red", k3=OWN), result("ben", "Blue", k3=OWN)))
    assert flags(result("ann", "Red, Green", k3=OWN), result("ben", "blue;red", k3=OWN)) == [[], []]


def test_one_line_names_everybody_with_the_same_answers():
    many = [result(f"s{place}", k3=OWN, straight="def f(): return 7") for place in range(8)]
    (first,) = flags(*many, result("zoe", k3=REFERENCE))[0]
    assert first.startswith("same as s1, s2, s3, s4, s5 and 2 more: 2 of 2 compared answers, 2 of them wrong")


@pytest.mark.parametrize("kind", ["choice", "prediction", "configuration"])
def test_a_letter_or_a_setting_is_not_compared(kind):
    short = [task for lab in LABS for task in lab_page(lab).exercises.values() if task.kind == kind]
    assert short and {copies.fingerprint(task, "answer = 'b'") for task in short} == {""}


def test_an_answer_that_is_missing_or_a_stub_has_no_fingerprint():
    assert copies.fingerprint(exercise("05_kl", "k3"), "") == ""
    assert flags(result("ann", k3=""), result("ben", k3="")) == [[], []]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
@example("\t x\n  y\n z")
@example("(" * 500)
@example("'''")
def test_any_text_that_a_cell_can_hold_has_a_fingerprint(source):
    assert len(copies.hash_of(source)) == 16


def test_the_hashes_of_the_references_are_up_to_date():
    tasks = [(lab, task) for lab in LABS for task in lab_page(lab).exercises.values()]
    known = {f"{lab}-{task.name}": copies.fingerprint(task, mutants.solution(lab, task.name)) for lab, task in tasks}
    known = {name: hashed for name, hashed in known.items() if hashed}
    lines = "\n".join(f'{name} = "{hashed}"' for name, hashed in known.items())
    assert data_tables("reference_answers")["hashes"] == known, f"data/reference_answers.toml needs\n{lines}"


def test_the_status_of_a_right_copy_is_told():
    ann = result("ann", k3=OWN)
    right = ann.marked(Mark("k3", "k3", "code", 2.0, 2, RIGHT, answer=ann.marks[0].answer))
    assert "0 of them wrong" in flags(right, result("ben", k3=OWN))[0][0]
