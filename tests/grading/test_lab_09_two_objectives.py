"""Lab 9: the answers asked for are the functions that the trainer uses, and each mistake has a finding of its own."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import tensor

from grpo_lab.algorithm import combinations
from grpo_lab.course import registry
from grpo_lab.course.exercises import Function
from grpo_lab.training.guards import AdaptiveBeta
from grpo_lab.training.interventions import ObjectiveCoefficients
from tests.grading import mutants

cases = mutants.checks("09_two_objectives")

SEEDS = range(4)
WRONG = [each for each in mutants.wrong() if each.lab == "09_two_objectives"]


@pytest.fixture
def reference(lab, load):
    """`reference(exercise)`: the function of the reference solution."""
    return lambda name: getattr(load(mutants.solution(lab, name)), name)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_cosine_is_that_of_the_metric(reference, seed):
    for case in cases.COSINE.cases(seed):
        found = float(combinations.cosine(case.inputs["first"], case.inputs["second"]))
        assert reference("cosine")(**case.inputs) == pytest.approx(found, nan_ok=True, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_projection_is_that_of_pcgrad(reference, seed):
    for case in cases.WITHOUT_CONFLICT.cases(seed):
        (found,) = combinations.project_conflicting([[case.inputs["f"]], [case.inputs["h"]]])
        assert found is not None
        assert torch.allclose(reference("without_conflict")(**case.inputs), found, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_controller_is_that_of_the_guard(reference, seed):
    for case in cases.NEXT_BETAS.cases(seed):
        betas, kls, bands = case.inputs.values()
        guard = AdaptiveBeta(lowest=cases.LOWEST, highest=cases.HIGHEST)
        step: Any = SimpleNamespace(last_metrics={f"kl/{name}": kl for name, kl in kls.items()})
        value = ObjectiveCoefficients(1e-4, 0.0, 0.2, 0.2, 1e-8, betas=betas, kl_bands=bands)
        assert reference("next_betas")(**case.inputs) == pytest.approx(guard(value, step).value.betas)


ALONE = [
    ("cosine", "None is an error", ["missing"]),
    ("cosine", "0 / 0", ["zero"]),
    ("cosine", "an epsilon below", ["tiny"]),
    ("cosine", "no NaN", ["nan_gradient"]),
    ("set_grads", "copy_ for add_", ["both", "weighted", "four"]),
    ("set_grads", "weight ignored", ["weighted", "four", "off"]),
    ("next_betas", "one NaN stops all", ["nan", "inf"]),
    ("next_betas", "NaN alone", ["inf"]),
    ("next_betas", "absent is 0", ["absent"]),
    ("next_betas", "without limits", ["ends"]),
    ("next_betas", "quiet inside the band", ["inside"]),
    ("without_conflict", "always projected", ["agree", "broken"]),
    ("without_conflict", "nan > 0", ["broken"]),
    ("without_conflict", "divided by the length", ["conflict", "longer"]),
]


@pytest.mark.parametrize(("exercise", "mistake", "keys"), ALONE)
def test_a_mistake_is_found_where_it_matters_and_explained_there(lab, load, findings, exercise, mistake, keys):
    answer = load(next(each.source for each in WRONG if (each.exercise, each.name) == (exercise, mistake)))
    wrong = [finding for finding in findings(exercise, **vars(answer)) if not finding.right]
    assert [finding.what for finding in wrong] == [cases.TEXTS[key][0] for key in keys]
    check = registry.exercise(lab, exercise).check
    assert isinstance(check, Function)
    known = {each.why for each in check.mistakes()}
    for key, each in zip(keys, wrong, strict=True):
        assert each.why in known or cases.TEXTS[key][1] in each.why or "Error" in each.got


def test_a_projection_of_opposed_gradients_is_nothing_and_no_nan(reference):
    f = tensor([3.0, -1.0])
    assert reference("without_conflict")(f, -f).tolist() == [0.0, 0.0]
    assert reference("without_conflict")(f, 0 * f).tolist() == f.tolist()


@pytest.mark.parametrize("letter", "abd")
def test_a_wrong_cause_is_answered_without_the_right_one(findings, letter):
    (found,) = findings("cause", answer=letter)
    assert not found.right and found.why.endswith((".", "?"))
    assert "mean" not in found.why and "alike" not in found.why
