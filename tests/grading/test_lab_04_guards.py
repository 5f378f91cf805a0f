"""Lab 4: the check refuses decoys, and limits that healthy runs reach."""

import pytest

from grpo_lab.config.catalog import scenario
from grpo_lab.course import trials


def test_decoys_for_each_failure(findings):
    answer = {
        "zero-times-infinity": "dual_clip",
        "fp16-adam-epsilon": "skip_nonfinite",
        "nan-reward": "clamp_advantages",
    }
    for name, guard in answer.items():
        assert [f"guards.{guard}=on"] in [list(decoy) for decoy in scenario(name).decoys]
    assert [found.right for found in findings("alone", seed=1, answer=answer)] == [False] * 3


@pytest.mark.slow
def test_a_limit_that_healthy_runs_reach():
    healthy = scenario("nan-reward").config(guards=()).with_("optimizer.learning_rate=5e-4", "faults.nan_reward=off")
    low = healthy.with_guards(trials.guards_of({"clamp_kl": {"limit": 2.0}}))
    assert [found.got for found in trials.learns(low, seed=1)][1] == "clamp_kl"
