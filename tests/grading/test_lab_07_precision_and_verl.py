"""Lab 7: limits agree with the reports, and remedies with the scenario."""

import pytest

from grpo_lab.config.catalog import scenario
from grpo_lab.course import evaluate
from grpo_lab.course.compare import differs
from grpo_lab.course.registry import exercise
from tests.grading import mutants

cases = mutants.checks("07_precision_and_verl")


def test_the_limits_are_those_that_the_reports_meet():
    expected = {case.inputs["dtype"]: case.expected.high for case in cases.LARGEST.cases(0)}
    assert expected["float16"] == pytest.approx(11.09, abs=0.01)
    assert expected["float32"] == pytest.approx(88.72, abs=0.01)


def test_the_remedies_are_cures_and_decoys_of_the_scenario():
    known = {row[0] for row in (*scenario("bad-batch").cures, *scenario("bad-batch").decoys) if len(row) == 1}
    assert set(cases.REMEDIES.values()) <= known


BISECTION = """
import torch
from tests.grading import mutants

cases = mutants.checks("07_precision_and_verl")


def largest_log_ratio(dtype):
    kind, low, high = getattr(torch, dtype), 0.0, 1000.0
    for _ in range(60):
        x = (low + high) / 2
        fits = torch.tensor(x, dtype=torch.float64).exp().to(kind).isfinite()
        low, high = (x, high) if fits else (low, x)
    return low
"""
"""The largest x whose exponential still rounds to a finite number."""
IN_THE_FORMAT = BISECTION.replace("dtype=torch.float64).exp().to(kind)", "dtype=kind).exp()").replace(
    "return low", "return torch.tensor(low, dtype=kind).item()"
)
"""The largest x of the format itself."""


@pytest.mark.parametrize("source", [BISECTION, IN_THE_FORMAT], ids=["bisection", "in the format"])
def test_the_limit_found_by_trial_is_right_too(lab, load, source):
    check, answer = exercise(lab, "largest"), load(source)
    for seed in range(20):
        assert [found for found in evaluate.check(check, answer, seed) if not found.right] == [], seed


def test_grading_asks_the_formats_that_the_notebook_asks():
    formats = [{case.inputs["dtype"] for case in cases.LARGEST.cases(seed)} for seed in range(20)]
    assert all(asked == formats[0] for asked in formats)


@pytest.mark.parametrize(
    ("dtype", "near"), [("float16", 11.11), ("bfloat16", 89.0), ("bfloat16", 88.0), ("float16", 11)]
)
def test_a_limit_beyond_the_formats_spacing_is_wrong(dtype, near):
    (limit,) = {case.expected for case in cases.LARGEST.cases(0) if case.inputs["dtype"] == dtype}
    assert differs(near, limit)
