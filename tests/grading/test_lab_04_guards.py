"""The checks of lab 4 accept what is right, on any seed, and tell the usual mistakes apart."""

import math

import pytest

from grpo_lab.grading import checking, trials
from grpo_lab.grading.checks import exercise, lab_page
from grpo_lab.grading.checks.lab_04_guards import ALONE, SURVIVE, minimal_set
from grpo_lab.guards import GUARDS
from grpo_lab.interventions import Intervention, Outcome, Stage, Verdict, exceeds
from grpo_lab.scenarios import scenario

SEEDS = range(5)


def findings(name, seed=0, **answer):
    return checking.check(exercise("04_guards", name), answer, seed)


def right_on_every_seed(name, **answer):
    return all(checking.all_right(findings(name, seed, **answer)) for seed in SEEDS)


def wrong_on_every_seed(name, **answer):
    found = [findings(name, seed, **answer) for seed in SEEDS]
    return all(not checking.all_right(one) and all(f.why for f in one if not f.right) for one in found)


def skip_jumps(fine, remember, reason=True, verdict=Verdict.SKIP_STEP):
    """A guard by how it judges (norm, largest) and by what it remembers of a norm and its judgement."""

    class SkipJumps(Intervention):
        name, stage = "skip_jumps", Stage.GRADIENTS

        def __call__(self, value, step):
            norm, largest = step.grad_norm, self.memory.get("largest")
            accepted = fine(norm, largest)
            if remember(norm, accepted):
                self.memory["largest"] = max(norm, largest or 0.0)
            if accepted:
                return Outcome(value)
            return Outcome(value, verdict, exceeds("grad norm", norm, 8.0) if reason else "")

    return SkipJumps


def jumps(norm, largest):
    return math.isfinite(norm) and (largest is None or norm <= 8 * largest)


def accepted_only(norm, accepted):
    return accepted


def always(norm, accepted):
    return True


def nan_passes(norm, largest):
    return not (norm > 8 * (largest or math.inf))


def test_a_guard_without_a_threshold():
    assert right_on_every_seed("guard", SkipJumps=skip_jumps(jumps, accepted_only))


@pytest.mark.parametrize(
    "wrong",
    [
        skip_jumps(lambda norm, largest: norm <= 10, accepted_only),
        skip_jumps(nan_passes, accepted_only),
        skip_jumps(jumps, always),
        skip_jumps(lambda norm, largest: math.isfinite(norm), accepted_only),
        skip_jumps(lambda norm, largest: False, accepted_only),
        skip_jumps(lambda norm, largest: True, accepted_only),
        skip_jumps(jumps, accepted_only, reason=False),
        skip_jumps(jumps, accepted_only, verdict=Verdict.CHANGED),
    ],
    ids=["threshold", "nan passes", "refused raise the bar", "finite only", "all", "none", "in silence", "not refused"],
)
def test_wrong_guards(wrong):
    assert wrong_on_every_seed("guard", SkipJumps=wrong)


def update_or_skip(optimizer, norm, limit):
    if norm <= limit:
        optimizer.step()
    return norm <= limit


def zeroes_and_steps(optimizer, norm, limit):
    if not norm <= limit:
        optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    return norm <= limit


def lets_nan_through(optimizer, norm, limit):
    if norm > limit:
        return False
    optimizer.step()
    return True


def never(optimizer, norm, limit):
    return norm <= limit


def test_skipping():
    assert right_on_every_seed("skip", update_or_skip=update_or_skip)


@pytest.mark.parametrize("wrong", [zeroes_and_steps, lets_nan_through, never])
def test_no_skipping(wrong):
    assert wrong_on_every_seed("skip", update_or_skip=wrong)


def test_one_guard_for_each_failure():
    guards = {
        "zero-times-infinity": "clamp_log_ratio",
        "fp16-adam-epsilon": "representable_epsilon",
        "nan-reward": "sanitize_rewards",
    }
    assert checking.all_right(findings("alone", seed=1, answer=guards))


def test_decoys_for_each_failure():
    answer = {
        "zero-times-infinity": "dual_clip",
        "fp16-adam-epsilon": "skip_nonfinite",
        "nan-reward": "clamp_advantages",
    }
    for name, guard in answer.items():
        assert [f"guards.{guard}=on"] in [list(decoy) for decoy in scenario(name).decoys]
    assert [found.right for found in findings("alone", seed=1, answer=answer)] == [False] * 3


@pytest.mark.parametrize("answer", ["skip_spikes", {"nan-reward": "skip_spikes"}, dict.fromkeys(ALONE, "a_guard")])
def test_an_answer_that_cannot_be_run(answer):
    (found,) = findings("alone", answer=answer)
    assert not found.right and found.why


def test_two_guards_are_enough():
    assert checking.all_right(findings("minimal_set", seed=1, guards=("skip_spikes", "representable_epsilon")))


def test_all_guards_are_too_many():
    first = next(minimal_set({"guards": tuple(GUARDS)}, 0))
    assert not first.right and f"{len(GUARDS)} guards" in first.got


@pytest.mark.parametrize("guards", [("skip_spikes",), ("representable_epsilon",)])
def test_neither_of_the_two_is_enough_alone(guards):
    settings = trials.guards_of(guards)
    found = [trials.stops(name, settings, 1, why, *overrides) for name, (_, overrides, why) in SURVIVE.items()]
    assert not all(one.right for one in found)


def test_a_limit_that_healthy_runs_reach():
    healthy = scenario("nan-reward").config(guards=()).with_("optimizer.learning_rate=5e-4", "faults.nan_reward=off")
    low = healthy.with_guards(trials.guards_of({"clamp_kl": {"limit": 2.0}}))
    assert [found.got for found in trials.learns(low, seed=1)][1] == "clamp_kl"


@pytest.mark.parametrize(("letter", "right"), [("c", True), ("a", False), ("b", False), ("d", False), (3, False)])
def test_what_a_guard_hides(letter, right):
    (found,) = findings("hides", answer=letter)
    assert found.right is right


def test_the_page():
    page = lab_page("04_guards")
    assert len(page.questions) == 3 and sum(e.minutes for e in page.exercises.values()) < page.minutes
