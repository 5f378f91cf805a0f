"""0 wrong scores: what is right in other words earns with every seed, and what is nearly right with none.

Every answer is marked as a grader marks it: one round of fresh inputs, and one of inputs that relations transform.
"""

import random

import pytest

from grpo_lab.course import evaluate
from grpo_lab.course.exercises import Function
from grpo_lab.course.registry import exercise
from tests.grading import mutants
from tests.grading.mutants import trains

OTHER_WORDS, NEAR = mutants.right(), mutants.near()
EARNS = [*mutants.references(), *OTHER_WORDS]
SEEDS = [random.Random(17 + number).randrange(1, 2**31) for number in range(20)]
"""As a grader's: 31 bits, drawn from a secret."""
FEW = 1
"""Seeds in `make test`, which leaves out the answers whose check trains."""


def earns(task, module, seed):
    """Whether an answer earns its points, as the grader decides it."""
    for number, transformed in enumerate((False, True) if isinstance(task.check, Function) else (False,)):
        cases = evaluate.asked(task, seed + number, transformed)
        given = evaluate.run(task, module, [case.inputs for case in cases])
        if not evaluate.all_right(evaluate.judged(task, given, cases, seed + number)):
            return False
    return True


def earned_with(answer, load, seeds):
    """The seeds with which an answer earns."""
    task, module = exercise(answer.lab, answer.exercise), load(answer.source)
    return [seed for seed in seeds if earns(task, module, seed)]


def wrong_scores(answers, load, seeds, right):
    """Every answer with a wrong score, and how many of its seeds gave it."""
    for answer in answers:
        earned = len(earned_with(answer, load, seeds))
        if earned != (len(seeds) if right else 0):
            yield f"{answer}: earned with {earned} of {len(seeds)} seeds"


def test_the_table_holds_a_hundred_of_each():
    assert len({(each.lab, each.exercise, each.source) for each in OTHER_WORDS}) >= 100
    assert len({(each.lab, each.exercise, each.source) for each in NEAR}) >= 100
    assert {each.lab for each in NEAR} == {each.lab for each in OTHER_WORDS} == {*mutants.LABS}


def test_what_passes_in_the_notebook_earns_with_a_few_seeds(load):
    given = [each for each in EARNS if not trains(each)]
    assert list(wrong_scores(given, load, [0, *SEEDS[:FEW]], right=True)) == []


def test_a_near_miss_earns_nothing_with_a_few_seeds(load):
    given = [each for each in NEAR if not trains(each)]
    assert list(wrong_scores(given, load, SEEDS[:FEW], right=False)) == []


def test_the_notebook_tells_what_earns_nothing(load):
    """No wrong answer passes there and is refused later, except for one that recites what the notebook asks."""
    given = [*mutants.wrong(), *NEAR]
    told = [(each, exercise(each.lab, each.exercise)) for each in given if not trains(each)]
    passes = [each for each, task in told if evaluate.all_right(evaluate.check(task, load(each.source)))]
    assert [str(each) for each in passes if each.name != mutants.HARD_CODED] == []


@pytest.mark.slow
@pytest.mark.parametrize("lab", mutants.LABS)
def test_what_is_right_earns_with_twenty_seeds(load, lab):
    given = [each for each in EARNS if each.lab == lab and not trains(each)]
    assert list(wrong_scores(given, load, [0, *SEEDS], right=True)) == []


@pytest.mark.slow
@pytest.mark.parametrize("lab", mutants.LABS)
def test_a_near_miss_earns_nothing_with_twenty_seeds(load, lab):
    given = [each for each in NEAR if each.lab == lab]
    assert list(wrong_scores(given, load, SEEDS, right=False)) == []


@pytest.mark.slow
@pytest.mark.parametrize("answer", [each for each in EARNS if trains(each)], ids=str)
def test_what_trains_earns_with_twenty_seeds(load, answer):
    """A test for each, so that the workers share what takes a minute."""
    assert earned_with(answer, load, SEEDS) == SEEDS
