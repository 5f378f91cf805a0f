"""The screen is a pure function of events: of a live run, of one read back, of a crashed and of an empty one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.analysis.run_state import MULTINOMIAL, Fold, Mark, Series, Tally, decimate, describe, fold, tone
from grpo_lab.config.catalog import preset
from grpo_lab.core.hooks import Action, Verdict
from grpo_lab.events import Changed, Ended, Evaluated, LinkNote, Resumed, Started, Stepped, from_json, to_json
from grpo_lab.runs.crashes import classify_crash

SHORT = "reward 0.3 in the first step; mean of the first 2 steps 0.29, of the last 2 0.305"
INF, NAN = math.inf, math.nan
CONFIG = preset("smoke").with_("run.num_steps=10", "guards.skip_spikes.threshold=10").to_dict()
START = from_json(to_json(Started(CONFIG, 10, "cpu")))
assert isinstance(START, Started)
CONFIG = START.config
CRASH = Ended("crashed", "it", classify_crash("probability tensor contains either `inf`, `nan` or element < 0"))


def links(*broken):
    names = ("probabilities", "loss", "gradients", "weights")
    return tuple(LinkNote(name, 0, NAN if name in broken else 1.0, float(name in broken), 8) for name in names)


def guard(verdict, reason="grad norm 812 > 10", name="skip_spikes", kind="guard"):
    return Action(name, kind, "gradients", 0, verdict, reason)


def stepped(step, verdict=Verdict.KEEP, actions=(), broken=(), failed=False, samples=(), **metrics):
    values = {"grad_norm": 1.0, "kl": 0.1, "reward": 0.5, "ratio/max": 1.0, **metrics}
    return Stepped(step, 1, verdict, values, links(*broken), actions, samples, failed)


CRASHED = [
    START,
    stepped(0, samples=(("1+1=", "2", 1.0),)),
    stepped(1, broken=("gradients", "weights"), grad_norm=NAN),
    Stepped(2, 0, Verdict.KEEP, {}, (LinkNote("probabilities", 0, NAN, 8, 8),), (), (), True),
    CRASH,
]


def test_nothing_yet():
    screen = fold([])
    assert (screen.status, screen.step, screen.completed, screen.num_steps) == ("waiting", -1, 0, 0)
    assert (screen.series, screen.marks, screen.statuses, screen.first_break) == ({}, (), {}, None)
    assert fold([START]).status == "starting"


def test_a_crash():
    screen = fold(CRASHED)
    assert screen.status == "crashed in torch.multinomial"
    assert (screen.crash_step, screen.completed, screen.marked("crashed")) == (2, 2, [2])
    assert screen.first_break is not None
    assert (screen.first_break.link, screen.first_break.step) == ("gradients", 1)
    assert [screen.statuses[step].get(MULTINOMIAL) for step in range(3)] == ["healthy", "healthy", "broken"]
    assert "loss" not in screen.statuses[2]
    assert screen.samples == (("1+1=", "2", 1.0),)


def test_a_process_that_died_without_a_word_crashed_in_the_next_step():
    assert fold([START, stepped(0), CRASH]).crash_step == 1
    assert fold([START, CRASH]).crash_step == 0
    assert fold([START, CRASH]).statuses == {0: {MULTINOMIAL: "broken"}}
    assert fold([START, Ended("crashed", "x", classify_crash("?"))]).status == "crashed"


@pytest.mark.parametrize(
    ("event", "status", "message"),
    [
        (stepped(1), "healthy", ""),
        (stepped(1, grad_norm=50.0), "spiking", "gradient norm 50, usual up to 10"),
        (stepped(1, kl=NAN), "spiking", "KL to reference NaN, usual up to 1"),
        (stepped(1, kl=-0.5), "spiking", "KL to reference -0.5, usual at least -0.01"),
        (stepped(1, Verdict.SKIP_STEP, (guard(Verdict.SKIP_STEP),)), "skipping", "skip_spikes: grad norm 812 > 10"),
        (
            stepped(1, Verdict.ROLL_BACK, (guard(Verdict.ROLL_BACK),), ("weights",)),
            "rolling back",
            "skip_spikes: grad norm 812 > 10",
        ),
        (stepped(1, Verdict.STOP, (guard(Verdict.STOP),)), "stopping", "skip_spikes: grad norm 812 > 10"),
        (stepped(1, broken=("weights",)), "poisoned", "weights are NaN or inf"),
        (Ended("done"), "done, too short to say", "reward 0.5 in the first step, 0.5 in the last"),
        (Ended("stopped", "by the user"), "stopped", "by the user"),
    ],
)
def test_the_status_in_words(event, status, message):
    screen = fold([START, stepped(0), event])
    assert (screen.status, screen.message) == (status, message)


def test_a_run_that_ends_with_broken_weights_says_so():
    assert fold([START, stepped(0, broken=("weights",)), Ended("done")]).status == "done, poisoned"
    healed = stepped(1, Verdict.ROLL_BACK, (guard(Verdict.ROLL_BACK),))
    assert fold([START, stepped(0, broken=("weights",)), healed, Ended("done")]).status == "done, too short to say"


@pytest.mark.parametrize(
    ("rewards", "held_out", "status", "message"),
    [
        (
            [0.3, 0.28, 0.31, 0.3, 0.0, 0.01, 0.0, 0.0],
            (),
            "done, reward lost",
            "reward 0.3 in the first step; mean of the first 2 steps 0.29, of the last 2 0",
        ),
        ([0.3, 0.28, 0.31, 0.3, 0.3, 0.29, 0.31, 0.3], (), "done, too short to say", SHORT),
        ([0.5] * 8, (0.3, 0.31), "done, learned nothing", "held-out reward 0.3 before, 0.31 after"),
        (
            [0.1, 0.12, 0.1, 0.2, 0.5, 0.6, 0.7, 0.7],
            (),
            "done, learned",
            "reward 0.1 in the first step; mean of the first 2 steps 0.11, of the last 2 0.7",
        ),
        ([0.5] * 8, (0.3, 0.02), "done, reward lost", "held-out reward 0.3 before, 0.02 after"),
        ([0.3], (), "done, too short to say", "reward 0.3 in the first step, 0.3 in the last"),
        ([], (), "done", ""),
    ],
)
def test_the_end_says_what_the_run_learned(rewards, held_out, status, message):
    evaluated = [Evaluated(10 * place, reward, 500) for place, reward in enumerate(held_out)]
    steps = [stepped(step, reward=reward) for step, reward in enumerate(rewards)]
    screen = fold([START, *evaluated[:1], *steps, *evaluated[1:], Ended("done")])
    assert (screen.status, screen.message) == (status, message)
    assert describe(screen).startswith(f"smoke: {status} after ")
    assert tone(screen.status) == (
        "bad" if "lost" in status else "calm" if status.endswith(("nothing", "say")) else "good"
    )


def test_guards_that_act_in_healthy_runs_are_kept_apart():
    """A rescue is what a guard changed or refused that no healthy run has; a report alone is none."""
    clip = guard(Verdict.CHANGED, "norm 3 > 1", "clip_gradients")
    clamp = guard(Verdict.CHANGED, "log-ratio 100 > 20", "clamp_log_ratio")
    told = guard(Verdict.KEEP, "weights are NaN", "check_weights")
    own = guard(Verdict.CHANGED, "norm 3 > 2", "answers/mine.py:Mine")
    steps = [stepped(0, Verdict.CHANGED, (clip,)), stepped(1, Verdict.CHANGED, (clip, clamp, told))]
    screen = fold([START, *steps, stepped(2, Verdict.CHANGED, (own, clamp))])
    assert [(name, tally.since, tally.steps) for name, tally in screen.rescues()] == [
        ("clamp_log_ratio", 1, 2),
        ("answers/mine.py:Mine", 2, 1),
    ]
    assert (screen.marked("by design"), screen.marked("acted")) == ([0], [1, 2])
    assert "clamp_log_ratio acted from step 1 on" in describe(screen)
    assert "clip_gradients" not in describe(screen)


def test_marks_name_the_worst_of_a_step():
    acted = stepped(0, Verdict.CHANGED, (guard(Verdict.CHANGED, "x > 1", "clip_gradients"),))
    faulty = stepped(1, Verdict.CHANGED, (guard(Verdict.CHANGED, "harm", "bad", kind="fault"),))
    both = (guard(Verdict.CHANGED, "x > 1", "clip_gradients"), guard(Verdict.ROLL_BACK, "nan", "check_weights"))
    change = Changed(3, ("loss.beta=1.0", "guards.skip_spikes.threshold=5"))
    screen = fold([START, acted, faulty, stepped(2, Verdict.ROLL_BACK, both), change, stepped(3), Ended("done")])
    assert screen.marks == (
        Mark(0, "by design", "clip_gradients: x > 1"),
        Mark(2, "rolled back", "check_weights: nan"),
        Mark(3, "changed", "loss.beta=1.0, guards.skip_spikes.threshold=5"),
    )
    assert [(step, c["guards"]["skip_spikes"]["threshold"]) for step, c in screen.settings] == [(0, 10), (3, 5)]
    assert screen.faults == {"bad": Tally(1, 1, 1, 1, Verdict.CHANGED, "harm")}
    assert set(screen.guards) == {"clip_gradients", "check_weights"}


def test_a_change_this_version_does_not_know_keeps_the_settings():
    screen = fold([START, Changed(1, ("loss.future=1",))])
    assert screen.settings == ((0, CONFIG),)
    assert screen.marked("changed") == [1]


def test_a_run_that_was_resumed_often_is_folded_once():
    """To fold the past again at each resume, with every resume before it, takes 2 to the power of their number."""
    taken = []

    class Counting(Fold):
        def add(self, event):
            taken.append(event)
            super().add(event)

    events = [START, *(each for n in range(14) for each in (stepped(n), Resumed(n + 1, kept=2 * n + 2)))]
    folded = Counting()
    for event in events:
        folded.add(event)
    assert len(taken) == len(events)
    assert (folded.screen().completed, len(folded.screen().marked("changed"))) == (14, 14)
    folded.add(Resumed(3, kept=6))
    assert (folded.screen().completed, folded.screen().series["kl"].steps) == (3, (0, 1, 2)), "the rest was lost"


def test_the_description_holds_the_numbers():
    screen = fold(CRASHED)
    assert screen.first_break is not None
    assert describe(screen) == (
        "smoke: crashed in torch.multinomial after 2 of 10 steps; gradient norm 1 to NaN (first not finite at step 1), "
        "KL to reference 0.1 to 0.1, reward 0.5 to 0.5, largest ratio 1 to 1. First break: gradients at step 1, by "
        f"{screen.first_break.operator}, caught by no guard."
    )


def test_the_description_of_peaks_refusals_and_odd_runs():
    events = [
        START,
        stepped(0),
        stepped(1, Verdict.SKIP_STEP, (guard(Verdict.SKIP_STEP),), grad_norm=812.4),
        stepped(2),
    ]
    text = describe(fold(events))
    assert "gradient norm 1 to 1 (at most 812 at step 1)" in text
    assert "skip_spikes acted from step 1 on; steps skipped: 1" in text
    named = Started({"run": {"name": "a]\n(b"}}, 1, "cpu")
    assert describe(fold([named])).startswith("a) (b: starting")


@given(st.integers(1, 5000), st.data())
def test_a_spike_of_one_step_survives_decimation(count, data):
    at = data.draw(st.integers(0, count - 1))
    spike = data.draw(st.sampled_from([1e9, -1e9, INF, -INF, NAN]))
    values = [math.sin(step) for step in range(count)]
    values[at] = spike
    few = decimate(Series(tuple(range(count)), tuple(values)), 600)
    assert len(few.steps) <= 600 or count <= 600
    assert at in few.steps
    assert repr(few.values[few.steps.index(at)]) == repr(spike)
    assert (few.steps[0], few.steps[-1]) == (0, count - 1)
    assert list(few.steps) == sorted(set(few.steps))


@given(st.lists(st.floats(), max_size=600), st.integers(3, 40))
def test_decimation_keeps_the_extremes_and_the_limit(values, limit):
    few = decimate(Series(tuple(range(len(values))), tuple(values)), limit)
    finite = [value for value in values if math.isfinite(value)]
    kept = [value for value in few.values if math.isfinite(value)]
    assert len(few.steps) <= max(limit, 5)
    assert all(repr(values[step]) == repr(value) for step, value in zip(*few, strict=True))
    if finite:
        assert (min(kept), max(kept)) == (min(finite), max(finite))


@pytest.mark.parametrize("events", [CRASHED, [*CRASHED[:3], Changed(2, ("loss.beta=1",)), stepped(2), Ended("done")]])
def test_event_by_event_it_is_the_same_screen(events):
    folded = Fold()
    for count, event in enumerate(events, start=1):
        folded.add(event)
        assert repr(folded.screen()) == repr(fold(events[:count]))


def test_a_screen_stays_as_it_was_while_events_go_on():
    folded = Fold()
    folded.add(START)
    folded.add(stepped(0))
    screen = folded.screen()
    before = repr(screen)
    folded.add(stepped(1, Verdict.SKIP_STEP, (guard(Verdict.SKIP_STEP),), broken=("loss",)))
    assert repr(screen) == before
