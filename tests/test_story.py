"""The first sentence of a diagnosis: what happened, from the curves alone."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from jinja2 import Environment, meta

from grpo_lab import diagnose, messages
from grpo_lab.analysis.diagnosis.curves import course, level_change
from grpo_lab.analysis.diagnosis.report import measures, story
from grpo_lab.analysis.diagnosis.rules import tables
from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.logs.table import fact
from grpo_lab.metrics import METRICS

STEPS = np.arange(120)
NOISE = np.random.default_rng(0).normal(0, 0.02, 120)
LEVEL = np.full(120, 0.4) + NOISE
RISE = np.linspace(0.1, 0.8, 120) + NOISE
FALL = np.where(STEPS < 89, RISE, 0.02 + NOISE / 10)
DIP = np.where((STEPS > 50) & (STEPS < 70), 0.05, 0.6) + NOISE


def told(language="en", first=1, crash="", **curves):
    index = range(first, first + 120)
    metrics = {name.replace("__", "/"): pd.Series(values, index=index) for name, values in curves.items()}
    return story(Log(metrics, crash=crash, begins_late=first > 1), language)


@pytest.mark.parametrize(
    ("curves", "said", "not_said"),
    [
        ({"reward": LEVEL}, ["no clear change beyond its noise"], ["→ 0.8", "recover"]),
        ({"reward": FALL}, ["0.1", "0.5", "from step 9", "did not recover"], ["dip"]),
        ({"reward": DIP}, ["dip to 0.0", "about step", "recovered"], ["not recover"]),
        ({"reward": 0.95 + NOISE / 10}, ["high from the start"], ["noise"]),
        ({"reward": [0.5] * 120}, ["0.5 in every step"], ["noise"]),
        ({"reward": [math.nan] * 120}, ["NaN in every step"], []),
        ({"kl": LEVEL}, ["No column of this log is known as the reward"], []),
        ({}, ["No metric"], []),
        ({"reward": FALL, "entropy": np.where(FALL < 0.1, 5.0, 0.1) + NOISE}, ["entropy rose 0.1", "→ 5"], []),
        ({"reward": FALL, "completions__clipped_ratio": FALL < 0.1}, ["ran into the limit (100% cut off)"], []),
        ({"reward": RISE, "kl": [0.1] * 60 + [math.nan] * 60}, ["kl not finite from step 61 on"], ["reward not"]),
        ({"reward": RISE, "eval__reward": RISE[::-1]}, ["held-out reward fell"], []),
        ({"reward": RISE, "eval__reward": [0.2] * 40 + [0.9] * 40 + [0.6] * 40}, ["reward fell 0.9 → 0.6"], []),
        ({"reward": RISE, "grad_norm": np.geomspace(0.1, 40, 120)}, ["the gradient norm rose 0.1"], ["reached"]),
        ({"reward": RISE, "frac_reward_zero_std": [1.0] * 90 + [0.0] * 30}, ["not differ went 100% → 0%"], ["in 75%"]),
        ({"eval__reward": RISE, "kl": LEVEL}, ["Held-out reward rose 0.1"], ["not in this log", "held-out"]),
        ({"eval__reward": FALL}, ["Held-out reward 0.1", "did not recover"], []),
        ({"reward": LEVEL, "loss": [0.4] * 100 + [24982.0] * 20}, ["the loss reached 24,982 in step 101"], []),
        ({"reward": [0.066, 0.244, 0.216, 0.456, 0.472, 0.528] + [None] * 114}, ["rose 0.066 → 0.53"], []),
        ({"reward": [0.6, 0.7, 0.5, 0.2, 0.6] * 2 + [None] * 110}, ["was 0.2 in step 4"], ["reached"]),
        (
            {"reward": np.where(np.isin(STEPS, (9, 30, 51, 72, 93)), -5, 10 * NOISE)},
            ["about 0.02", "-5 in step 10"],
            [],
        ),
        ({"reward": [0.777, 0.93, 0.895, 0.969, 0.957, 0.934, 0.906, 0.941, 0.984] + [None] * 111}, ["rose 0.78"], []),
        ({"reward": [0.319, 0.119, 0.403, 0.159, 0.35, 0.475] + [None] * 114}, ["0.32 → 0.47 in 6 rows"], ["rose"]),
        ({"reward": [0.61, 0.72, 0.83, 0.9, 0.95, 0.99, 0.997] + [None] * 113}, ["0.61 → 0.997"], ["→ 1"]),
        ({"reward": [0, 0.5, 1, 0.5, 0, 0.1, 0, 0.1, 0, 0] + [None] * 110}, ["0 → 1 by step 3"], ["0.67"]),
        ({"eval__reward": [math.nan] * 120}, ["Held-out reward is NaN in every step"], [":"]),
        ({"kl": 0.002 + STEPS**4 / 1e8}, ["KL rose 0.002 → 2"], []),
        ({"completions__mean_length": [323, 86, 86, 65, 202, 56] + [None] * 114}, ["shrank 323 → 56"], []),
        ({"completions__mean_length": [50, 86, 99] + [None] * 117}, ["grew 50 → 99"], []),
        ({"reward": RISE, "eval__reward": [0.2] * 40 + [0.6] * 40 + [0.5] * 40}, ["reward rose 0.2 → 0.5"], ["fell"]),
        ({"reward": LEVEL, "grad_norm": np.where(STEPS == 30, 1e6, 1.0)}, ["reached 1e+06 in step 31"], []),
        ({"reward": LEVEL, "kl": [2.0] * 60 + [0.5] * 60}, ["KL fell 2 → 0.5"], ["reached"]),
        ({"reward": LEVEL, "kl": [900.0] * 5 + [0.5] * 115}, ["reached 900"], ["fell"]),
        ({"reward": LEVEL, "grad_norm": [0.01] * 90 + [1.9] * 30}, [], ["reached"]),
        ({"reward": LEVEL, "reward_std": [0, 0, 0, 0.3] * 30}, ["75% of the rows no"], []),
        ({"completions__mean_length": [256, 256, 90, 91] * 30}, ["256", "in 50%"], []),
        ({"reward": FALL, "entropy": [0.3] * 20 + [0.02] * 100}, ["entropy fell 0.3 → 0.02"], []),
        ({"reward": FALL, "kl": [9.0] * 60 + [0.5] * 29 + [2.0] * 31}, ["KL rose 0.5 → 2"], ["KL fell"]),
        ({"reward": LEVEL, "grad_norm": [2e9] * 120}, ["is about 2e+09 throughout"], ["reached"]),
        ({"reward": LEVEL, "frac_reward_zero_std": [1.0] * 120}, ["in no group"], []),
        ({"reward": [0.5] * 120, "frac_reward_zero_std": [1.0] * 120}, [], ["group"]),
        ({"reward": np.where(np.isin(STEPS, (12, 24, 27)), 0.2, -0.1)}, ["no clear change"], ["recover", "rose"]),
        ({"reward": [0.4, 0.2, 0.1, 0, 0.3, 0.2, 0, 0, 0.1, 0, -0.2, 0] + [None] * 108}, ["fell 0.1"], ["recover"]),
        ({"reward": LEVEL, "kl": [0.1] * 9 + [math.nan] + [0.1] * 110}, ["kl not finite in 1 of 120 rows, first"], []),
        ({"reward": LEVEL, "grad_norm": [0.0] * 120}, ["gradient norm is 0"], []),
        ({"reward": LEVEL, "completions__clipped_ratio": np.linspace(0.6, 1, 120)}, ["at first, 100%"], ["the start"]),
        ({"reward": np.where(STEPS == 30, 0.9, LEVEL)}, ["no clear change", "reached 0.9 in step 31"], ["was"]),
        ({"reward": np.where(STEPS == 30, -0.9, LEVEL)}, ["was -0.9 in step 31"], ["reached", "dip"]),
        ({"reward": 0.8 - np.abs(STEPS - 80) / 160 + NOISE / 2}, ["→ 0.79 by step 78", "back to 0.58"], []),
        ({"reward": [0.1, 0.3, 0.1, 0.3, 0.35, 0.5, 0.35, 0.6] + [None] * 112}, ["Reward rose 0.1"], ["noise"]),
        ({"reward": [0.1, 0.3, 0.1, 0.4, 0.3, 0.2] + [None] * 114}, ["Reward 0.1 → 0.2 in 6 rows"], ["noise"]),
        ({"reward": LEVEL, "kl": [0.07] * 100 + [0.3] * 19 + [1.2]}, ["KL rose 0.07 → 0.3"], ["→ 1.2"]),
        ({"reward": 0.3 + NOISE / 40}, ["between 0.299 and 0.301 in every step, next to constant"], ["noise"]),
        ({"reward": LEVEL, "grad_norm": [1.0] * 60 + [0.0] * 60}, ["the gradient norm fell to 0"], []),
    ],
)
def test_the_course_of_the_reward_and_what_moved_with_it(curves, said, not_said):
    sentence = told(**curves)
    assert all(each in sentence for each in said) and not any(each in sentence for each in not_said), sentence
    assert sentence.endswith(".") and "{" not in sentence
    assert told("zh", **curves).endswith("。")


def test_a_crash_and_a_missing_beginning_are_told():
    said = told(reward=RISE, crash="OSError: [Errno 28] No space left on device", first=300)
    assert "OSError: [Errno 28]" in said and "begins at step 300" in said
    cut = told(reward=RISE, completions__clipped_ratio=np.full(120, 0.9), first=300)
    assert "90% of completions are cut off (this log" in cut


def test_rows_that_are_told_as_steps_are_said_to_be_rows():
    counted = Log({"reward": pd.Series(FALL)}, notes=[fact("counted")])
    assert "counted from 1" in story(counted, "en") and "从 1 数起" in story(counted, "zh")
    flat = replace(counted, metrics={"reward": pd.Series(LEVEL)}, functions={"form": pd.Series(RISE)})
    assert "counted" not in story(flat, "en") and "reward function form 0.1" in story(flat, "en")
    assert "form 0.8" in story(replace(flat, functions={"form": pd.Series(RISE[::-1])}), "en")


SHAPES = {
    "rises": (lambda t: 0.1 + 0.7 * t, "rose", 0.1, 0.8),
    "rises in the first step": (lambda t: np.where(t > 0, 0.8, 0.1), "rose", 0.1, 0.8),
    "rises and saturates": (lambda t: 0.8 - 0.7 * np.exp(-8 * t), "rose", 0.1, 0.8),
    "rises at the end": (lambda t: np.where(t < 0.9, 0.1, 0.8), "rose", 0.1, 0.8),
    "falls in the last step": (lambda t: np.where(t < 1, 0.7, 0.1), "fell", 0.7, 0.1),
    "falls": (lambda t: np.where(t < 0.5, 0.7, 0.05), "fell", 0.7, 0.05),
    "falls slowly": (lambda t: 0.8 - 0.4 * t, "declined", 0.8, 0.4),
    "rises and falls": (lambda t: 0.8 - 1.4 * np.abs(t - 0.5), "fell", 0.1, 0.1),
    "has one value far out": (lambda t: 0.2 + 0.7 * (np.arange(len(t)) == len(t) // 2), "flat", 0.2, 0.2),
    "stays": (lambda t: 0.5 + 0 * t, "flat", 0.5, 0.5),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [16, 30, 100])
def test_a_course_is_what_the_curve_is_made_of(shape, rows):
    made, kind, first, last = SHAPES[shape]
    found = [
        course(made(np.linspace(0, 1, rows)) + 0.03 * np.random.default_rng(seed).normal(size=rows))
        for seed in range(20)
    ]
    true = [c for c in found if c and c.kind == kind and abs(c.first - first) < 0.1 and abs(c.last - last) < 0.1]
    assert len(true) >= 15, found


@pytest.mark.parametrize("rows", [20, 100, 1000])
def test_noise_alone_seldom_moves(rows):
    curves = np.random.default_rng(3).normal(0.5, 0.2, (300, rows))
    assert sum(measures({"reward": pd.Series(curve)}, "reward")["kind"] != "flat" for curve in curves) <= 15
    assert level_change(np.arange(rows) < 5)[1] == max(5, rows // 10), "a few values at an end are no level"


def test_a_reward_function_has_not_moved_by_its_last_row():
    flat, rare = 0.3 + 0.1 * np.cos(np.arange(21.0)), [-1.25, 0.5, 0.5, -1.25, -0.38, 0.5, 0.5, -2.12, *[0.5] * 11]
    for ends, moved in (([*rare, -0.38, -3.0], False), (np.linspace(0.5, -3, 21), True)):
        log = Log({"reward": pd.Series(flat)}, functions={"answer": pd.Series(ends)})
        assert ("answer" in story(log, "en")) == moved


def test_the_peak_of_a_few_rows_is_told():
    few = [
        story(Log({"reward": pd.Series(values, index=(10, 20, 30))}), "en")
        for values in ([0.1, 0.7, 0.3], [0.1, 0.3, 0.3])
    ]
    assert "reached 0.7 in step 20" in few[0] and "reached" not in few[1]


def test_the_sentence_stands_before_the_verdict_in_text_page_and_json():
    found = diagnose(pd.DataFrame({"reward": FALL, "kl": LEVEL, "entropy": RISE}))
    sentence = found.tree()["happened"]
    assert sentence == story(found.log, "en")
    lines = " ".join(found.text().split())
    assert lines.index(sentence) < lines.index("[from step")
    assert sentence.replace("→", "") in found._repr_html_().replace("→", "")


def test_each_rule_asks_for_what_a_curve_has_and_each_message_is_said():
    main, companions, functions, ends = (tables("story")[part] for part in ("main", "companions", "functions", "ends"))
    known = {"log", "main", "name", "whole", "tells_steps", *measures({"reward": pd.Series(RISE)}, "reward")}
    for key, rule in {**main, **{key: each["when"] for key, each in companions.items()}, **functions, **ends}.items():
        assert meta.find_undeclared_variables(Environment().parse(f"{{{{ {rule} }}}}")) <= known, key
    assert {each["of"] for each in companions.values()} - {"main"} <= METRICS.keys()
    in_code = {"with", "of.reward", "of.eval/reward", "nan_always", "nan_from", "nan_some"}
    place = "diagnosis.story."
    there = {key.removeprefix(place) for key in messages.catalogue(messages.ENGLISH) if key.startswith(place)}
    assert there == {*main, *companions, *functions, *ends, *in_code}


def test_each_rule_of_what_a_log_lacks_asks_for_what_it_knows():
    lacking, known = tables("story")["lacking"], measures({"reward": pd.Series(RISE)}, "reward")
    for key, rule in lacking.items():
        names = meta.find_undeclared_variables(Environment().parse(f"{{{{ {rule['when']} }}}}"))
        assert names <= {"log", "seen", "steps", "crash", "broken", *known, *rule}, key
