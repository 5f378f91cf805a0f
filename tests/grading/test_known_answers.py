"""Each known answer of the labs is judged as its row of answers.toml says, on inputs that nobody has seen."""

import ast
import re

import pytest

from benchmarks.fairness import SEEDS, needed
from grpo_lab.config.schema import Config
from grpo_lab.course import evaluate
from grpo_lab.course.exercises import Finding, Function
from grpo_lab.course.known_answers import changed
from grpo_lab.course.registry import lab_folder, lab_page
from grpo_lab.course.tried_answers import fault
from grpo_lab.errors import DataError, Sentence
from grpo_lab.training.registry import FORMULAS
from grpo_lab.training.wrong_formulas import FORMULAS as WRONG_FORMULAS
from tests.grading import mutants
from tests.grading.mutants import LABS, trains

WRONG, NEAR = mutants.wrong(), mutants.near()
LISTED = [*mutants.right(), *NEAR, *WRONG]
TRAINED = [each for each in LISTED if trains(each)]
"""Without the reference solutions: where labs are executed and a class is graded, they are trained."""
QUICK = [each for each in (*mutants.references(), *LISTED) if not trains(each)]


def by_exercise(answers):
    """Lab/exercise -> its answers."""
    found = {}
    for each in answers:
        found.setdefault(f"{each.lab}/{each.exercise}", []).append(each)
    return found


def faults(answers, seeds):
    """The sentences about answers that are not judged as their rows say."""
    tried = ((each, fault(each, lab_folder(each.lab), needed(each, seeds))) for each in answers)
    return [f"{each}: {said}" for each, said in tried if said]


@pytest.mark.parametrize("answers", [pytest.param(each, id=place) for place, each in by_exercise(QUICK).items()])
def test_an_answer_is_judged_as_its_row_says(answers):
    """`python -m benchmarks.fairness` tries them with twenty seeds, and those below too."""
    assert faults(answers, SEEDS[:2]) == []


@pytest.mark.slow
@pytest.mark.parametrize("place", sorted(mutants.TRAINED))
def test_an_answer_whose_check_trains_is_judged_so(place):
    assert faults(by_exercise(TRAINED)[place], SEEDS[1:2]) == []


# Reasons --------------------------------------------------------------------------------------------------------------


def solved(answer):
    """What no reason may hold: the reference's lines of code, or the numbers and names that were to be found."""
    task, solution = lab_page(answer.lab).exercises[answer.exercise], mutants.solution(answer.lab, answer.exercise)
    if isinstance(task.check, Function):
        return {line.strip().removeprefix("return ") for line in solution.split("\n") if len(line.strip()) >= 20}
    if task.kind != "configuration":
        return set()  # a letter or a name from a list
    asked = "".join(line for line in solution.split("\n") if line.startswith("#"))
    values = {node.value for node in ast.walk(ast.parse(solution)) if isinstance(node, ast.Constant)}
    found = {str(value) for value in values if isinstance(value, float | str)}
    return {value for value in found if len(value) > 3 and value not in asked and value not in answer.source}


def told(answer, load):
    """The reasons that an answer is given in the notebook and in both rounds of a grade."""
    task, module = lab_page(answer.lab).exercises[answer.exercise], load(answer.source)
    for seed, transformed in ((0, False), (1, False), (1, True)):
        cases = evaluate.asked(task, seed, transformed)
        given = evaluate.run(task, module, [case.inputs for case in cases])
        yield from (found.why for found in evaluate.judged(task, given, cases, seed) if not found.right)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param(each, id=place)
        for place, each in by_exercise([*WRONG, *NEAR]).items()
        if any(answer.reason for answer in each) and place not in mutants.TRAINED
    ],
)
def test_a_reason_names_the_mistake_and_no_other_one(load, answers):
    reasons = {str(answer): {*told(answer, load)} for answer in answers}
    for answer in answers:
        assert all(len(why) >= 10 for why in reasons[str(answer)]), answer
        assert [part for part in solved(answer) for why in reasons[str(answer)] if part in why] == [], answer
    for why in {answer.reason for answer in answers if answer.reason}:
        names = {name for name, given in reasons.items() if any(each.startswith(why) for each in given)}
        assert names == {str(answer) for answer in answers if answer.reason == why}, why


ACCUSING = re.compile(r"\bmeans that\b|[Ww]here it is (NaN|inf|0),|\bNaN here\b|\bOtherwise\b")
"""Words of a reason that would say which mistake was made."""


def test_the_text_of_a_case_says_what_is_expected_alone():
    """It stands beside every wrong value, also where the mistake is another one or unknown."""
    for lab in LABS:
        for each in lab_page(lab).exercises.values():
            if isinstance(each.check, Function) and f"{lab}/{each.name}" not in mutants.TRAINED:
                for case in (*each.check.cases(0), *each.check.cases(1)):
                    assert not ACCUSING.search(case.why), (lab, each.name, case.why)


def test_the_same_reason_is_given_once():
    def finding(what, why, right=False, got="1"):
        return Finding(right, what, got, "2", why)

    three = [finding("a", "Twice."), finding("b", "", True), finding("c", "Twice.", got="3"), finding("d", "Other.")]
    assert [each.what for each in evaluate.folded(three)] == ["a, and 1 more like it", "b", "d"]
    differ = "{} of {} elements differ. {}"
    counted = [finding("a", Sentence(differ, 1, 2, "Twice.")), finding("b", Sentence(differ, 2, 4, "Twice."))]
    assert [each.why for each in evaluate.folded(counted)] == ["1 of 2 elements differ. Twice."]
    errors = [finding("a", evaluate.NO_VALUE, got="E (line 1)"), finding("b", evaluate.NO_VALUE, got="F (line 2)")]
    assert evaluate.folded(errors) == errors


# The table ------------------------------------------------------------------------------------------------------------


def test_every_exercise_has_wrong_answers_and_every_function_another_right_one():
    exercises = {f"{lab}/{name}": task for lab in LABS for name, task in lab_page(lab).exercises.items()}
    assert by_exercise(WRONG).keys() == exercises.keys() >= mutants.TRAINED
    functions = {place for place, task in exercises.items() if isinstance(task.check, Function)}
    assert functions <= by_exercise(mutants.right()).keys()
    assert len(mutants.right()) >= 197 and len(NEAR) >= 169


def test_every_wrong_formula_of_the_registry_loses_somewhere():
    loss = Config().loss
    taught = {kind: {*FORMULAS[kind]} - {getattr(loss, kind)} for kind in WRONG_FORMULAS}
    names = {f"loss.{kind}={name}" for kind, known in taught.items() for name in known}
    names -= {
        f"loss.completion_mask={name}" for name in ("not_truncated", "with_tool")
    }  # no lab cuts off, or has a tool
    called = {each.name for each in WRONG if "FORMULAS" in each.source}
    assert names and names - called == set()


def test_no_answer_is_there_twice_or_is_the_reference():
    for each in (*WRONG, *mutants.right()):
        assert each.source != mutants.solution(each.lab, each.exercise)
    assert len({(each.lab, each.exercise, each.source) for each in WRONG}) == len(WRONG)


@pytest.mark.parametrize(
    ("source", "changes", "fault"),
    [
        ("a = 1", {"b": "c"}, "stands 0 times"),
        ("a = a", {"a": "c"}, "stands 2 times"),
        ("a = 1", {"a =": "c", "= 1": "d"}, "overlap"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(source, changes, fault):
    with pytest.raises(DataError, match=fault):
        changed(source, changes)
