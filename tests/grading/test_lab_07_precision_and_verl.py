"""Lab 7: limits agree with the reports, and remedies with the scenario."""

import pytest

from grpo_lab.config.catalog import scenario
from grpo_lab.course.labs.lab_07_precision_and_verl import cases


def test_the_limits_are_those_that_the_reports_meet():
    expected = {case.inputs["dtype"]: case.expected for case in cases.LARGEST.cases(0)}
    assert expected["float16"] == pytest.approx(11.09, abs=0.01)
    assert expected["float32"] == pytest.approx(88.72, abs=0.01)


def test_the_remedies_are_cures_and_decoys_of_the_scenario():
    known = {row[0] for row in (*scenario("bad-batch").cures, *scenario("bad-batch").decoys) if len(row) == 1}
    assert set(cases.REMEDIES.values()) <= known
