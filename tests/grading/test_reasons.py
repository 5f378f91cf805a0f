"""A reason names the kind of a value first, then the mistake that was made, and each mistake once."""

import re

import pytest

from grpo_lab.course import evaluate
from grpo_lab.course.exercises import Finding, Function
from grpo_lab.course.known_answers import changed
from grpo_lab.course.registry import exercise, lab_page
from tests.grading import mutants
from tests.grading.mutants import LABS


def wrong(place, changes, load, seed=0, transformed=False):
    """The wrong findings about a changed reference solution, or about a whole cell; `place` is lab/exercise."""
    lab, _, name = place.partition("/")
    source = changes if isinstance(changes, str) else changed(mutants.solution(lab, name), changes)
    task, module = exercise(lab, name), load(source)
    cases = evaluate.asked(task, seed, transformed)
    given = evaluate.run(task, module, [case.inputs for case in cases])
    return [found for found in evaluate.judged(task, given, cases, seed) if not found.right]


KINDS = [
    ("00_start/reading", {"906": '"906"'}, "This is a text; a number is wanted."),
    ("00_start/reading", {"= False": "= 0"}, "This is a number; True or False is wanted."),
    ("00_start/learning_rate", 'learning_rate = "3e-4"', "This is a text; a number is wanted."),
    ("00_start/saved", {"acted = 20": 'acted = "20"'}, "This is a text; a number is wanted."),
    ("00_start/guess", "answer = 3", "This is a number; a text is wanted."),
    ("01_grpo_by_hand/by_hand", {"right_one = 1.5": 'right_one = "1.5"'}, "This is a text; a number is wanted."),
    ("01_grpo_by_hand/by_hand", {"right_one = 1.5": "right_one = (1.5,)"}, "This is a tuple; a number is wanted."),
    ("01_grpo_by_hand/by_hand", {"right_one = 1.5": "right_one = True"}, "This is True or False; a number is wanted."),
    ("02_explosion/reported", 'nats = "18.55"', "This is a text; a number is wanted."),
    ("02_explosion/reported", "nats = (18.55,)", "This is a tuple; a number is wanted."),
    (
        "02_explosion/bounded",
        {"return torch": "return (0.0,)\n    return torch"},
        "This is a tuple; a tensor is wanted.",
    ),
    ("03_error_chain/epsilon", {"1e-4": '"1e-4"'}, "This is a text; a number is wanted."),
    ("03_error_chain/order", "order = 8", "This is a number; a tuple or a list is wanted."),
    ("04_guards/alone", 'answer = "skip_spikes"', "This is a text; a dictionary is wanted."),
    ("04_guards/hides", "answer = 3", "This is a number; a text is wanted."),
    ("04_guards/minimal_set", 'guards = "skip_spikes"', "This is a text; a tuple or a list is wanted."),
    ("05_kl/pulls", "k1, k2, k3, hinge = 3, 1, 2, 4", "This is a number; a text is wanted."),
    ("05_kl/review", "answer = 3", "This is a number; a text is wanted."),
    ("07_precision_and_verl/cures", "cures = None", "This is None; a tuple or a list or a text is wanted."),
    ("08_mystery_runs/by_hand", 'answer = ["healthy"] * 8', "This is a list; a dictionary is wanted."),
]


@pytest.mark.parametrize(("place", "changes", "why"), KINDS)
def test_the_kind_of_a_value_comes_first(load, place, changes, why):
    """Before: `right_one = "1.5"` was told how to compute the std."""
    assert wrong(place, changes, load)[0].why.startswith(why)


MISTAKES = [
    ("01_grpo_by_hand/by_hand", {"right_one = 1.5": "right_one = 1.732"}, "divides the sum of squares by 4"),
    ("01_grpo_by_hand/by_hand", {"wrong_one = -0.5": "wrong_one = -0.577"}, "divides the sum of squares by 4"),
    ("01_grpo_by_hand/by_hand", {"wrong_one = -0.5": "wrong_one = 0.5"}, "the sign is not"),
    ("01_grpo_by_hand/by_hand", {"loss_right = -1.8": "loss_right = 1.8"}, "the sign is not"),
    ("01_grpo_by_hand/by_hand", {"loss_right = -1.8": "loss_right = -2.473"}, "not clipped"),
    ("02_explosion/reported", "nats = 18.6", "Give two decimals"),
    ("02_explosion/reported", "nats = -18.55", "the sign is not"),
    ("02_explosion/bounded", {"clamp(-limit, limit)": "clamp(max=limit)"}, "missing below -10"),
    ("02_explosion/bounded", {"clamp(-limit, limit)": "clamp(min=-limit)"}, "missing above 10"),
    ("02_explosion/bounded", {"delta = delta": "delta = -delta"}, "the other way round"),
    (
        "01_grpo_by_hand/policy_loss",
        {"clamp(1 - epsilon, 1 + epsilon_high)": "clamp(1 - epsilon, 1 + epsilon)"},
        "ends at 1 + epsilon here",
    ),
    ("01_grpo_by_hand/aggregate", {'how == "token" else': 'how == "constant" else'}, "are the other way round"),
    ("02_explosion/gradient", {"else -ratio": "else ratio"}, "The sign is the other way round"),
    ("05_kl/straight", {"math.expm1(limit)": "math.exp(limit)"}, "The slope of the line is e^limit"),
    ("05_kl/expected_gradient", {"log_p.exp().detach()": "log_p.exp()"}, "has a gradient here"),
    ("06_silent_failures/one_update", {"    optimizer.zero_grad()\n": ""}, "zero_grad() is missing before the loop"),
    (
        "06_silent_failures/one_update",
        {"    optimizer.zero_grad()\n": "", "parts:\n": "parts:\n        optimizer.zero_grad()\n"},
        "Only the last micro-batch",
    ),
    ("06_silent_failures/one_update", {" * part.mask)": ")"}, "the mask is not applied"),
    ("06_silent_failures/mismatch", {"[mask].abs()": ".abs() * mask"}, "divided by all places"),
    ("08_mystery_runs/update", {" / len(losses)": ""}, "and not their mean"),
    ("08_mystery_runs/objective", {".masked_fill(mask == 0, 0.0).clamp(-5, 5)": ".clamp(-5, 5)"}, "0 · NaN is NaN"),
    (
        "09_two_objectives/set_grads",
        {"    start = 0\n": "    start = 0\n    vector *= weight\n", "weight * vector": "vector"},
        "a given vector was changed",
    ),
]


@pytest.mark.parametrize(("place", "changes", "why"), MISTAKES)
def test_a_known_mistake_is_named(load, place, changes, why):
    found = wrong(place, changes, load)
    assert found and all(why in each.why for each in found), found


ROUNDS = ((0, False), (1, False), (1, True))
"""(seed, transformed): the cases that learners see, and the two rounds of a grade."""


def accused():
    """Lab/exercise -> its wrong answers and near misses with their reasons, where any has one."""
    found = {}
    for answer in [*mutants.wrong(), *mutants.near()]:
        found.setdefault(f"{answer.lab}/{answer.exercise}", []).append(answer)
    return [pytest.param(*each, id=each[0]) for each in found.items() if any(answer.reason for answer in each[1])]


@pytest.mark.parametrize(("place", "answers"), accused())
def test_no_reason_describes_another_mistake(load, place, answers):
    """The answers that answers.toml gives a reason are told it in some round, and no others are."""
    told = {
        answer.name: [each.why for seed in ROUNDS for each in wrong(place, answer.source, load, *seed)]
        for answer in answers
    }
    for why in {answer.reason for answer in answers if answer.reason}:
        names = {name for name, reasons in told.items() if any(each.startswith(why) for each in reasons)}
        assert names == {answer.name for answer in answers if answer.reason == why}, why


def with_mistakes():
    """(lab/exercise, its check) for each function with known mistakes."""
    for lab in LABS:
        for name, each in lab_page(lab).exercises.items():
            if isinstance(each.check, Function) and each.check.mistakes():
                yield f"{lab}/{name}", each.check


ACCUSING = re.compile(r"\bmeans that\b|[Ww]here it is (NaN|inf|0),|\bNaN here\b|\bOtherwise\b")
"""Words of a reason that would say which mistake was made."""


def test_the_text_of_a_case_says_what_is_expected_alone():
    """It stands beside every wrong value, also where the mistake is another one or unknown."""
    for lab in LABS:
        for each in lab_page(lab).exercises.values():
            if isinstance(each.check, Function) and f"{lab}/{each.name}" not in mutants.TRAINED:
                for case in (*each.check.cases(0), *each.check.cases(1)):
                    assert not ACCUSING.search(case.why), (lab, each.name, case.why)


def test_a_population_std_is_named_wherever_it_can_be_told(load):
    std = "rewards.std(dim=1, keepdim=True)"
    found = wrong("01_grpo_by_hand/advantages", {std: std.replace("True", "True, correction=0")}, load)
    assert len(found) >= 2 and all("one less" in each.why for each in found), found


@pytest.mark.parametrize(("place", "check"), [pytest.param(*each, id=each[0]) for each in with_mistakes()])
def test_known_mistakes_are_wrong_and_named_on_fresh_inputs(place, check):
    """A mistake is no right answer, and every finding that it causes has the one reason.

    Transformed cases may not tell two mistakes apart: with NaN in the padding of each, either gives NaN alone.
    """
    task = exercise(*place.split("/"))
    for mistake in check.mistakes():
        for seed, transformed in ((0, False), (1, False), (2, False), (1, True), (2, True)):
            cases = evaluate.asked(task, seed, transformed)
            given = evaluate.run(task, mistake.module, [case.inputs for case in cases])
            told = {found.why for found in evaluate.judged(task, given, cases, seed) if not found.right}
            known = {each.why for each in check.mistakes()} if transformed else {mistake.why}
            assert len(told) == 1 and told <= known, (mistake.why, seed, told)


def test_the_same_reason_is_given_once():
    def finding(what, why, right=False, got="1"):
        return Finding(right, what, got, "2", why)

    told = [finding("a", "Twice."), finding("b", "", True), finding("c", "Twice.", got="3"), finding("d", "Other.")]
    assert [each.what for each in evaluate.folded(told)] == ["a, and 1 more like it", "b", "d"]
    counted = [finding("a", "1 of 2 elements differ. Twice."), finding("b", "2 of 4 elements differ. Twice.")]
    assert [each.why for each in evaluate.folded(counted)] == ["1 of 2 elements differ. Twice."]
    errors = [finding("a", evaluate.NO_VALUE, got="E (line 1)"), finding("b", evaluate.NO_VALUE, got="F (line 2)")]
    assert evaluate.folded(errors) == errors
    assert evaluate.folded([finding("a", "", True), finding("b", "", True)])[1].what == "b"
