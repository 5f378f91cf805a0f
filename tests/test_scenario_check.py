"""The claims of a scenario are tried: a right one holds, a wrong one is named, with exit code 1."""

import re

import pytest

from grpo_lab.analysis.matrix import FAILS, STOPPED
from grpo_lab.paths import data_directory

CAUSE = (
    (data_directory() / "scenarios" / "nan-reward.toml")
    .read_text(encoding="utf-8")
    .replace("num_prompts = 4", "num_prompts = 2")
)
CURES = re.compile(r"^cures = .*$", re.MULTILINE)
DECOYS = re.compile(r"^decoys = \[.*?^\]$", re.MULTILINE | re.DOTALL)
HEALS = CAUSE[CAUSE.index("[[heals]]") :]
GUARD = "guards.sanitize_rewards=on"
RATE = "optimizer.learning_rate=*0.01"


@pytest.fixture
def checked(tmp_path, call):
    """`checked(cure, decoy)`: the exit code and the table of a scenario of one's own with these claims."""

    def run(cure, decoy, cause=CAUSE, seeds="1", heal="", first="0"):
        text = DECOYS.sub(f'decoys = [["{decoy}"]]', CURES.sub(f'cures = [["{cure}"]]', cause)).replace(HEALS, heal)
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        code, out, err = call("scenarios", tmp_path / "mine.toml", "--check", "--seeds", seeds, "--first", first)
        return code, out + err

    return run


def test_right_claims_hold(checked):
    code, said = checked(GUARD, RATE, seeds="2", first="5")
    assert code == 0 and "wrong" not in said
    assert said.count("2 of 2") == 3 and "seeds 5–6" in said


@pytest.mark.parametrize(("cure", "decoy", "named"), [(RATE, RATE, FAILS), (GUARD, GUARD, STOPPED)])
def test_a_wrong_cure_and_a_wrong_decoy_are_named(checked, cure, decoy, named):
    code, said = checked(cure, decoy)
    assert code == 1 and f"wrong: {named}" in said and "1 of 3 claims do not hold" in " ".join(said.split())


def test_a_failure_that_does_not_happen_is_named(checked):
    code, said = checked(GUARD, RATE, cause=CAUSE.replace("at_step = 1", "at_step = 900"))
    assert code == 1 and f"wrong: {STOPPED}" in said


HEAL = """
[trial]
run = { num_steps = %d }
data = { num_prompts = 16, num_generations = 8 }

[[heals]]
change = [%s]
why = "It is said to heal."
"""
REFUSES_ALL = '"guards.skip_spikes.threshold=1e-9", "guards.rollback.patience=1", "guards.rollback.max_rollbacks=1"'


@pytest.mark.parametrize(
    ("steps", "change", "named"),
    [
        (2, '"optimizer.learning_rate=0"', "learned nothing"),
        (9, REFUSES_ALL, "is stopped by a guard"),
        pytest.param(60, '"faults.nan_reward=off"', "", marks=pytest.mark.slow),
    ],
)
def test_a_heal_has_to_learn(checked, steps, change, named):
    """Before: it had to end without the failure, which a rate of 0 does too."""
    code, said = checked(GUARD, RATE, heal=HEAL % (steps, change))
    assert (code, "learns" in said) == (1 if named else 0, True), said
    assert named in " ".join(said.split())


def test_check_needs_a_scenario(call):
    code, _, err = call("scenarios", "--check")
    assert code == 2 and "name it" in err
