"""The checks of lab 0 accept what is right, on any seed, and tell the usual mistakes apart."""

import math

import pytest

from grpo_lab.grading import checking
from grpo_lab.grading.checks import exercise, lab_page
from grpo_lab.grading.checks.lab_00_start import RECORDING, steps_out_of_range
from grpo_lab.recordings import recording_names

READ = {"spike_step": 5, "spike_norm": 1390.0, "reward_noticed": False}


def findings(name, seed=0, **answer):
    return checking.check(exercise("00_start", name), answer, seed)


def test_what_is_read_is_a_recording():
    assert RECORDING in recording_names()
    assert checking.all_right(findings("reading", **READ))


@pytest.mark.parametrize(
    "wrong",
    [{"spike_step": 6}, {"spike_norm": 939}, {"spike_norm": "1390"}, {"reward_noticed": True}, {"reward_noticed": 0}],
    ids=str,
)
def test_each_reading_is_looked_at_alone(wrong):
    found = findings("reading", **{**READ, **wrong})
    assert [one.what for one in found if not one.right] == list(wrong) and all(
        one.why for one in found if not one.right
    )


@pytest.mark.parametrize("seed", range(5))
def test_steps_out_of_range(seed):
    assert checking.all_right(findings("out_of_range", seed, steps_out_of_range=steps_out_of_range))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda norms, limit: [step for step, norm in enumerate(norms) if norm > limit],
        lambda norms, limit: [step for step, norm in enumerate(norms) if not math.isfinite(norm)],
        lambda norms, limit: [step + 1 for step, norm in enumerate(norms) if not norm <= limit],
        lambda norms, limit: [step for step, norm in enumerate(norms) if not norm <= 10],
        lambda norms, limit: [norm for norm in norms if not norm <= limit],
        lambda norms, limit: [],
    ],
    ids=["nan passes", "no limit", "from one", "limit fixed", "norms", "nothing"],
)
def test_wrong_steps(wrong):
    assert all(not checking.all_right(findings("out_of_range", seed, steps_out_of_range=wrong)) for seed in range(5))


@pytest.mark.parametrize(("rate", "teaches"), [(3e-4, True), (1e-2, False)])
def test_a_rate_is_judged_by_what_it_teaches(rate, teaches):
    (found,) = findings("learning_rate", seed=1, learning_rate=rate)
    assert found.right is teaches and f"{rate:g}" in found.what


@pytest.mark.parametrize("rate", ["3e-4", True, -1.0, math.nan, None])
def test_no_rate(rate):
    (found,) = findings("learning_rate", learning_rate=rate)
    assert not found.right and found.why


def test_the_page():
    page = lab_page("00_start")
    assert len(page.questions) == 3 and sum(e.minutes for e in page.exercises.values()) < page.minutes
