"""Lab 8: no finding names the right cause, every harm breaks a run, and a wrong denominator is found at any rate."""

import pytest

from grpo_lab.config.catalog import preset
from grpo_lab.course import mysteries, trials
from tests.grading import mutants

checks = mutants.checks("08_mystery_runs")
KEY = mysteries.key()


@pytest.mark.parametrize("number", KEY)
def test_every_other_name_is_wrong_and_the_right_one_is_not_said(findings, number):
    for name in set(checks.NAMES) - {KEY[number]}:
        found = findings("verdicts", answer={**KEY, number: name})
        assert [one.what for one in found if not one.right] == [f"mystery-{number}"]
        said = next(f"{one.expected} {one.why}" for one in found if not one.right)
        assert KEY[number] not in said and said.endswith(("?", ".", "!"))


@pytest.mark.parametrize("rate", ["1e-5", "3e-4"])
@pytest.mark.parametrize("log_ratio", ["old", "reference"])
def test_the_wrong_denominator_is_seen_at_any_rate(log_ratio, rate):
    config = preset("original").with_(f"loss.log_ratio={log_ratio}", f"optimizer.learning_rate={rate}")
    for seed in range(2):
        assert checks.denominator(config, seed).right is (log_ratio == "old")


@pytest.mark.parametrize("what", checks.HARMS)
def test_every_harm_is_one(what):
    config = preset("original").with_("loss.log_ratio=old", "optimizer.learning_rate=3e-4").with_guards({})
    harmed = config.with_("data.num_prompts=4", "run.num_steps=6", *checks.HARMS[what])
    assert not trials.survives(harmed, what, seed=1, why="").right
