"""The checks of lab 3 accept what is right, on any seed, and tell the usual mistakes apart."""

import math
from dataclasses import dataclass

import pytest
import torch

from grpo_lab.crashes import classify_crash
from grpo_lab.grading import checking
from grpo_lab.grading.checks import cases_03_error_chain as cases
from grpo_lab.grading.checks import exercise, lab_page
from grpo_lab.guards import SkipNonfinite
from grpo_lab.interventions import Intervention, Outcome, Stage, Verdict

LAB = lab_page("03_error_chain")
SEEDS = range(5)


def findings(name, seed=0, **answer):
    return checking.check(exercise("03_error_chain", name), answer, seed)


def right_on_every_seed(name, **answer):
    return all(checking.all_right(findings(name, seed, **answer)) for seed in SEEDS)


def wrong_on_every_seed(name, **answer):
    told = [[found for found in findings(name, seed, **answer) if not found.right] for seed in SEEDS]
    return all(told) and all(found.why for row in told for found in row)


# Order ---------------------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_the_chain():
    assert right_on_every_seed("order", order=cases.CHAIN)
    assert right_on_every_seed("order", order=list(cases.CHAIN))


@pytest.mark.parametrize("swapped", range(7))
def test_two_neighbours_that_are_swapped_are_told(swapped):
    order = list(cases.CHAIN)
    order[swapped], order[swapped + 1] = order[swapped + 1], order[swapped]
    told = [found for found in findings("order", order=order) if not found.right]
    assert [found.what for found in told] == [f"'{order[swapped + 1]}' and '{order[swapped]}'"]


@pytest.mark.parametrize("order", [(), cases.CHAIN[:7], (*cases.CHAIN, "multinomial"), "multinomial", 8, None, [1] * 8])
def test_what_is_not_the_eight_links_is_told(order):
    assert wrong_on_every_seed("order", order=order)


# What multinomial asks -----------------------------------------------------------------------------------------------


def accepts(probabilities):
    return (probabilities.max() < math.inf) & (probabilities.min() >= 0)


WRONG_ACCEPTS = {
    "the first is not 0": lambda probabilities: bool(probabilities.view(-1)[0] != 0),
    "all above 0": lambda probabilities: bool((probabilities > 0).all()),
    "sums to 1": lambda probabilities: bool(torch.isclose(probabilities.sum(-1), torch.tensor(1.0)).all()),
    "no NaN": lambda probabilities: not probabilities.isnan().any(),
    "finite": lambda probabilities: bool(probabilities.isfinite().all()),
    "none below 0": lambda probabilities: not (probabilities < 0).any(),
    "none is not enough": lambda probabilities: not (probabilities < 0).any() and not (probabilities == math.inf).any(),
    "only the first row": lambda probabilities: bool(accepts(probabilities[0])),
    "always": lambda probabilities: True,
    "one answer a row": lambda probabilities: (probabilities.amax(-1) < math.inf) & (probabilities.amin(-1) >= 0),
}


def test_the_check_of_torch_is_accepted_also_in_words_of_its_own():
    assert right_on_every_seed("accepts", accepts=accepts)
    assert right_on_every_seed("accepts", accepts=lambda probabilities: bool(accepts(probabilities)))
    in_words = lambda probabilities: bool((probabilities.isfinite() & (probabilities >= 0)).all())  # noqa: E731
    assert right_on_every_seed("accepts", accepts=in_words)


@pytest.mark.parametrize("mistake", WRONG_ACCEPTS)
def test_another_check_than_torch_s_is_told(mistake):
    assert wrong_on_every_seed("accepts", accepts=WRONG_ACCEPTS[mistake])


# Faces ---------------------------------------------------------------------------------------------------------------


def face(text):
    if "input[0] != 0" in text:
        return "multinomial-cuda-windows"
    if "Assertion `probability tensor" in text:
        return "multinomial-cuda-linux"
    return "multinomial-cpu" if "probability tensor contains either" in text else "other"


WRONG_FACES = {
    "the words come first": lambda text: "multinomial-cpu" if "probability tensor" in text else face(text),
    "the file decides": lambda text: "multinomial-cuda-linux" if "TensorCompare.cu" in text else face(text),
    "any assertion": lambda text: "multinomial-cuda-linux" if "Assertion `" in text else face(text),
    "any device-side assert": lambda text: "multinomial-cuda-windows" if "device-side" in text else face(text),
    "never other": lambda text: "multinomial-cpu" if face(text) == "other" else face(text),
    "any CUDA": lambda text: "multinomial-cuda-linux" if "CUDA out" in text else face(text),
}


def test_crashes_are_read():
    assert right_on_every_seed("face", face=face)
    assert {case.expected for case in cases.FACE.cases(0)} == {*cases.FACES, "other"}


@pytest.mark.parametrize("mistake", WRONG_FACES)
def test_a_crash_that_is_misread_is_told(mistake):
    assert wrong_on_every_seed("face", face=WRONG_FACES[mistake])


def test_the_texts_are_those_that_this_project_knows():
    kinds = [classify_crash(case.inputs["text"]).kind for case in cases.FACE.cases(0)]
    assert kinds == [*cases.FACES, "cuda-assert", "cuda-assert", "out-of-memory"]


# The guard -----------------------------------------------------------------------------------------------------------


def guard(passes, reason="grad norm {:.4g} > 10", refusal=Verdict.SKIP_STEP):
    @dataclass(frozen=True)
    class FiniteFirst(Intervention):
        """Passes what it is told to pass."""

        name = "finite_first"
        stage = Stage.GRADIENTS

        def __call__(self, value, step):
            return Outcome(value) if passes(step.grad_norm) else Outcome(value, refusal, reason.format(step.grad_norm))

    return FiniteFirst


WRONG_GUARDS = {
    "as reported": guard(lambda norm: not norm > 10),
    "tests for NaN only": guard(lambda norm: not math.isnan(norm)),
    "tests finiteness only": guard(math.isfinite),
    "inf passes": guard(lambda norm: norm <= 10 or norm == math.inf),
    "refuses everything": guard(lambda norm: False),
    "lets everything through": guard(lambda norm: True),
    "refuses 0": guard(lambda norm: 0 < norm <= 10),
    "says nothing": guard(lambda norm: norm <= 10, reason=""),
    "says no number": guard(lambda norm: norm <= 10, reason="too large"),
    "only says so": guard(lambda norm: norm <= 10, refusal=Verdict.KEEP),
    "ends the run": guard(lambda norm: norm <= 10, refusal=Verdict.STOP),
    "another guard": SkipNonfinite,
}


def test_the_guard_is_accepted_in_either_wording():
    assert right_on_every_seed("finite_first", FiniteFirst=guard(lambda norm: math.isfinite(norm) and norm <= 10))
    assert right_on_every_seed("finite_first", FiniteFirst=guard(lambda norm: norm <= 10))


@pytest.mark.parametrize("mistake", WRONG_GUARDS)
def test_a_guard_with_a_hole_is_told(mistake):
    assert wrong_on_every_seed("finite_first", FiniteFirst=WRONG_GUARDS[mistake])


# eps -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-4, 1e-3])
def test_an_eps_that_fp16_can_hold_is_accepted(eps):
    assert right_on_every_seed("epsilon", adam_eps=eps)


@pytest.mark.parametrize(
    "eps", [0, 1e-8, 2e-8, 1e-7, 1e-6, 1e-5, 1.0, 1e3, -1e-4, math.nan, math.inf, True, "1e-4", None]
)
def test_an_eps_that_only_survives_rounding_is_told(eps):
    told = [found for found in findings("epsilon", adam_eps=eps) if not found.right]
    assert told
    assert all(found.why for found in told)


@pytest.mark.parametrize(("answer", "accepted"), [("a", True), ("d", True), ("e", False), (3, False)])
def test_any_letter_is_a_prediction(answer, accepted):
    assert right_on_every_seed("forecast", answer=answer) is accepted


def test_the_page_adds_up():
    assert sum(exercise.minutes for exercise in LAB.exercises.values()) < LAB.minutes
    assert len(LAB.questions) == 3
    assert all(0 <= question.right < len(question.options) for question in LAB.questions)
