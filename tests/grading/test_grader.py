"""Marks through the sandbox: right answers earn all points, wrong ones none; failures of the grader are reported."""

import copy
from dataclasses import replace

import pytest

from grpo_lab.course.exercises import Finding, Values
from grpo_lab.course.registry import lab_page
from grpo_lab.errors import GrpoLabError
from grpo_lab.grading import challenges
from grpo_lab.grading.grader import SCORING, Course, Grader
from grpo_lab.grading.notebooks import Submission
from grpo_lab.grading.results import BY_HAND, FAILED, RIGHT, UNANSWERED, WRONG
from grpo_lab.grading.rules import Rules
from tests.grading import mutants
from tests.grading.mutants import trains

SECRET = b"for tests, and nothing else but tests"


@pytest.fixture(scope="module")
def grader(contained):
    one = Grader(Course(Rules(seconds=60.0, tier=contained(2).number), SECRET))
    yield one
    one.close()


def submission(lab, digest="00", notes=None, **answers):
    return Submission("ann", "ann.ipynb", lab, digest, answers, notes or {})


def marked(grader, mutant, **about):
    handed_in = submission(mutant.lab, **about, **{mutant.exercise: mutant.source})
    return grader.mark(handed_in, lab_page(mutant.lab).exercises[mutant.exercise])


def one_each(answers):
    """One answer for each exercise whose check does not train: the first."""
    return list({(each.lab, each.exercise): each for each in reversed(answers) if not trains(each)}.values())


WRONG_ONES = [*one_each(mutants.wrong()), *(each for each in mutants.hard_coded() if not trains(each))]
"""test_mutants judges all other wrong answers, and right ones written another way, without the sandbox."""


@pytest.mark.parametrize("mutant", WRONG_ONES, ids=str)
def test_a_wrong_answer_earns_nothing_and_learns_why(grader, mutant):
    mark = marked(grader, mutant)
    assert (mark.status, mark.points) == (WRONG, 0.0)
    assert any(finding.why for finding in mark.findings if not finding.right)


@pytest.mark.parametrize("mutant", one_each(mutants.references()), ids=str)
def test_the_reference_earns_all(grader, mutant):
    mark = marked(grader, mutant)
    assert [finding for finding in mark.findings if not finding.right] == []
    if lab_page(mutant.lab).exercises[mutant.exercise].kind == "text":
        assert mark.status == BY_HAND and mark.points == 0 and len(mark.text.split()) > 40
    else:
        assert mark.status == RIGHT and mark.points == mark.out_of > 0


def under(grader, **rules):
    """A grader under other rules, in the same sandbox."""
    one = copy.copy(grader)
    one._course = Course(Rules(**rules), SECRET)
    return one


def test_another_attempt_asks_something_else_and_gives_the_same(grader):
    reference, wrong = mutants.solution("05_kl", "k3"), "def k3(delta):\n    return delta**2 / 2\n"
    found = []
    for attempt in (1, 2):
        one = under(grader, attempt=attempt)
        both = [
            one.mark(submission("05_kl", k3=source), lab_page("05_kl").exercises["k3"]) for source in (reference, wrong)
        ]
        found.append([(mark.status, mark.points) for mark in both])
        found.append([finding.got for mark in both for finding in mark.findings])
    assert found[0] == found[2] == [(RIGHT, 2.0), (WRONG, 0.0)]
    assert found[1] != found[3]


def test_the_same_attempt_asks_the_same_of_the_same_file_and_something_else_of_another(grader):
    handed_in = [submission("05_kl", digest, k3=mutants.solution("05_kl", "k3")) for digest in ("00", "00", "01")]
    first, again, other = (grader.mark(each, lab_page("05_kl").exercises["k3"]).findings for each in handed_in)
    assert first == again
    assert [finding.got for finding in first] != [finding.got for finding in other]


def test_cells_that_a_person_chooses_from_are_not_graded(grader):
    handed_in = replace(submission("05_kl", notes={"k3": "two cells begin alike"}), undecided=frozenset({"k3"}))
    mark = grader.mark(handed_in, lab_page("05_kl").exercises["k3"])
    assert (mark.status, mark.points, mark.note) == (FAILED, 0.0, "two cells begin alike")


def test_what_is_not_there_earns_nothing_and_says_so(grader):
    for notes in ({}, {"k3": "its cell is empty"}):
        mark = grader.mark(submission("05_kl", notes=notes), lab_page("05_kl").exercises["k3"])
        assert (mark.status, mark.points, mark.note) == (UNANSWERED, 0.0, notes.get("k3", ""))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def k3(delta):\n    return", "nothing is returned"),
        ("def k2(delta):\n    return delta", "no function named k3; defined are k2"),
        ("1 / 0", "ZeroDivisionError"),
        ("def k3(delta:", "the cell raised SyntaxError: '(' was never closed (line 1); correct the cell"),
        ("def k3(delta):\n    return delta.to_sparse()", "a tensor of layout sparse_coo; give a dense one"),
        ("def k3(delta):\n    return delta.to('meta')", "a tensor of device meta, which holds no numbers"),
        ("def k3(delta):\n    return '\\ud800'", "a text with half of a surrogate pair"),
        ("import os\nos._exit(0)", "it ended before it had answered"),
        ("k3 = ...", "no function named k3"),
    ],
)
def test_what_does_not_run_is_wrong_and_says_why(grader, source, said):
    mark = grader.mark(submission("05_kl", k3=source), lab_page("05_kl").exercises["k3"])
    assert (mark.status, mark.points) == (WRONG, 0.0)
    assert said in " ".join(f"{finding.got} {finding.why}" for finding in mark.findings).replace("Nothing", "nothing")


def test_what_fails_here_is_not_the_learners_fault(grader):
    def judge(values, seed):
        raise ZeroDivisionError("a check with a mistake")

    task = replace(lab_page("05_kl").exercises["forecast"], check=Values(("answer",), judge))
    mark = grader.mark(submission("05_kl", forecast='answer = "a"'), task)
    assert (mark.status, mark.points) == (FAILED, 0.0)
    assert mark.note == "the grader failed: ZeroDivisionError: a check with a mistake"


def test_scoring_in_shares():
    findings = [Finding(right, "", "", "", "") for right in (True, True, False, True)]
    assert (SCORING["whole"](findings), SCORING["share"](findings)) == (0.0, 0.75)
    assert SCORING["whole"](findings[:2]) == SCORING["share"](findings[:2]) == 1.0
    assert SCORING["whole"]([]) == SCORING["share"]([]) == 0.0


def test_a_share_of_the_points_where_the_rules_say_so(grader):
    answer = 'k1, k2, k3, hinge = "c", "a", "b", "e"'
    mark = under(grader, scoring="share").mark(submission("05_kl", pulls=answer), lab_page("05_kl").exercises["pulls"])
    assert (mark.status, mark.points, mark.out_of) == (WRONG, 1.5, 2)


def test_the_secret_is_in_no_setting():
    settings = Course(Rules(), SECRET).settings()
    assert settings["secret"] == challenges.fingerprint(SECRET)
    assert SECRET.decode() not in str(settings) and SECRET.hex() not in str(settings)


def test_every_way_of_scoring_that_rules_name_is_known():
    for scoring in SCORING:
        assert Rules(scoring=scoring).scoring == scoring
    with pytest.raises(GrpoLabError, match="scoring"):
        Rules(scoring="curve")


def test_every_text_is_by_hand():
    texts = [task for lab in ("02_explosion", "05_kl", "08_mystery_runs") for task in lab_page(lab).exercises.values()]
    assert sum(task.kind == "text" for task in texts) == 3
