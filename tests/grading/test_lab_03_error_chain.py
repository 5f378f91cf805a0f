"""Lab 3: the order is judged link by link, and the crash texts are those of `classify_crash`."""

import pytest

from grpo_lab.runs.crashes import classify_crash
from tests.grading import mutants

cases = mutants.checks("03_error_chain")


@pytest.mark.parametrize("swapped", range(7))
def test_two_neighbours_that_are_swapped_are_told(findings, swapped):
    order = list(cases.CHAIN)
    order[swapped], order[swapped + 1] = order[swapped + 1], order[swapped]
    told = [found.what for found in findings("order", order=order) if not found.right]
    assert told == [f"'{order[swapped + 1]}' and '{order[swapped]}'"]


def test_the_texts_are_those_that_this_project_knows():
    faces = cases.FACE.cases(0)
    assert {case.expected for case in faces} == {*cases.FACES, "other"}
    kinds = [classify_crash(case.inputs["text"]).kind for case in faces]
    assert kinds == [*cases.FACES, "index-cuda", "cuda-assert", "out-of-memory"]


@pytest.mark.parametrize("eps", [1e-4, 1e-3])
def test_a_right_eps_is_accepted(findings, eps):
    told = findings("epsilon", adam_eps=eps)
    assert len(told) == 3 and all(found.right for found in told)


@pytest.mark.parametrize("eps", [0.0, 1e-8, 1e-7, 1.0])
def test_a_wrong_eps_is_refused(findings, eps):
    assert not all(found.right for found in findings("epsilon", adam_eps=eps))


@pytest.mark.parametrize("eps", [1e-2, 6e-5])
def test_an_eps_that_passes_in_the_notebook_passes_with_every_seed(findings, eps):
    """The moves of an eps near a limit lie on either side of it, by the batch: 0.01 was wrong on 2 of 8 seeds."""
    first = findings("epsilon", adam_eps=eps)
    assert all(found.right for found in first)
    assert all(findings("epsilon", seed, adam_eps=eps) == first for seed in range(1, 5))
