"""Lab 0: its recording ships, and each reading has a finding of its own."""

import pytest

from grpo_lab.course.labs.lab_00_start.page import RECORDING
from grpo_lab.runs.recordings import recording_names


def test_what_is_read_is_a_recording():
    assert RECORDING in recording_names()


@pytest.mark.parametrize("name", ["spike_step", "spike_norm", "reward_noticed"])
def test_each_reading_has_a_finding_of_its_own(findings, name):
    read = {"spike_step": 5, "spike_norm": 1390.0, "reward_noticed": False, name: None}
    assert [finding.what for finding in findings("reading", **read) if not finding.right] == [name]
