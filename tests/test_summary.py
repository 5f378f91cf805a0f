"""The summary of a run: what it learned, the refused steps, the first break and the end."""

import math
from dataclasses import replace

import pytest

from grpo_lab.analysis.run_state import fold
from grpo_lab.config.catalog import preset
from grpo_lab.core.hooks import Verdict
from grpo_lab.events import Ended, Evaluated, LinkNote, Resumed, Started, Stepped
from grpo_lab.runs.outcome import Learned, MeanReward, change, outcome
from grpo_lab.runs.summary import summary
from grpo_lab.training.trainer import train

NOISY = [0.30, 0.34, 0.28, 0.31, 0.33, 0.29, 0.32, 0.30, 0.31, 0.28, 0.33, 0.30]
START = Started(preset("smoke").with_("data.num_prompts=16").to_dict(), 9, "cpu")


@pytest.mark.parametrize(
    ("rewards", "held_out", "expected"),
    [
        (NOISY * 4, [], Learned.NOTHING),
        (NOISY, [], Learned.UNKNOWN),
        ([0.0] * 12, [], Learned.NOTHING),
        (NOISY[:3], [], Learned.UNKNOWN),
        ([], [], Learned.UNKNOWN),
        ([value + step / 50 for step, value in enumerate(NOISY)], [], Learned.LEARNED),
        ([*NOISY[:6], *[0.0] * 12], [], Learned.LOST),
        ([0.31, 0.12, 0.04, 0.06, 0.03, 0.05, 0.02, 0.06, *[0.04, 0.05, 0.03] * 4], [], Learned.LOST),
        ([100 * value - 50 for value in (*NOISY[:6], *[0.0] * 12)], [], Learned.LOST),
        (NOISY, [(0.28, 250), (0.60, 250)], Learned.LEARNED),
        (NOISY, [(0.28, 250), (0.31, 250)], Learned.NOTHING),
        (NOISY, [(0.256, 250), (0.0, 250)], Learned.LOST),
        ([value + step / 50 for step, value in enumerate(NOISY)], [(0.28, 250), (0.0, 250)], Learned.LOST),
        (NOISY, [(0.28, 40), (0.31, 40)], Learned.UNKNOWN),
        ([*NOISY[:6], *[0.0] * 12], [(0.28, 40), (0.20, 40)], Learned.LOST),
        ([*NOISY[:6], *[0.0] * 12], [(0.28, 250), (0.29, 250)], Learned.NOTHING),
        ([math.nan, *NOISY * 4], [(0.28, 250)], Learned.NOTHING),
    ],
)
def test_the_result_is_told_from_noise(rewards, held_out, expected):
    steps = [Stepped(n, 1, Verdict.KEEP, {"reward": reward}, (), ()) for n, reward in enumerate(rewards)]
    evaluated = [Evaluated(len(steps) * place, *each) for place, each in enumerate(held_out)]
    events = [START, *evaluated[:1], *steps, *evaluated[1:]]
    assert outcome(events).learned is expected


def test_without_held_out_rewards_before_the_training_rewards_decide():
    """A judge that fails for every problem of the first evaluation gives NaN."""
    steps = [Stepped(n, 1, Verdict.KEEP, {"reward": n / 10}, (), ()) for n in range(10)]
    found = outcome([START, Evaluated(0, math.nan, 0), *steps, Evaluated(10, 0.6, 250)])
    assert found.learned is Learned.LEARNED and found.by_training


def test_one_step_of_right_answers_before_none_is_a_loss():
    """As in the first explosion of lab 0: 5 of 16 answers are right in the first step, and none of 48 at the end."""
    assert change(MeanReward(5 / 16, 16), MeanReward(0.0, 48), errors=3.0) is Learned.LOST


def test_rewards_at_start_and_end_come_from_the_events():
    steps = [Stepped(n, 1, Verdict.KEEP, {"reward": n / 10}, (), ()) for n in range(8)]
    found = outcome([Evaluated(0, 0.2, 250), *steps, Evaluated(8, 0.7, 250)])
    assert (found.start, found.end) == pytest.approx((0.05, 0.65))
    assert (found.before, found.after, found.learned) == (0.2, 0.7, Learned.LEARNED)


def in_turn(combination):
    """Rewards of two objectives, one 0.6 above the other, that both rise by 0.2; and a run's config."""
    config = preset("dual").with_(f"loss.combination={combination}", "run.stages=grpo")
    risen = [value + step / 60 + 0.6 * (step % 2) for step, value in enumerate(NOISY)]
    steps = [Stepped(n, 1, Verdict.KEEP, {"reward": value}, (), ()) for n, value in enumerate(risen)]
    return [Started(config.to_dict(), 9, "cpu"), *steps]


def test_objectives_in_turn_are_no_noise():
    events = in_turn("alternate")
    found = outcome(events)
    assert found.learned is Learned.LEARNED and found.start == pytest.approx(0.62 + 0.5 / 60)
    assert fold([*events, Ended("done")]).status == "done, learned"
    assert outcome(in_turn("separate")).learned is Learned.UNKNOWN, "without turns these are a step's own noise"


def test_the_noise_of_an_evaluation_counts_the_prompts_of_all_objectives():
    """The steps of `dual` have 128 prompts: their small noise is a large one for each prompt."""
    start, *steps = in_turn("separate")
    level = [replace(step, metrics={"reward": NOISY[step.step]}) for step in steps]
    events = [start, Evaluated(0, -0.1, 200), *level, Evaluated(12, -0.08, 200)]
    assert outcome(events).learned is Learned.NOTHING


def test_the_summary_says_first_what_a_user_asks_first():
    verdicts = [Verdict.KEEP, Verdict.SKIP_STEP, Verdict.ROLL_BACK, Verdict.KEEP]
    steps = [Stepped(n, 1, verdict, {"reward": 0.0}, (), ()) for n, verdict in enumerate(verdicts)]
    text = summary([Evaluated(0, 0.256, 250), *steps, Evaluated(4, 0.0, 250), Ended("done")])
    assert text.splitlines()[:4] == [
        "result: lost what it knew",
        "reward: 0.000 in the first step, 0.000 in the last",
        "held-out reward: 0.256 before, 0.000 after",
        "steps: 4, of which 2 refused (1 rolled back)",
    ]


def test_a_run_without_an_update_learned_nothing_whatever_its_rewards_do():
    """Each step was refused, and the noise of four prompts was called learned."""
    rewards = (0.3, 0.31, 0.3, 0.31, 0.79, 0.8, 0.8, 0.79)
    refused = [Stepped(n, 0, Verdict.SKIP_STEP, {"reward": reward}, (), ()) for n, reward in enumerate(rewards)]
    made = [replace(event, updates=1, verdict=Verdict.KEEP) for event in refused]
    assert [outcome([START, *each]).learned for each in (refused, made)] == [Learned.NOTHING, Learned.LEARNED]
    assert [fold([START, *each, Ended("done")]).status for each in (refused, made)] == [
        "done, learned nothing",
        "done, learned",
    ]
    assert outcome([START, *refused[:1]]).learned is Learned.NOTHING, "of this one step is enough"
    again = [START, *made, Resumed(0, kept=1), *refused, Ended("done")]
    assert fold(again).status == "done, learned nothing", "the updates before it were lost"
    assert fold(again).message == "no step changed the weights"
    assert (outcome(again).updates, outcome(again).finished) == (0, 8)


@pytest.mark.parametrize(("last", "learned"), [(0.8, Learned.LEARNED), (None, Learned.UNKNOWN)])
def test_the_reward_after_is_that_after_the_last_stage(last, learned):
    """Of the stages sft and grpo the second evaluation stands between them; a run that ended there has none."""
    sft = Stepped(0, 1, Verdict.KEEP, {"loss": 1.0}, (), ())
    steps = [Stepped(n, 1, Verdict.KEEP, {"reward": value}, (), ()) for n, value in enumerate(NOISY, start=1)]
    end = [] if last is None else [Evaluated(13, last, 250)]
    found = outcome([Evaluated(0, 0.3, 250), sft, Evaluated(1, 0.6, 250), *steps, *end])
    assert (found.before, found.learned) == (0.3, learned)
    assert found.after == pytest.approx(math.nan if last is None else last, nan_ok=True)


def test_the_worst_of_a_run_is_kept():
    """A NaN norm counts as infinite, beside the largest finite one; a rolled-back step leaves whole weights."""
    norms = (3.0, math.nan, 5.0)
    broken = [0.0, 4.0, 0.0]
    verdicts = (Verdict.CHANGED, Verdict.ROLL_BACK, Verdict.KEEP)
    steps = [
        Stepped(
            n, 1, verdict, {"grad_norm": norm, "weights/nonfinite": bad}, (LinkNote("gradients", 0, norm, 0, 9),), ()
        )
        for n, (norm, bad, verdict) in enumerate(zip(norms, broken, verdicts, strict=True))
    ]
    found = outcome([*steps, Ended("done")])
    assert (found.grad_norm, found.finite_grad_norm) == (math.inf, 5.0)
    assert (found.finished, found.refused, found.rolled_back, found.changed, found.poisoned) == (3, 1, 1, 1, False)
    assert outcome([*steps[:2], replace(steps[1], step=2, verdict=Verdict.KEEP), Ended("done")]).poisoned


LUCK = [
    0.41, 0.36, 0.47, 0.34, 0.48, 0.5, 0.44, 0.36, 0.28, 0.34,
    0.34, 0.41, 0.45, 0.47, 0.44, 0.3, 0.44, 0.3, 0.23, 0.31,
]  # fmt: skip
"""The first live run of lab 0 with seed 13: its held-out reward rises from 0.29 to 0.37."""


def test_luck_with_prompts_is_neither_a_loss_nor_nothing():
    start = Started(preset("plain").with_("data.num_prompts=8").to_dict(), 20, "cpu")
    events = [start, *(Stepped(n, 1, Verdict.KEEP, {"reward": r}, (), ()) for n, r in enumerate(LUCK)), Ended("done")]
    screen, found = fold(events), outcome(events)
    assert (screen.status, found.window) == ("done, too short to say", 5)
    assert screen.message == "reward 0.41 in the first step; mean of the first 5 steps 0.412, of the last 5 0.316"
    assert "first 5 steps 0.412, of the last 5 0.316" in summary(events)


def test_an_early_collapse_is_a_loss_and_its_words_begin_at_the_beginning():
    """The mean of ten steps alone was told as the reward at the start: 0.071, where the curve begins at 0.31."""
    steps = [Stepped(n, 1, Verdict.KEEP, {"reward": r}, (), ()) for n, r in enumerate([0.31, 0.4, *[0.0] * 38])]
    screen = fold([START, *steps, Ended("done")])
    assert screen.status == "done, reward lost"
    assert screen.message == "reward 0.31 in the first step; mean of the first 10 steps 0.071, of the last 10 0"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 7, 13])
def test_the_first_live_run_of_the_course_is_never_said_to_learn_nothing(seed):
    """`python -m benchmarks.outcomes` tries twenty seeds."""
    events = [*train(preset("plain").with_("data.num_prompts=8", "run.num_steps=20", f"run.seed={seed}"))]
    assert outcome(events).learned in (Learned.LEARNED, Learned.UNKNOWN)
