"""The checks of lab 7 accept what is right, on any seed, and tell the usual mistakes apart."""

import math

import pytest
import torch

from grpo_lab.faults.formulas import LOG_RATIOS
from grpo_lab.grading import checking
from grpo_lab.grading.checks import cases_07_precision_and_verl as cases
from grpo_lab.grading.checks import exercise, lab_page
from grpo_lab.scenarios import scenario

LAB = lab_page("07_precision_and_verl")
SEEDS = range(5)


def findings(name, seed=0, **answer):
    return checking.check(exercise("07_precision_and_verl", name), answer, seed)


def right_on_every_seed(name, **answer):
    return all(checking.all_right(findings(name, seed, **answer)) for seed in SEEDS)


def wrong_on_every_seed(name, **answer):
    told = [[found for found in findings(name, seed, **answer) if not found.right] for seed in SEEDS]
    return all(told) and all(found.why for row in told for found in row)


def largest(dtype):
    return math.log(torch.finfo(getattr(torch, dtype)).max)


def scales(overflowed, scale, interval, down=0.5, up=2.0, resets=True, begins_again=True, late=0):
    good, found = 0, []
    for mark in overflowed:
        if mark == "x":
            scale, good = scale * down, 0 if resets else good
        else:
            good += 1
        if good == interval + late:
            scale, good = scale * up, 0 if begins_again else good - 1
        found.append(scale)
    return found


def log_ratio(logprobs, batch):
    found = logprobs - batch.old_logprobs
    return found.masked_fill(~(found.isfinite() & batch.completion_mask), 0.0)


def before_subtracting(logprobs, batch):
    keep = logprobs.isfinite() & batch.old_logprobs.isfinite() & batch.completion_mask
    return logprobs.masked_fill(~keep, 0.0) - batch.old_logprobs.masked_fill(~keep, 0.0)


def with_where(logprobs, batch):
    found = logprobs - batch.old_logprobs
    return torch.where(found.isfinite() & batch.completion_mask, found, torch.zeros_like(found))


EXERCISE = {"largest_log_ratio": "largest", "scales": "scaler", "log_ratio": "masked"}
RIGHT = [
    ("largest_log_ratio", largest),
    ("scales", scales),
    ("scales", lambda **inputs: tuple(scales(**inputs))),
    ("log_ratio", log_ratio),
    ("log_ratio", before_subtracting),
    ("log_ratio", with_where),
]
WRONG = {
    "largest_log_ratio": {
        "the largest number": lambda dtype: torch.finfo(getattr(torch, dtype)).max,
        "base 10": lambda dtype: largest(dtype) / math.log(10),
        "base 2": lambda dtype: largest(dtype) / math.log(2),
        "the smallest": lambda dtype: math.log(torch.finfo(getattr(torch, dtype)).tiny),
        "always fp32": lambda dtype: largest("float32"),
        "bf16 as fp16": lambda dtype: largest("float16" if "16" in dtype else dtype),
    },
    "scales": {
        "never grows": lambda **inputs: scales(**inputs, up=1.0),
        "never shrinks": lambda **inputs: scales(**inputs, down=1.0),
        "an overflow does not reset": lambda **inputs: scales(**inputs, resets=False),
        "grows at every update after": lambda **inputs: scales(**inputs, begins_again=False),
        "one update late": lambda **inputs: scales(**inputs, late=1),
        "quarters": lambda **inputs: scales(**inputs, down=0.25),
        "the wrong way": lambda **inputs: scales(**inputs, down=2.0, up=0.5),
        "one number": lambda **inputs: scales(**inputs)[-1],
        "the scale before": lambda **inputs: [inputs["scale"], *scales(**inputs)[:-1]],
    },
    "log_ratio": {
        "plain": LOG_RATIOS["old"],
        "times the mask": lambda logprobs, batch: LOG_RATIOS["old"](logprobs, batch) * batch.completion_mask,
        "nan_to_num": lambda logprobs, batch: torch.nan_to_num(LOG_RATIOS["old"](logprobs, batch)),
        "only what is trained": lambda logprobs, batch: LOG_RATIOS["old"](logprobs, batch).masked_fill(
            ~batch.completion_mask, 0.0
        ),
        "only what is finite": lambda logprobs, batch: (x := LOG_RATIOS["old"](logprobs, batch)).masked_fill(
            ~x.isfinite(), 0.0
        ),
        "only NaN": lambda logprobs, batch: (x := LOG_RATIOS["old"](logprobs, batch)).masked_fill(x.isnan(), 0.0),
        "the whole row": lambda logprobs, batch: (
            log_ratio(logprobs, batch) * LOG_RATIOS["old"](logprobs, batch).isfinite().all(dim=1, keepdim=True)
        ),
        "detached": lambda logprobs, batch: log_ratio(logprobs.detach(), batch),
        "clamped": lambda logprobs, batch: LOG_RATIOS["old"](logprobs, batch).clamp(-5, 5),
    },
}


@pytest.mark.parametrize("place", range(len(RIGHT)))
def test_what_is_right_is_accepted(place):
    name, function = RIGHT[place]
    assert right_on_every_seed(EXERCISE[name], **{name: function})


@pytest.mark.parametrize(("name", "mistake"), [(name, mistake) for name, row in WRONG.items() for mistake in row])
def test_a_usual_mistake_is_told_on_every_seed_and_why(name, mistake):
    assert wrong_on_every_seed(EXERCISE[name], **{name: WRONG[name][mistake]})


def test_the_limits_are_those_that_the_reports_meet():
    expected = {case.inputs["dtype"]: case.expected for case in cases.LARGEST.cases(0)}
    assert expected["float16"] == pytest.approx(11.09, abs=0.01)
    assert expected["float32"] == pytest.approx(88.72, abs=0.01)


# The remedy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guards", [("drop_nonfinite_samples",), ["drop_nonfinite_samples", "skip_nonfinite"]])
def test_leaving_out_the_broken_completion_is_accepted(guards):
    assert all(checking.all_right(findings("remedy", seed, guards=guards)) for seed in (0, 1))


@pytest.mark.parametrize(
    ("guards", "what"),
    [
        (("clamp_log_ratio",), "every weight is finite"),
        (("clamp_kl",), "every weight is finite"),
        (("clip_gradients",), "every weight is finite"),
        (("warm_up",), "every weight is finite"),
        (("skip_nonfinite",), "updates made in 12 steps"),
        (("skip_spikes", "clip_gradients"), "updates made in 12 steps"),
        (("clamp_log_ratio", "clamp_kl"), "the logged loss is a number"),
    ],
)
def test_what_does_not_help_or_stops_learning_is_told(guards, what):
    told = [found for found in findings("remedy", guards=guards) if not found.right]
    assert [found.what for found in told] == [what]
    assert told[0].why


@pytest.mark.parametrize("guards", [(), "drop_nonfinite_samples", ("no_such_guard",), ("mine.py:Mine",), (1,), None])
def test_what_names_no_guard_is_told(guards):
    told = findings("remedy", guards=guards)
    assert not checking.all_right(told)
    assert told[0].why


# The cures -----------------------------------------------------------------------------------------------------------


def test_the_remedies_are_cures_and_decoys_of_the_scenario():
    known = {row[0] for row in (*scenario("bad-batch").cures, *scenario("bad-batch").decoys) if len(row) == 1}
    assert set(cases.REMEDIES.values()) <= known


@pytest.mark.parametrize("given", [("h",), ["h"], "h"])
def test_the_one_cure_is_accepted(given):
    assert right_on_every_seed("cures", cures=given)


@pytest.mark.parametrize(
    "given", [(), ("a", "h"), ("a",), tuple("abcdefgh"), ("i",), ("guards.skip_spikes=on",), None, (1,)]
)
def test_any_other_set_is_told(given):
    assert wrong_on_every_seed("cures", cures=given)


@pytest.mark.parametrize(("answer", "accepted"), [("a", True), ("d", True), ("e", False), (3, False)])
def test_any_letter_is_a_prediction(answer, accepted):
    assert right_on_every_seed("forecast", answer=answer) is accepted


def test_the_page_adds_up():
    assert sum(exercise.minutes for exercise in LAB.exercises.values()) < LAB.minutes
    assert len(LAB.questions) == 3
    assert all(0 <= question.right < len(question.options) for question in LAB.questions)
