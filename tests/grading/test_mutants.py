"""On inputs that nobody has seen, every check tells the usual mistakes, and accepts what is right in other words."""

import ast
from dataclasses import replace

import pytest

from grpo_lab.config.schema import Config
from grpo_lab.course import evaluate
from grpo_lab.course.exercises import Function, Values
from grpo_lab.course.known_answers import changed
from grpo_lab.course.registry import exercise, lab_page
from grpo_lab.errors import DataError
from grpo_lab.training.registry import FORMULAS
from grpo_lab.training.wrong_formulas import FORMULAS as WRONG_FORMULAS
from tests.grading import mutants
from tests.grading.mutants import HARD_CODED, LABS, TRAINED, trains

WRONG, ANOTHER_WAY = mutants.wrong(), mutants.right()
RIGHT = [*(each for each in mutants.references() if not trains(each)), *ANOTHER_WAY]
RAISES = {
    "03_error_chain/finite_first/returns None",
    "04_guards/guard/returns None",
    "08_mystery_runs/objective/a name that is not defined",
    "08_mystery_runs/objective/returns None",
    "09_two_objectives/cosine/None is an error",
    "09_two_objectives/next_betas/absent raises",
}
"""What never gets as far as a value."""
CLASSICS = {
    "sign flipped": ("01_grpo_by_hand/policy_loss", "01_grpo_by_hand/advantages", "02_explosion/gradient", "05_kl/k3"),
    "mask ignored": ("01_grpo_by_hand/aggregate", "06_silent_failures/one_update", "08_mystery_runs/objective"),
    "no exp": ("01_grpo_by_hand/policy_loss", "02_explosion/gradient", "05_kl/k3", "08_mystery_runs/objective"),
    "token for sequence": ("01_grpo_by_hand/aggregate",),
    "token-mean for sequence-mean": ("08_mystery_runs/objective",),
    "biased std": ("01_grpo_by_hand/advantages",),
    "not divided": ("06_silent_failures/one_update", "08_mystery_runs/update"),
    "zero_grad in the loop": ("06_silent_failures/one_update", "08_mystery_runs/update"),
    "copy_ for add_": ("08_mystery_runs/gradients", "09_two_objectives/set_grads"),
    "zero loss": ("01_grpo_by_hand/policy_loss", "06_silent_failures/one_update", "08_mystery_runs/objective"),
    "clamp after exp": ("02_explosion/bounded", "05_kl/straight", "08_mystery_runs/objective"),
    "nan > limit": ("00_start/out_of_range", "04_guards/guard", "04_guards/skip", "05_kl/next_beta"),
    "nan > 10": ("03_error_chain/finite_first", "07_precision_and_verl/remedy", "08_mystery_runs/update"),
    "skip every step": (
        "03_error_chain/finite_first",
        "04_guards/guard",
        "04_guards/skip",
        "04_guards/minimal_set",
        "07_precision_and_verl/remedy",
        "08_mystery_runs/update",
        "08_mystery_runs/stable",
    ),
    "guard nothing": ("04_guards/guard", "04_guards/minimal_set", "07_precision_and_verl/remedy"),
    "every guard": ("04_guards/minimal_set",),
    "0": ("00_start/learning_rate", "03_error_chain/epsilon"),
    "no letter": ("01_grpo_by_hand/flipped", "07_precision_and_verl/cures"),
    "returns None": ("01_grpo_by_hand/policy_loss", "06_silent_failures/which", "08_mystery_runs/update"),
    HARD_CODED: ("01_grpo_by_hand/advantages", "03_error_chain/face", "06_silent_failures/which"),
}
"""Mistakes that are made again and again, and where they must be told at least."""


def asked(mutant):
    """Its exercise, which trains no further than to the first thing that is wrong."""
    found = exercise(mutant.lab, mutant.exercise)
    if not (trains(mutant) and isinstance(found.check, Values)):
        return found
    judge = found.check.judge

    def until_wrong(values, seed):
        for finding in judge(values, seed):
            yield finding
            if not finding.right:
                return

    return replace(found, check=replace(found.check, judge=until_wrong))


def telling(mutant):
    """What no explanation may hold: the reference's lines of code, or the numbers and names that were to be found."""
    task, solution = exercise(mutant.lab, mutant.exercise), mutants.solution(mutant.lab, mutant.exercise)
    if isinstance(task.check, Function):
        return {line.strip().removeprefix("return ") for line in solution.split("\n") if len(line.strip()) >= 20}
    if task.kind != "configuration":
        return set()  # a letter or a name from a list; tests of their own look at what is said of those
    asked = "".join(line for line in solution.split("\n") if line.startswith("#"))
    values = {node.value for node in ast.walk(ast.parse(solution)) if isinstance(node, ast.Constant)}
    found = {str(value) for value in values if isinstance(value, float | str)}
    return {value for value in found if len(value) > 3 and value not in asked and value not in mutant.source}


def by_exercise(found, at_once):
    """One test for all of these answers to an exercise; a test for each would cost more than what it does.

    Where the check trains, only so many answers are judged `at_once`; the others are slow.
    """
    together = {}
    for each in found:
        together.setdefault(f"{each.lab}/{each.exercise}", []).append(each)
    tests = []
    for place, given in together.items():
        first = at_once if trains(given[0]) else len(given)
        tests.append(pytest.param(given[:first], id=place))
        tests.append(pytest.param(given[first:], id=f"{place}, the others", marks=pytest.mark.slow))
    return pytest.mark.parametrize("given", [test for test in tests if test.values[0]])


@by_exercise(WRONG, at_once=1)
def test_wrong_answers_lose_their_points_and_learn_why(load, given):
    for mutant in given:
        loaded = load(mutant.source)
        for seed in (1,) if trains(mutant) else (1, 2, 3):
            wrong = [finding for finding in evaluate.check(asked(mutant), loaded, seed) if not finding.right]
            assert wrong, (str(mutant), seed)
            for finding in wrong:
                assert len(finding.why) >= 10, str(mutant)
                assert [part for part in telling(mutant) if part in finding.why] == [], str(mutant)
            assert all("Error: " in finding.got for finding in wrong) == (str(mutant) in RAISES), str(mutant)


@by_exercise(RIGHT, at_once=0)
def test_other_ways_are_right_too(load, given):
    for mutant in given:
        task, loaded = exercise(mutant.lab, mutant.exercise), load(mutant.source)
        transformed = [(seed, each) for seed in (1, 2, 3, 4) for each in (False, True)]
        for seed, each in [(1, False)] if trains(mutant) else [(0, False), *transformed]:
            cases = evaluate.asked(task, seed, each)
            answered = evaluate.run(task, loaded, [case.inputs for case in cases])
            found = evaluate.judged(task, answered, cases, seed)
            assert evaluate.all_right(found), (str(mutant), seed, [each for each in found if not each.right])


def test_the_public_answers_are_right_as_long_as_they_are_asked(load):
    for mutant in WRONG:
        if mutant.name == HARD_CODED:
            assert evaluate.all_right(evaluate.check(asked(mutant), load(mutant.source), 0)), str(mutant)


def test_every_exercise_has_wrong_answers_and_every_function_another_right_one():
    all_of_them = {(lab, name): task for lab in LABS for name, task in lab_page(lab).exercises.items()}
    assert {(each.lab, each.exercise) for each in WRONG} == set(all_of_them)
    functions = {place for place, task in all_of_them.items() if isinstance(task.check, Function)}
    assert functions <= {(each.lab, each.exercise) for each in ANOTHER_WAY}
    assert {"/".join(place) for place in all_of_them} >= TRAINED


def test_every_wrong_formula_of_the_registry_loses_somewhere():
    loss, taught = Config().loss, WRONG_FORMULAS
    names = {f"loss.{kind}={name}" for kind, known in FORMULAS.items() for name in {*known} - {getattr(loss, kind)}}
    names = {name for name in names if name.startswith(tuple(f"loss.{kind}=" for kind in taught))}
    names -= {"loss.completion_mask=not_truncated"}  # right, and not asked for: no lab cuts completions off
    called = {each.name for each in WRONG if "FORMULAS" in each.source}
    assert names and names - called == set()


def test_every_classic_is_among_them():
    known = {str(each) for each in WRONG}
    assert [
        f"{place}/{name}" for name, places in CLASSICS.items() for place in places if f"{place}/{name}" not in known
    ] == []


def test_a_mutant_differs_from_what_is_right_and_from_every_other_one():
    for each in (*WRONG, *ANOTHER_WAY):
        assert each.source != mutants.solution(each.lab, each.exercise)
    assert len({(each.lab, each.exercise, each.source) for each in WRONG}) == len(WRONG)
    with pytest.raises(DataError, match="stands 0 times"):
        changed("a = 1", {"b": "c"})
    with pytest.raises(DataError, match="stands 2 times"):
        changed("a = a", {"a": "c"})
    with pytest.raises(DataError, match="overlap"):
        changed("a = 1", {"a =": "c", "= 1": "d"})
