"""Diagnosis: every rule fires on its own curves only, the earliest cause is named, and only metrics are read."""

import dataclasses
import functools
import json
import math
import re
import warnings
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from grpo_lab import diagnose
from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import HEALTHY, NOT_ENOUGH, known_causes, known_symptoms
from grpo_lab.analysis.diagnosis.causes import Cause, Condition, Suspect, known_suspects
from grpo_lab.analysis.diagnosis.symptoms import Seen, Symptom, Unknown
from grpo_lab.cli import app
from grpo_lab.config import catalog
from grpo_lab.course.registry import course_labs
from grpo_lab.errors import ConfigError
from grpo_lab.runs.session import Session
from grpo_lab.training.registry import validated

LABS = course_labs()

NAN, INF = math.nan, math.inf
GAP, GAP_MAX = "sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"
CAUSES = {cause.name: cause for cause in known_causes()}
GOOD = {
    "reward": [0.30, 0.32, 0.35, 0.37, 0.36, 0.40, 0.42, 0.45, 0.44, 0.47],
    "frac_reward_zero_std": [0.25, 0.125, 0.25, 0.0, 0.125, 0.25, 0.125, 0.0, 0.25, 0.125],
    "kl": [0.0, 0.001, 0.004, 0.01, 0.012, 0.015, 0.02, 0.018, 0.022, 0.025],
    "entropy": [0.8, 0.8, 0.79, 0.78, 0.8, 0.77, 0.78, 0.76, 0.77, 0.75],
    "grad_norm": [1.2, 1.5, 1.1, 1.4, 1.3, 1.6, 1.2, 1.5, 1.4, 1.3],
    "loss": [0.0, 0.001, -0.002, 0.001, 0.0, 0.003, -0.001, 0.002, 0.001, 0.0],
    "ratio/max": [1.0] * 10,
    "clip_ratio/region_mean": [0.0] * 10,
    "completions/mean_length": [3.5, 3.6, 3.4, 3.55, 3.5, 3.7, 3.45, 3.6, 3.5, 3.52],
    "completions/clipped_ratio": [0.0] * 10,
    GAP: [0.001] * 10,
    GAP_MAX: [0.01] * 10,
    "weights/nonfinite": [0.0] * 10,
}
"""Ten healthy steps."""
CUT = {name: values[:4] for name, values in GOOD.items()}


def changed(base, **curves):
    """Curves with others in their place; `name=(step, value)` changes one step."""
    renamed = {name.replace("__", "/"): curve for name, curve in curves.items()}
    new = {name: list(values) for name, values in base.items()}
    for name, curve in renamed.items():
        if isinstance(curve, tuple):
            step, value = curve
            new[name][step] = value
        else:
            new[name] = curve
    return new


BROKEN = {"grad_norm": (3, NAN), "weights__nonfinite": (3, 8e5)}
SICK = {
    "nan-reward": changed(CUT, reward=(3, NAN), loss=(3, NAN), **BROKEN),
    "undefined-advantage": changed(CUT, frac_reward_zero_std=[1.0] * 4, loss=[NAN] * 4, **BROKEN),
    "kl-overflow": changed(CUT, kl=(3, INF), loss=(3, INF), **BROKEN),
    "overflow": changed(CUT, kl=[0, 200, 5000, NAN], loss=(3, NAN), ratio__max=(3, NAN), **BROKEN),
    "nan-logprob": changed(CUT, kl=(3, NAN), loss=(3, NAN), ratio__max=(3, NAN), **BROKEN),
    "zero-times-infinity": changed(CUT, ratio__max=(3, INF), **BROKEN),
    "nan-gradient": changed(CUT, **BROKEN),
    "optimizer-overflow": changed(CUT, weights__nonfinite=(3, 8e5)),
    "gradient-lost": changed(GOOD, grad_norm=[0.0] * 10, kl=[1e-14] * 10),
    "step-inside-accumulation": changed(GOOD, grad_norm=[0.0] * 10),
    "reference-is-policy": changed(GOOD, kl=[0.0] * 10),
    "lost-unscale": changed(GOOD, grad_norm=[65536 * norm for norm in GOOD["grad_norm"]]),
    "kl-hidden": changed(GOOD, kl__exact=[0, 0.01, 0.4, 0.9, 1.2, 1.5, 1.8, 2.0, 2.1, 2.0]),
    "padding-trained": changed(
        GOOD,
        completions__mean_length=[4.0] * 8 + [8.0, 4.0],
        **{GAP.replace("/", "__"): [1.5] * 10},
        **{GAP_MAX: [14.0] * 10},
    ),
    "sampler-mismatch": changed(GOOD, **{GAP: [0.5] * 10, GAP_MAX: [4.0] * 10}),
    "truncated-sampler": changed(GOOD, kl=[0.1, 0.3, 0.5, 0.8, 0.9, 0.7, 0.6, 0.6, 0.5, 0.5], **{GAP: [0.03] * 10}),
    "one-group": changed(
        GOOD, frac_reward_zero_std=[0, 1, 0, 0, 1, 1, 0, 1, 0, 1], grad_norm=[5, 0.02, 7, 3, 0.1, 0.2, 14, 0.1, 6, 0.1]
    ),
    "networks-differ": changed(
        GOOD,
        reward=[0.3, 0.31] * 5,
        kl=[0.15] * 10,
        ratio__max=[2.8] * 10,
        clip_ratio__region_mean=[0.06, 0.12, 0.1, 0.08, 0.1] * 2,
    ),
    "stale-rollouts": changed(
        GOOD,
        ratio__max=[1.0] + [2.0] * 9,
        clip_ratio__region_mean=[0, 0.11, 0.07, 0.1, 0.14, 0.16, 0.1, 0.12, 0.2, 0.1],
    ),
    "explosion": changed(
        GOOD,
        kl=[0, 1e4, 4, 9, 3, 5, 6, 8, 4, 5],
        grad_norm=[1, 6e4, 2, 10, 1, 0.4, 1, 0.4, 0.3, 0.2],
        ratio__max=[5, 2e5, 3e6, 2e6, 1e6, 1e6, 1e5, 3e6, 1e6, 1e6],
        reward=[0.3] + [0.0] * 9,
    ),
    "steps-too-large": changed(
        GOOD,
        kl=[0, 0.3, 0.5, 0.6, 0.8, 0.9, 0.7, 0.9, 1.2, 1.1],
        reward=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1, 0, 0.05, 0.1, 0],
    ),
    "bad-batch": changed(GOOD, kl=(5, 300.0), grad_norm=(5, 140.0)),
    "accumulation-overwrites": changed(GOOD, grad_norm=(6, 0.02)),
    "objective-left-out": changed(
        GOOD, kl__H=[1e-4] * 10, reward__H=[0.3] * 10, kl__F=[2 * kl for kl in GOOD["kl"]], reward__F=GOOD["reward"]
    ),
    "not-finite": changed({name: CUT[name] for name in ("grad_norm", "reward")}, grad_norm=(3, NAN)),
    "loss-not-finite": changed({name: CUT[name] for name in ("loss", "reward")}, loss=(3, NAN))
    | {"grad_norm": [1.0] * 4},
    "norm-spike": changed(GOOD, grad_norm=(5, 40.0)),
    "norm-explosion": changed(GOOD, grad_norm=[1, 1, 1, 1, 1, 300, 500, 900, 800, 2000]),
    "reward-collapse": changed(GOOD, reward=[0.3, 0.3, 0.26, 0.2, 0.16, 0.11, 0.04, 0.0, 0.02, 0.0]),
    "judge-escaped": changed(GOOD, judge__failed=[0.05, 0.06, 0.1, 0.1, 0.2, 0.4, 0.5, 0.7, 0.8, 0.9]),
    "noise-in-the-passes": changed(GOOD, kl=[0.15 + kl for kl in GOOD["kl"]]),
    "drift": changed(GOOD, kl=[0, 0.1, 0.3, 0.6, 0.9, 1.2, 1.4, 1.6, 1.8, 2.0]),
    "nothing-to-learn-from": changed(GOOD, frac_reward_zero_std=[0.5, 0.6, 0.8, 0.9, 0.95, 1, 0.95, 0.95, 1, 0.95]),
    "cut-off": changed(GOOD, completions__clipped_ratio=[0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.9, 0.9, 0.95, 1.0]),
    "certain": changed(GOOD, entropy=[0.8, 0.5, 0.2, 0.05, 0.01, 0.004, 0.003, 0.002, 0.002, 0.001]),
}
LONG = {name: [value for value in values for _ in range(2)] for name, values in GOOD.items()}
WAVES = [0.02, -0.01, 0.0, 0.015, -0.02, 0.01, -0.015, 0.005, -0.005, 0.0] * 2
SICK |= {
    "broken-from-the-start": {name: values for name, values in GOOD.items() if name != "ratio/max"}
    | {"grad_norm": [NAN] * 10},
    "weights-damaged": changed(GOOD, kl=[0, 1e6, 4e26, 2e5] + [1e4] * 6, reward=[0.3, 0.3] + [0.0] * 8),
    "reward-constant": changed(GOOD, reward=[0.1] * 10, frac_reward_zero_std=[1.0] * 10),
    "collapse-at-once": changed(GOOD, reward_std=[0.4] + [0.0] * 9, reward=[0.3, 0.02] + [0.0] * 8),
    "reward-broke": changed(GOOD, reward=[0.3, 0.36, 0.27, 0.33, 0.31, 0.0, 0.0, 0.0, 0.0, 0.0]),
    "reward-outlier": changed(GOOD, reward=(5, 3e5)),
    "reward-scale": changed(GOOD, reward_std=[400.0] * 10, grad_norm=[900.0 * norm for norm in GOOD["grad_norm"]]),
    "certain-from-the-start": changed(GOOD, entropy=[0.03, 0.02, 0.04, 0.03, 0.02, 0.03, 0.03, 0.02, 0.02, 0.03]),
    "penalty-rules": changed(GOOD, kl=[0.1] * 10, loss=[0.5] * 10),
    "never-ends": changed(GOOD, completions__clipped_ratio=[1.0] * 10, reward=[0.1, 0.12] * 5),
    "length-exploited": changed(
        GOOD,
        completions__mean_length=[3.5, 4.1, 5.2, 6.5, 7.3, 8.2, 9.1, 10.3, 11.0, 11.9],
        completions__clipped_ratio=[0, 0, 0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95],
    ),
    "brevity-exploited": changed(
        GOOD, completions__mean_length=[3.5, 3.4, 3.0, 2.5, 2.0, 1.6, 1.2, 1.1, 1.0, 1.0], entropy=[0.5] * 10
    ),
    "reward-conflict": changed(
        GOOD,
        rewards__accuracy__mean=[0.3, 0.32, 0.27, 0.3, 0.2, 0.12, 0.1, 0.04, 0.0, 0.02],
        rewards__format__mean=[0.0, 0.0, 0.1, 0.1, 0.2, 0.3, 0.3, 0.4, 0.44, 0.45],
    ),
    "learned-nothing": changed(
        LONG,
        reward=[0.3 + wave for wave in WAVES],
        entropy=[0.8 + wave for wave in WAVES],
        kl=[1e-5] * 20,
        learning_rate=[1e-7] * 20,
    ),
    "rewards-stopped": changed(
        GOOD,
        reward=[0.3, 0.1, -0.1, 0.02, 0.01, 0, 0, 0, 0, 0],
        frac_reward_zero_std=[0.2, 0.1, 0.2, 0.3, 0.1] + [1.0] * 5,
    ),
    "reward-unmoved": changed(
        LONG, reward=[0.3 + wave for wave in WAVES], entropy=[1.5 - entropy for entropy in LONG["entropy"]]
    ),
}
MOVED = [0.8, 0.78, 0.7, 0.64, 0.6, 0.57, 0.52, 0.5, 0.48, 0.45, 0.44, 0.42, 0.4, 0.39]
SICK |= {
    "weights-reset": changed(
        LONG,
        entropy=[*MOVED, 0.79, 0.78, 0.72, 0.66, 0.62, 0.58],
        reward=[0.3 + 0.9 * (0.8 - entropy) for entropy in MOVED] + [0.3, 0.31, 0.36, 0.42, 0.45, 0.5],
    ),
    "rewards-end": changed(GOOD, reward=GOOD["reward"][:5] + [pd.NA] * 5),
    "fell-at-once": changed(
        GOOD,
        reward=[0.3, 0.36, 0.27, 0.33, 0.31, 0.0, 0.0, 0.0, 0.0, 0.0],
        entropy=[0.5] * 10,
        completions__mean_length=[3.0] * 5 + [6.0] * 5,
    ),
    "noise-from-the-start": changed(GOOD, entropy=[5.5] * 10, reward=[0.0] * 10, frac_reward_zero_std=[1.0] * 10),
    "bonus-rules": changed(
        GOOD,
        entropy=[0.8 + 0.2 * step for step in range(10)],
        loss=[-0.8 - 0.2 * step for step in range(10)],
        reward=[0.3 - 0.03 * step for step in range(10)],
    ),
    "masked-away": changed(
        GOOD, grad_norm=[0.0] * 4 + [3.0] + [0.0] * 5, completions__clipped_ratio=[1.0] * 10, reward=[0.1, 0.12] * 5
    ),
    "schedule-over": changed(LONG, learning_rate=[1e-4] * 5 + [1e-9] * 15),
    "noise-amplified": changed(GOOD, reward_std=[3e-4] * 10, reward=[5e-4, 4e-4] * 5, frac_reward_zero_std=[0.0] * 10),
    "clipped-at-once": changed(GOOD, clip_ratio__region_mean=[0.2] * 3 + [0.0] * 7),
}
SET = {
    "sampler-changed": {"repetition_penalty": 3.0},
    "greedy": {"top_k": 1},
    "clip-off": {"epsilon": 20.0},
}
"""Causes that settings alone show."""
ALSO = {"reward-scale": {"lost-unscale"}, "noise-from-the-start": {"reward-constant"}}
"""What may be named after the cause. Everywhere else one failure is named and no other."""


def test_every_rule_has_curves():
    assert {*SICK, *SET, "crashed", "stale-ratio"} == set(CAUSES)  # tests/test_diagnosis_algorithms.py has the last


@pytest.mark.parametrize("cause", SET)
def test_each_setting_that_is_a_mistake_is_a_warning(cause):
    found = diagnose(logged("trl", SET[cause]))
    assert found.verdict == cause and found.findings[0].cause.level == "warning"
    assert diagnose(logged("trl", {"repetition_penalty": 1.05, "top_k": 50, "epsilon": 0.28})).verdict == HEALTHY


@pytest.mark.parametrize(
    ("suspect", "given"),
    [
        ("adam-epsilon-large", {"adam_epsilon": 1.0}),
        ("weight-decay", {"weight_decay": 200}),
        ("norm-limit", {"max_grad_norm": 1e-9}),
    ],
)
def test_a_setting_that_explains_it_is_the_first_suspect(suspect, given):
    """Without it the suspect is not named at all."""
    curves = {"reward": [0.3 + wave for wave in WAVES], "entropy": [0.8 + wave for wave in WAVES]}
    flat = changed(LONG, **curves, learning_rate=[1e-4] * 20, kl=[1e-5] * 20, frac_reward_zero_std=[0.0] * 20)
    log = dataclasses.replace(logs.from_frame(pd.DataFrame(flat)), source="trl")
    assert suspect not in named(log)[1]
    explained = dataclasses.replace(log, settings=given)
    assert named(explained)[1][0] == suspect
    (setting,) = given
    assert setting in [evidence.metric for evidence in diagnose(explained).findings[0].evidence]


@pytest.mark.parametrize("cause", SICK)
def test_each_rule_names_its_cause(cause):
    found = diagnose(pd.DataFrame(SICK[cause]))
    assert found.findings[0].cause.name == cause, [(f.cause.name, f.step, f.evidence) for f in found.findings]
    assert found.verdict == (HEALTHY if CAUSES[cause].level == "note" else cause)
    failures = {f.cause.name for f in found.findings if f.cause.level == "failure"} - {cause}
    assert failures == ALSO.get(cause, set())
    first = found.findings[0]
    assert first.evidence[0].step == first.step
    assert first.suspects and first.cause.tell_apart and first.remedies
    assert first.cause.lab in LABS


def test_healthy_curves_raise_nothing():
    found = diagnose(pd.DataFrame(GOOD))
    assert found.verdict == HEALTHY and found.findings == () and found.possible == ()
    assert {(missing.metric, missing.why) for missing, _ in found.blind} == {
        ("kl/exact", "not logged"), ("reward_std", "not logged"),
    }  # fmt: skip


def test_every_scenario_is_declared_in_one_class():
    declared = [name for cause in CAUSES.values() for name in cause.scenarios]
    assert sorted(declared) == catalog.scenario_names()
    assert all(bool(cause.together) == (len(cause.scenarios) > 1) for cause in CAUSES.values())


def test_settings_named_as_ours_exist():
    config = catalog.preset("original")
    named = {part.strip() for cause in CAUSES.values() for remedy in cause.remedies for part in remedy.here.split(", ")}
    settings = [part for part in named if "=" in part and " " not in part]
    assert len(settings) > 20
    for override in settings:
        validated(config.with_(override))  # which knows the names of guards and formulas too, and raises


@pytest.mark.trl
@pytest.mark.slow
def test_settings_named_as_trl_s_exist():
    trl = pytest.importorskip("trl")
    known = {each.name for each in dataclasses.fields(trl.GRPOConfig)}
    known |= {"reward_funcs", "train_dataset", "peft_config", "processing_class"}  # arguments of GRPOTrainer
    texts = [remedy.trl for cause in CAUSES.values() for remedy in cause.remedies]
    named = {word for text in texts for word in re.findall(r"\b([a-z]+(?:_[a-z]+)+)=|^([a-z]+(?:_[a-z]+)+)", text)}
    found = {word for pair in named for word in pair if word}
    assert len(found) > 8 and found <= known


def test_cause_before_consequence():
    """A spike of 1e5 is louder; the infinite KL came first."""
    curves = changed(GOOD, kl=(4, INF), loss=(4, INF), grad_norm=[1, 1, 1, 1, NAN, 1e5, 1e5, 1e5, 1e5, 1e5])
    found = diagnose(pd.DataFrame(curves))
    assert (found.verdict, found.findings[0].step) == ("kl-overflow", 4)


def test_failures_are_named_before_earlier_warnings():
    curves = changed(GOOD, completions__clipped_ratio=[0.6] * 10, grad_norm=(8, NAN))
    assert [f.cause.name for f in diagnose(pd.DataFrame(curves)).findings] == ["nan-gradient", "cut-off"]


def test_what_the_log_lacks_is_named():
    found = diagnose(pd.DataFrame({name: SICK["zero-times-infinity"][name] for name in ("loss", "grad_norm", "kl")}))
    assert found.verdict == "not-finite"
    lacks = {p.cause.name: {missing.metric for missing in p.lacks} for p in found.possible}
    assert lacks == {"zero-times-infinity": {"ratio/max"}, "nan-gradient": {"ratio/max"}}


def logged(source: Any = "", settings: Any = None, crash: Any = "", **curves: Any):
    """A log of healthy steps with other curves, a source, settings and a crash."""
    log = logs.from_frame(pd.DataFrame(changed(GOOD, **curves)))
    return dataclasses.replace(log, source=source, settings=settings or {}, crash=crash)


def named(log):
    """The first finding's cause and its suspects, by name or text."""
    first = diagnose(log).findings[0]
    return first.cause.name, [suspect.name or suspect.says for suspect in first.suspects]


RISING_KL = [0, 0.3, 0.5, 0.6, 0.8, 0.9, 0.7, 0.9, 1.2, 1.1]
FALLING = [0.3, 0.2, 0.2, 0.1, 0.1, 0.1, 0, 0.05, 0.1, 0]


def test_a_framework_rules_out_the_mistakes_of_an_own_loop():
    """TRL and verl cannot take the ratio against the reference, and add up micro-batches."""
    curves = {name.replace("/", "__"): SICK["explosion"][name] for name in ("kl", "grad_norm", "ratio/max", "reward")}
    assert named(logged(**curves))[1][0] == "the ratio is taken against the reference policy"
    for source in ("trl", "ms-swift", "verl", "openrlhf"):
        cause, suspects = named(logged(source, **curves))
        assert cause == "explosion" and suspects[0] == "learning-rate"
    overwritten = {"grad_norm": (6, 0.02)}
    assert diagnose(logged(**overwritten)).verdict == "accumulation-overwrites"
    in_turns = dataclasses.replace(logged(**overwritten), settings={"loss.combination": "alternate"})
    assert diagnose(in_turns).verdict == HEALTHY, "objectives of unequal weights have such norms"
    assert diagnose(logged("trl", **overwritten)).verdict == HEALTHY


def test_remedies_that_are_built_in_are_left_out():
    found = diagnose(logged("verl", reward=(3, NAN))).findings[0]
    assert [remedy.here for remedy in found.remedies] == ["guards.sanitize_rewards=on"]
    assert len(found.cause.remedies) == 2


@pytest.mark.parametrize(
    ("rate", "settings", "first"),
    [
        (1e-5, {}, "number-format"),
        (1e-2, {}, "learning-rate"),
        (1e-5, {"model_init_kwargs.dtype": "float16"}, "number-format"),
        (1e-5, {"model_init_kwargs.dtype": "float32"}, "learning-rate"),
    ],
)
def test_settings_and_rate_order_the_suspects(rate, settings, first):
    curves = {name: SICK["weights-damaged"][name] for name in ("kl", "reward")}
    cause, suspects = named(logged("trl", settings, learning_rate=[rate] * 10, **curves))
    assert cause == "weights-damaged" and suspects[0] == first


def test_remedies_follow_the_suspects():
    curves = {name: SICK["weights-damaged"][name] for name in ("kl", "reward")}
    for rate, setting in ((1e-2, "learning_rate"), (1e-5, "bf16=True, and model_init_kwargs={'dtype': 'float32'}")):
        found = diagnose(logged("trl", learning_rate=[rate] * 10, **curves)).findings[0]
        assert found.remedies[0].trl == setting


def test_a_reward_that_falls_without_the_policy_is_a_matter_of_the_data():
    falling = [0.5, 0.48, 0.42, 0.4, 0.33, 0.3, 0.2, 0.15, 0.12, 0.05]
    assert named(logged("trl", reward=falling))[1][0] == "data"
    moved = {"kl": [0.0, 0.05, 0.1, 0.2, 0.2, 0.25, 0.3, 0.3, 0.3, 0.3]}
    assert named(logged("trl", reward=falling, **moved)) == named(
        logged("trl", reward=falling, **moved, learning_rate=[1e-4] * 10)
    )
    assert named(logged("trl", reward=falling, **moved))[1][0] == "learning-rate"


def test_a_suspect_is_ruled_out_by_its_setting():
    noisy = {"kl": [0.15 + kl for kl in GOOD["kl"]]}
    assert named(logged("trl", **noisy))[1][0] == "dropout"
    assert "dropout" not in named(logged("trl", {"disable_dropout": True}, **noisy))[1]


def test_a_crash_without_a_broken_metric_is_named():
    crash = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
    found = diagnose(logged("trl", crash=crash))
    assert found.verdict == "crashed" and found.findings[0].step == 9
    assert diagnose(logged("trl", crash="KeyError: 'answer'")).verdict == NOT_ENOUGH


@pytest.mark.parametrize(
    ("curves", "lacks"),
    [
        ({"reward": [0.3]}, "1 logged steps"),
        ({"reward": GOOD["reward"]}, "two of grad_norm"),
        ({name: GOOD[name] for name in ("kl", "grad_norm", "loss")}, "reward: not logged"),
        ({"nothing": [1.0] * 10}, "0 logged steps"),
        ({}, "0 logged steps"),
    ],
)
def test_too_little_is_not_called_healthy(curves, lacks):
    found = diagnose(pd.DataFrame(curves))
    assert found.verdict == NOT_ENOUGH and any(lacks in said for said in found.lacking)


def test_rows_as_dictionaries():
    rows = [dict(zip(GOOD, row, strict=True)) for row in zip(*GOOD.values(), strict=True)]
    assert diagnose(rows).verdict == HEALTHY
    for broken in (NAN, INF, -INF):
        assert diagnose([*rows[:5], {**rows[5], "reward": broken}, *rows[6:]]).verdict == "nan-reward"


def test_every_run_of_a_log_is_diagnosed(tmp_path):
    first = [{"step": n, "grad_norm": NAN, "reward": 0.2 + n % 3 / 10, "kl": 0.0, "loss": 0.0} for n in range(1, 11)]
    second = [{"step": n, **{name: GOOD[name][n - 1] for name in GOOD}} for n in range(1, 11)]
    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps(row) for row in first + second))
    found = diagnose(tmp_path / "log.jsonl")
    assert found.verdict == HEALTHY and [each.verdict for each in found.earlier] == ["broken-from-the-start"]


SOLVED = [1.0, 0.98, 1.0, 1.0, 0.99, 1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "reward",
    [
        [-0.8, -0.7, -0.75, -0.6, -0.62, -0.5, -0.4, -0.42, -0.3, -0.25],
        [-0.02, 0.1, 0.0, 0.2, 0.15, 0.3, 0.28, 0.4, 0.42, 0.5],
        SOLVED,
        [0.5, 0.7, 0.8, 0.9, 0.96, 0.99, 1.0, 1.0, 1.0, 1.0],
        [0.0, 0.0, 0.016, 0.0, 0.031, 0.0, 0.05, 0.08, 0.1, 0.2],
    ],
    ids=["negative", "about 0", "solved", "to the top", "rare"],
)
def test_rewards_of_every_kind_may_be_healthy(reward):
    """Also with the KL noise of dropout, which TRL has by default."""
    assert diagnose(pd.DataFrame(changed(GOOD, reward=reward))).verdict == HEALTHY
    noisy = [0.3 + kl * (-1) ** n for n, kl in enumerate(GOOD["kl"])]
    assert diagnose(logged("trl", reward=reward, kl=noisy)).verdict == HEALTHY


def test_a_policy_that_changes_with_its_reward_is_no_broken_judge():
    reward = [0.3, 0.36, 0.27, 0.33, 0.31, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert diagnose(logged("trl", reward=reward)).verdict == "reward-broke"
    entropy = [0.8, 0.8, 0.79, 0.78, 0.8, 0.2, 0.1, 0.1, 0.1, 0.1]
    assert diagnose(logged("trl", reward=reward, entropy=entropy)).verdict == "reward-collapse"


SEEN = {
    "early": Seen(1, 0.0),
    "late": Seen(5, 0.0),
    "never": None,
    "dark": Unknown("kl", "not logged"),
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("early", True), ("never", False), ("dark", None),
        ("unless never", True), ("unless dark", True), ("unless early", False),
        ("not early", False), ("not never", True), ("not dark", None),
        ("early before late", True), ("late before early", False), ("early before never", True),
        ("early before dark", None),
        ("early with late", False), ("early with early", True), ("early with never", False),
        ("early by late", True), ("late by early", False), ("early by early", True), ("early by never", False),
        ("not late by early", True), ("not early by late", False), ("never before dark", False), ("dark by late", None),
    ],
)  # fmt: skip
def test_conditions(text, holds):
    anything = dict.fromkeys(SEEN, known_symptoms()["loss_nan"])
    assert Condition.read(text, anything).holds(SEEN) is holds


def look(curve, **settings):
    steps = settings.pop("at", range(len(curve)))
    log = logs.from_frame(pd.DataFrame({"step": list(steps), "kl": curve, "reward": 1.0}))
    return Symptom.read("s", {"metric": "kl", "says": "", **settings}).look(log)


def test_symptoms_see():
    assert look([0, 2, 3], over=1) == Seen(1, 2.0)
    assert look([0, NAN, 3], over=1) == Seen(2, 3.0)
    assert look([0, INF, 3], **{"is": "nonfinite"}) == Seen(1, INF)
    assert look([5, 0, 0], over=1, when="first") == Seen(0, 5.0)
    assert look([0, 5, 5], over=1, when="first") is None
    assert look([0, 5, 5], over=1, when="mostly") == Seen(1, 5.0)
    assert look([0, 0, 5], over=1, when="mostly") is None
    assert look([5, 5, 5], over=1, when="always") == Seen(0, 5.0)
    assert look([5, 5, 0], over=1, when="always") is None
    assert look([5, 5], over=1, when="always", steps=3) is None
    assert look([0, 0, 0, 2, 3, 2], over=1, when="late") == Seen(3, 2.0)
    assert look([0, 0, 0, 0, 99, 0], over=1, when="late") is None
    assert look([0, 5, 0, 0], over=1, when="later") is None
    assert look([0, 5, 5, 0], over=1, when="later") == Seen(1, 5.0)
    assert look([1, 1, 50, 1, 1, 1], over=10, of="median", when="alone") == Seen(2, 50.0)
    assert look([1, 1, 50, 50, 50, 50], over=10, of="median", when="alone") is None
    assert look([1, 1, 1, 1, 1, 50], over=10, of="median", when="alone") is None
    assert look([4, 4, 1, 1, 1, 1], under=0.5, of="start", when="late") == Seen(2, 1.0)
    assert look([4, 3, 2, 1], under=0.3, of="largest") == Seen(3, 1.0)
    assert look([-0.6, -0.6, -0.6, -0.5, -0.5, -0.5], under=0.75, of="start", when="late") is None, "it has risen"
    assert look([-0.6, -0.6, -0.8, -0.9, -0.9, -0.9], under=0.75, of="start", when="late") == Seen(2, -0.8)
    assert look([1, 3, 5], over=4, of="reward") == Seen(2, 5.0)
    assert look([1, 3, 5], over=1, where={"metric": "reward", "over": 2}) is None
    assert look([0.5, 3, 5], over=0.1, least=2) == Seen(1, 3.0)


def test_symptoms_that_the_log_cannot_show():
    assert look([5, 0], over=1, when="first", at=[100, 101]) == Unknown("kl", "the log begins at step 100")
    assert look([5, 0], over=1, of="kl/exact") == Unknown("kl/exact", "not logged")
    filtered = logs.Log({"loss": pd.Series([0.1, 0.0])}, hides_nan=True)
    assert isinstance(known_symptoms()["loss_nan"].look(filtered), Unknown)
    assert known_symptoms()["loss_nan"].look(dataclasses.replace(filtered, hides_nan=False)) is None
    finite, broken = ({**filtered.metrics, "grad_norm": pd.Series([1.0, norm])} for norm in (1.0, NAN))
    assert known_symptoms()["loss_nan"].look(dataclasses.replace(filtered, metrics=finite)) is None
    assert isinstance(known_symptoms()["loss_nan"].look(dataclasses.replace(filtered, metrics=broken)), Unknown)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"metric": "kll", "over": 1}, "did you mean 'kl'"),
        ({"metric": "kl", "ovr": 1}, "did you mean 'over'"),
        ({"metric": "kl", "over": 1, "when": "onec"}, "did you mean 'once'"),
        ({"metric": "kl", "is": "nam"}, "did you mean 'nan'"),
        ({"metric": "kl"}, "has no condition"),
    ],
)
def test_mistakes_in_symptoms(settings, says):
    with pytest.raises(ConfigError, match=says):
        Symptom.read("s", {"says": "", **settings})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"all": ["loss_nann"]}, "did you mean 'loss_nan'"),
        ({"all": ["loss_nan after kl_nan"]}, "unknown relation"),
        ({"all": ["loss_nan before"]}, "write a, not a"),
        ({"all": ["not loss_nan"]}, "first condition"),
        ({"all": ["loss_nan"], "suspect": []}, "did you mean 'suspects'"),
        ({"all": ["loss_nan"], "also": ["x"]}, "unknown symptom"),
    ],
)
def test_mistakes_in_causes(settings, says):
    with pytest.raises(ConfigError, match=says):
        Cause.read("c", {"title": "", "what": "", **settings}, known_symptoms(), known_suspects())


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"wehn": ["kl_huge"]}, "did you mean 'when'"), ({"when": ["kl_hug"]}, "did you mean 'kl_huge'")],
)
def test_mistakes_in_suspects(settings, says):
    with pytest.raises(ConfigError, match=says):
        Suspect.read("s", {"says": "", **settings}, known_symptoms())


def test_every_suspect_is_used_and_every_remedy_is_for_one():
    used = {suspect.name for cause in CAUSES.values() for suspect in cause.suspects if suspect.name}
    assert used == set(known_suspects())
    for cause in CAUSES.values():
        assert {remedy.against for remedy in cause.remedies} <= {"", *(suspect.name for suspect in cause.suspects)}, (
            cause.name
        )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that trains a scenario once for all tests, with a seed that no rule was tuned on."""

    @functools.cache
    def train(name):
        config = catalog.scenario(name).config().with_("run.seed=1234", "run.threads=1")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the model was not saved")
            return Session(config, tmp_path_factory.mktemp(name) / "run").run()

    return train


def test_metrics_are_all_it_sees(trained, tmp_path):
    """Config, verdicts, actions, links, samples and the end are replaced; the diagnosis stays the same."""
    sick_run = trained("cuda-001")
    folder = tmp_path / "lies"
    folder.mkdir()
    lines = []
    for line in (sick_run.directory / "events.jsonl").read_text().splitlines():
        tree = json.loads(line)
        if tree["event"] == "Stepped":
            action = {
                "name": "warm_up",
                "kind": "fault",
                "stage": "loss",
                "update": 0,
                "verdict": "KEEP",
                "reason": "lie",
            }
            tree |= {"verdict": "STOP", "updates": 99, "links": [], "actions": [action], "samples": [], "failed": False}
            lines.append(json.dumps(tree))
    lines.insert(0, json.dumps({"event": "Started", "config": {"loss": {"beta": NAN}}, "device": "abacus"}))
    (folder / "events.jsonl").write_text("\n".join([*lines, json.dumps({"event": "Ended", "status": "done"})]) + "\n")
    honest, lied = diagnose(sick_run.directory), diagnose(folder)
    assert honest.verdict == "overflow"
    assert str(lied.findings) == str(honest.findings)
    assert diagnose(sick_run).verdict == diagnose(sick_run.records).verdict == "overflow"


def two(share: float = 1.0, **curves: Any):
    """The healthy steps with objectives F and H; the KL of H is this share of the mean."""
    kl = {"kl__H": [share * kl for kl in GOOD["kl"]], "kl__F": [(2 - share) * kl for kl in GOOD["kl"]]}
    return changed(GOOD, **{**kl, "reward__H": GOOD["reward"], "reward__F": GOOD["reward"]} | curves)


def test_an_objective_with_a_small_kl_of_its_own_raises_nothing():
    """A tenth of the other's KL is a matter of its beta."""
    assert diagnose(pd.DataFrame(two(0.1))).verdict == HEALTHY


def test_a_kl_of_zero_is_found_for_its_objective():
    found = diagnose(pd.DataFrame(two(0.0, reward__H=[0.3] * 10)))
    assert found.verdict == "objective-left-out" and found.findings[0].objective == "H"
    shown = found.findings[0].evidence[0]
    assert shown.metric == "kl/H" and shown.value == 0 and shown.says.endswith("(medians: F 0.027, H 0)")
    of_own_reference = diagnose(pd.DataFrame(two(0.0))).findings
    assert [(each.cause.name, each.objective) for each in of_own_reference] == [
        ("reference-is-policy", "H"),
        ("objective-left-out", "H"),
    ]


def test_a_symptom_of_one_objective_is_found_though_the_mean_hides_it():
    """The mean KL stays in its healthy range; an explosion of both is one finding, of the run."""
    sick: dict[str, Any] = {"kl__H": [0.0, *[1.6] * 9], "reward__H": [0.3] * 10}
    found = diagnose(pd.DataFrame(two(**sick, kl=[0.0, *[0.3] * 9])))
    assert [(each.cause.name, each.objective) for each in found.findings] == [("steps-too-large", "H"), ("drift", "H")]
    both = diagnose(
        pd.DataFrame(two(**sick, kl__F=sick["kl__H"], reward__F=[0.3] * 10, kl=sick["kl__H"], reward=[0.3] * 10))
    )
    assert [(each.cause.name, each.objective) for each in both.findings] == [("steps-too-large", ""), ("drift", "")]


def test_a_log_may_hold_objectives_alone():
    """As dictionaries of TRL have them; a reward function of TRL is no objective."""
    sick = {
        f"train/{name}": value for name, value in two(0.0, reward__H=[0.3] * 10).items() if name not in ("kl", "reward")
    }
    log = logs.from_frame(
        pd.DataFrame({**sick, "train/rewards/length/mean": [0.1] * 10, "train/kl/length": [9.0] * 10})
    )
    assert log.objectives == ["F", "H"] or log.objectives == ["H", "F"]
    assert diagnose(log).verdict == "objective-left-out" and log.metrics["reward"].iloc[0] == 0.3


def test_objectives_that_take_turns_are_no_nan(tmp_path):
    """A step logs the objective that it trained; `Session.records` marks what the others did not log."""
    config = catalog.preset("dual").with_("loss.combination=alternate", "run.num_steps=4", "run.threads=1")
    config = config.with_("sft.num_steps=2", "run.num_eval=0", "data.num_generations=4").with_guards({})
    session = Session(config, tmp_path / "run").run()
    records = session.records
    assert records["kl/F"].isna().to_numpy().any() and set(records.attrs["not_logged"]) >= {"kl/F", "kl/H"}
    for source in (session, records, records.iloc[1:]):
        assert "nan-reward" not in [finding.cause.name for finding in diagnose(source).findings]
    records.loc[records["reward"].last_valid_index(), "reward"] = NAN
    assert diagnose(records).verdict == "nan-reward"
    turns = [{"kl/F": 0.1, "reward/F": 0.5}, {"kl/H": 0.3, "reward/H": NAN}] * 5
    log = logs.from_dicts(turns)
    assert log.metrics["kl"].tolist() == [0.1, 0.3] * 5 and log.metrics["reward"].isna().sum() == 5


def test_an_infinite_kl_of_one_objective_keeps_its_name():
    sick = changed(two(), kl__H=(3, INF), kl=(3, INF), grad_norm=[1.2] * 3 + [NAN] * 7)
    found = diagnose(pd.DataFrame(sick)).findings[0]
    assert (found.cause.name, found.objective, found.evidence[0].metric) == ("kl-overflow", "H", "kl/H")


def test_the_objective_that_is_left_out_is_named():
    (found,) = diagnose(pd.DataFrame(SICK["objective-left-out"])).findings
    assert [(each.metric, each.healthy) for each in found.evidence] == [("kl/H", (-0.01, 1)), ("kl", (-0.01, 1))]


def test_names_with_a_slash_are_objectives_only_with_a_kl_and_a_reward():
    curves = {"kl": [0.1], "reward": [1.0], "kl/H": [0.1], "reward/H": [1.0], "reward/format": [1.0], "loss/H": [0.5]}
    assert {*logs.from_frame(pd.DataFrame(curves)).metrics} == {"kl", "reward", "kl/H", "reward/H", "loss/H"}


BLIND = (
    pytest.param("dual-overwrite", marks=pytest.mark.slow),
    pytest.param("dual-kl-hinge", marks=pytest.mark.slow),
    pytest.param("dual-temperature-ignored", marks=pytest.mark.slow),
    "clip-spreads-nan",
    "cuda-001",
    "zero-times-infinity",
    "single-generation",
    "nan-reward",
    "kl-overflow",
    pytest.param("bad-batch", marks=pytest.mark.slow),
    pytest.param("accumulation-zeroed", marks=pytest.mark.slow),
    pytest.param("padding-unmasked", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", BLIND)
def test_recorded_runs_are_diagnosed_blind(name, trained):
    assert name in CAUSES[diagnose(trained(name).directory).verdict].scenarios


def test_a_healthy_run_raises_nothing(tmp_path):
    config = catalog.preset("stable").with_("run.num_steps=8", "run.seed=1234", "run.threads=1", "data.num_prompts=8")
    Session(config, tmp_path / "run").run()
    assert diagnose(tmp_path / "run").verdict == HEALTHY


def verl_log(path, rows):
    lines = [
        f"(TaskRunner pid=1) step:{step} - actor/entropy:0.3 - actor/pg_clipfrac:{clip} - actor/pg_loss:{loss} - "
        f"actor/kl_loss:{kl} - actor/grad_norm:{norm} - actor/lr:1e-06 - critic/rewards/mean:{reward} - "
        "response_length/mean:812.5 - response_length/clip_ratio:0.02\n(WorkerDict pid=2) INFO: saving"
        for step, (loss, kl, norm, reward, clip) in enumerate(rows, start=1)
    ]
    path.write_text("\n".join(lines))
    return path


VERL_GOOD = [(0.01, 0.001 + 0.001 * n, 0.1 + 0.01 * (n % 3), 0.3 + 0.01 * n, 0.001) for n in range(12)]


def test_verl_console_with_a_spike(tmp_path):
    rows = list(VERL_GOOD)
    rows[6] = (0.09, 1.4, 38.0, 0.36, 0.004)
    found = diagnose(verl_log(tmp_path / "spike.log", rows))
    assert (found.verdict, found.findings[0].step) == ("bad-batch", 7)


def test_verl_console_with_nan(tmp_path):
    rows = [*VERL_GOOD[:8], *[("nan", "nan", "nan", 0.37, 0.0)] * 3]
    found = diagnose(verl_log(tmp_path / "nan.log", rows))
    assert (found.verdict, found.findings[0].step) == ("nan-logprob", 9)


def test_verl_console_that_is_healthy(tmp_path):
    found = diagnose(verl_log(tmp_path / "good.log", VERL_GOOD))
    assert found.verdict == HEALTHY
    assert "weights/nonfinite" in {missing.metric for missing, _ in found.blind}


def trainer_state(path, **curves):
    rows = [dict(zip(curves, row, strict=True)) for row in zip(*curves.values(), strict=True)]
    history = [{"epoch": 0.1, "step": step, **row} for step, row in enumerate(rows, start=1)]
    path.write_text(json.dumps({"log_history": [*history, {"step": len(rows), "train_runtime": 9.0}]}))
    return path


def test_trl_log_whose_nan_was_filtered(tmp_path):
    """A loss of 0.0 beside a NaN norm: was it NaN? The log cannot say, and says so."""
    path = trainer_state(
        tmp_path / "trainer_state.json", loss=[0.1, 0.2, 0.0], grad_norm=[1.0, 1.2, NAN], kl=[0, 0.01, 0.01]
    )
    found = diagnose(path)
    assert found.verdict == "not-finite"
    reasons = {missing.why for p in found.possible if p.cause.name == "nan-gradient" for missing in p.lacks}
    assert any("logging_nan_inf_filter" in reason for reason in reasons)


def test_trl_log_with_a_learning_rate_that_is_too_high(tmp_path):
    curves = {name: SICK["steps-too-large"][name] for name in ("loss", "grad_norm", "kl", "reward", "entropy")}
    found = diagnose(trainer_state(tmp_path / "trainer_state.json", **curves))
    assert found.verdict == "steps-too-large"
    assert any(remedy.trl == "learning_rate" for remedy in found.findings[0].cause.remedies)


def invoke(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


def test_command(tmp_path):
    rows = list(VERL_GOOD)
    rows[6] = (0.09, 1.4, 38.0, 0.36, 0.004)
    path = verl_log(tmp_path / "spike.log", rows)
    shown = invoke(path)
    assert shown.exit_code == 0
    for said in (
        "verl's console, 12 steps",
        "One batch spiked",
        "bad-batch",
        "38",
        "actor_rollout_ref.actor.grad_clip",
    ):
        assert said in shown.stdout
    tree = json.loads(invoke(path, "--json").stdout)
    assert tree["verdict"] == "bad-batch" and tree["findings"][0]["evidence"][0]["value"] == 38.0
    assert tree["findings"][0]["remedies"][0]["here"] == "guards.skip_spikes=on"


def test_command_on_a_healthy_log(tmp_path):
    shown = invoke(verl_log(tmp_path / "good.log", VERL_GOOD))
    assert (
        shown.exit_code == 0 and "Nothing wrong in the logged metrics" in shown.stdout and "cannot show" in shown.stdout
    )


def test_command_on_a_log_that_begins_late(tmp_path):
    path = tmp_path / "late.log"
    path.write_text("step:34 - actor/grad_norm:0.13 - actor/kl_loss:0.5")
    shown = " ".join(invoke(path).stdout.split())
    assert (
        "1 step (34 to 34)" in shown
        and "most curves show no trend yet" in shown
        and "kl (the log begins at step 34)" in shown
    )


def test_command_writes_json_without_nan(tmp_path):
    path = trainer_state(tmp_path / "t.json", loss=[0.1, 0.0], grad_norm=[1.0, NAN], kl=[0.0, INF])
    shown = invoke(path, "--json")
    assert json.loads(shown.stdout, parse_constant=lambda constant: pytest.fail(constant))["findings"]
