"""Diagnosis: every rule fires on its own curves only, the earliest cause is named, and only metrics are read.

A CSV of tests/logs/causes is a log that shows the cause in its name. To add a cause, add its log.
"""

import dataclasses
import functools
import itertools
import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from grpo_lab import diagnose
from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import HEALTHY, NOT_ENOUGH, curves, rules
from grpo_lab.analysis.diagnosis.curves import PLACES, STATES, UNITS, WHOLES
from grpo_lab.analysis.diagnosis.rules import (
    LEVELS,
    SUSPECTS,
    SYMPTOMS,
    Condition,
    Evidence,
    Symptom,
    Unknown,
    algorithm_in,
    formulas_in,
)
from grpo_lab.analysis.logs.table import fact
from grpo_lab.config import catalog
from grpo_lab.course.registry import course_labs
from grpo_lab.errors import ConfigError
from grpo_lab.metrics import METRICS
from grpo_lab.runs.session import Session
from grpo_lab.training.registry import validated

NAN, INF = math.nan, math.inf
CAUSES = {cause.name: cause for cause in rules.CAUSES}
LOGS = {path.stem: path for path in (Path(__file__).parent / "logs" / "causes").glob("*.csv")}
SICK = sorted(LOGS.keys() - {HEALTHY})
WOBBLE, SLOPE = 0.02 * (np.arange(60) % 3), np.linspace(0.8, 0.2, 15).tolist()
NOISY = [0.3 + wave for wave in [0.02, -0.01, 0.0, 0.015, -0.02, 0.01, -0.015, 0.005, -0.005, 0.0] * 2]
"""Twenty values without a trend."""


def curves_of(name):
    """The curves of one of the logs, without the metrics that it lacks in some step."""
    return {name: curve.tolist() for name, curve in logs.read(LOGS[name]).metrics.items()}


GOOD = curves_of(HEALTHY)
"""Ten healthy steps."""


def changed(base, **curves):
    """Curves with others in their place; `name=(step, value)` changes one step."""
    new = {name: list(values) for name, values in base.items()}
    for name, curve in curves.items():
        name = name.replace("__", "/")
        if isinstance(curve, tuple):
            step, value = curve
            new[name][step] = value
        else:
            new[name] = curve
    return new


def logged(source: Any = "", settings: Any = None, crash: Any = "", base: Any = GOOD, **curves: Any):
    """A log of healthy steps with other curves, a source, settings and a crash."""
    log = logs.from_frame(pd.DataFrame(changed(base, **curves)))
    return dataclasses.replace(log, source=source, settings=settings or {}, crash=crash)


def sick(name, *metrics):
    """Curves of a cause's log, to change healthy steps with."""
    return {metric.replace("/", "__"): curves_of(name)[metric] for metric in metrics}


def named(log):
    """The first finding's cause and its suspects, by name or text."""
    first = diagnose(log).findings[0]
    return first.cause.name, [suspect.name or suspect.says for suspect in first.suspects]


SET = {
    "sampler-changed": {"repetition_penalty": 3.0},
    "greedy": {"top_k": 1},
    "clip-off": {"epsilon": 20.0},
    "group-of-one": {"num_generations": 1},
}
"""Causes that settings alone show."""
ALSO = {
    "reward-scale": {"lost-unscale"},
    "noise-from-the-start": {"reward-constant"},
    "forward-nan": {"nan-logprob"},
}
"""What may be named after the cause. Everywhere else one failure is named and no other."""


def test_every_rule_has_a_log():
    assert {*SICK, *SET, "crashed", "stale-ratio", "ratio-summed"} == set(CAUSES)


@pytest.mark.parametrize("cause", SICK)
def test_each_rule_names_its_cause(cause):
    found = diagnose(LOGS[cause])
    assert found.findings[0].cause.name == cause, [(f.cause.name, f.step, f.evidence) for f in found.findings]
    assert found.verdict == (HEALTHY if CAUSES[cause].level == "note" else cause)
    failures = {f.cause.name for f in found.findings if f.cause.level == "failure"} - {cause}
    assert failures == ALSO.get(cause, set())
    first = found.findings[0]
    assert first.evidence[0].step == first.step
    assert first.suspects and first.cause.tell_apart and (first.remedies or first.cause.level == "note")
    assert first.cause.lab in course_labs()


def test_healthy_curves_raise_nothing():
    found = diagnose(LOGS[HEALTHY])
    assert found.verdict == HEALTHY and found.findings == () and found.possible == ()
    assert {(missing.metric, missing.why.key) for missing, _ in found.blind} == {
        ("kl/exact", "not_logged"),
        ("reward_std", "not_logged"),
        ("eval/reward", "not_logged"),
    }


@pytest.mark.parametrize("cause", SET)
def test_each_setting_that_is_a_mistake_is_named(cause):
    found = diagnose(logged("trl", SET[cause]))
    assert found.verdict == cause and found.findings[0].step == 0
    assert diagnose(logged("trl", {"repetition_penalty": 1.05, "top_k": 50, "epsilon": 0.28})).verdict == HEALTHY


# The tables in data/diagnosis


def test_every_scenario_is_declared_in_one_class():
    declared = [name for cause in CAUSES.values() for name in cause.scenarios]
    assert sorted(declared) == catalog.scenario_names()
    assert all(bool(cause.together) == (len(cause.scenarios) > 1) for cause in CAUSES.values())


def test_every_suspect_is_used_and_every_remedy_is_for_one():
    used = {suspect.name for cause in CAUSES.values() for suspect in cause.suspects if suspect.name}
    assert used == set(SUSPECTS)
    for cause in CAUSES.values():
        against = {remedy.against for remedy in cause.remedies}
        assert against <= {"", *(suspect.name for suspect in cause.suspects)}, cause.name


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


def test_the_tables_name_what_there_is():
    for name, symptom in SYMPTOMS.items():
        metrics = {symptom.metric, *symptom.steady, symptom.where.get("metric", "")} - {""}
        assert metrics <= METRICS.keys(), name
        assert symptom.when in (*PLACES, *WHOLES) and symptom.since in ("", *UNITS), name
        assert symptom.state in ("", *STATES, "ends") and symptom.of in ("", *UNITS, *METRICS), name
        assert symptom.objective in ("", "lowest") and symptom.function in ("", "any"), name
        assert any((symptom.state, symptom.like, symptom.crash)) or {symptom.over, symptom.under} != {None}, name
    for name, suspect in SUSPECTS.items():
        assert {*suspect.when, *suspect.against, *suspect.unless, *suspect.needs} <= SYMPTOMS.keys(), name
    for name, cause in CAUSES.items():
        named = {each for condition in (*cause.all, *cause.any) for each in (condition.symptom, condition.other)}
        assert {*named, *cause.also} - {""} <= SYMPTOMS.keys(), name
        assert cause.level in LEVELS and not cause.all[0].negation, name


@pytest.mark.parametrize("text", ["loss_nan after kl_nan", "loss_nan before", "never loss_nan"])
def test_a_condition_of_another_form_is_refused(text):
    with pytest.raises(ConfigError, match="write a, not a"):
        Condition.read(text)


EARLY, LATE = (Evidence(name, "kl", step, 0.0, 0.0, "") for name, step in (("early", 1), ("late", 5)))
SEEN = {"early": EARLY, "late": LATE, "never": None, "dark": Unknown("kl", fact("not_logged"))}


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
    assert Condition.read(text).holds(SEEN) is holds


def look(curve, **settings):
    steps, late = settings.pop("at", range(len(curve))), settings.pop("late", False)
    log = logs.from_frame(pd.DataFrame({"step": list(steps), "kl": curve, "reward": 1.0}))
    log = dataclasses.replace(log, begins_late=log.begins_late or late)
    found = Symptom("", **{"metric": "kl", **settings}).look(log)
    return (found.step, found.value) if isinstance(found, Evidence) else found


@pytest.mark.parametrize(
    ("curve", "settings", "seen"),
    [
        ([0, 2, 3], {"over": 1}, (1, 2.0)),
        ([0, NAN, 3], {"over": 1}, (2, 3.0)),
        ([0, INF, 3], {"state": "nonfinite"}, (1, INF)),
        ([5, 0, 0], {"over": 1, "when": "first"}, (0, 5.0)),
        ([0, 5, 5], {"over": 1, "when": "first"}, None),
        ([0, 5, 5], {"over": 1, "when": "mostly"}, (1, 5.0)),
        ([0, 0, 5], {"over": 1, "when": "mostly"}, None),
        ([5, 5, 5], {"over": 1, "when": "always"}, (0, 5.0)),
        ([5, 5, 0], {"over": 1, "when": "always"}, None),
        ([5, 5], {"over": 1, "when": "always", "steps": 3}, None),
        ([0, 0, 0, 2, 3, 2], {"over": 1, "when": "late"}, (3, 2.0)),
        ([0, 0, 0, 0, 99, 0], {"over": 1, "when": "late"}, None),
        ([1, 1, 50, 1, 1, 1], {"over": 10, "of": "median", "when": "alone"}, (2, 50.0)),
        ([1, 1, 50, 50, 50, 50], {"over": 10, "of": "median", "when": "alone"}, None),
        ([1, 1, 1, 1, 1, 50], {"over": 10, "of": "median", "when": "alone"}, None),
        ([4, 4, 1, 1, 1, 1], {"under": 0.5, "of": "start", "when": "late"}, (2, 1.0)),
        ([4, 3, 2, 1], {"under": 0.3, "of": "largest"}, (3, 1.0)),
        ([-0.6, -0.6, -0.6, -0.5, -0.5, -0.5], {"under": 0.75, "of": "start", "when": "late"}, None),
        ([-0.6, -0.6, -0.8, -0.9, -0.9, -0.9], {"under": 0.75, "of": "start", "when": "late"}, (2, -0.8)),
        ([1, 3, 5], {"over": 4, "of": "reward"}, (2, 5.0)),
        ([1, 3, 5], {"over": 1, "where": {"metric": "reward", "over": 2}}, None),
        ([0.5, 3, 5], {"over": 0.1, "least": 2}, (1, 3.0)),
        ([1, 2, 3, 4, 5.5], {"over": 3, "when": "trend"}, (0, 1.0)),
        ([5, 0], {"over": 1, "when": "first", "at": [100, 101]}, Unknown("kl", fact("begins_at", step=100))),
        ([5, 0], {"over": 1, "when": "first", "late": True}, Unknown("kl", fact("beginning_missing"))),
        ([5, 0], {"over": 1, "of": "kl/exact"}, Unknown("kl/exact", fact("not_logged"))),
    ],
)
def test_symptoms_see(curve, settings, seen):
    assert look(curve, **settings) == seen


@pytest.mark.parametrize(
    ("norm", "hides", "unknown"), [(None, True, True), (None, False, False), (1.0, True, False), (NAN, True, True)]
)
def test_a_loss_that_the_logger_may_have_replaced_is_not_known(norm, hides, unknown):
    """An unfiltered norm would show a NaN."""
    norms = {"grad_norm": pd.Series([1.0, norm])} if norm else {}
    log = logs.Log({"loss": pd.Series([0.1, 0.0]), **norms}, hides_nan=hides)
    assert isinstance(SYMPTOMS["loss_nan"].look(log), Unknown) is unknown


# Which cause, which suspect, which remedy


def test_cause_before_consequence():
    """A spike of 1e5 is louder; the infinite KL came first."""
    found = diagnose(logged(kl=(4, INF), loss=(4, INF), grad_norm=[1, 1, 1, 1, NAN, 1e5, 1e5, 1e5, 1e5, 1e5]))
    assert (found.verdict, found.findings[0].step) == ("kl-overflow", 4)


def test_evidence_shows_the_first_and_the_last_value():
    shown = diagnose(LOGS["drift"]).findings[0].evidence[0]
    assert (shown.value, shown.last) == (1.2, 2.0)


def test_failures_are_named_before_earlier_warnings():
    found = diagnose(logged(completions__clipped_ratio=[0.6] * 10, grad_norm=(8, NAN)))
    assert [f.cause.name for f in found.findings] == ["nan-gradient", "cut-off"]


def test_what_the_log_lacks_is_named():
    curves = curves_of("zero-times-infinity")
    found = diagnose(pd.DataFrame({name: curves[name] for name in ("loss", "grad_norm", "kl")}))
    assert found.verdict == "not-finite"
    lacks = {p.cause.name: {missing.metric for missing in p.lacks} for p in found.possible}
    assert lacks == {"zero-times-infinity": {"ratio/max"}, "nan-gradient": {"ratio/max"}}


def test_a_framework_rules_out_the_mistakes_of_an_own_loop():
    """TRL and verl cannot take the ratio against the reference, and add up micro-batches."""
    curves = sick("explosion", "kl", "grad_norm", "ratio/max", "reward")
    assert named(logged(**curves))[1][0] == "the ratio is taken against the reference policy"
    for source in ("trl", "ms-swift", "verl", "openrlhf"):
        cause, suspects = named(logged(source, **curves))
        assert cause == "explosion" and suspects[0] == "learning-rate"
    assert diagnose(logged(grad_norm=(6, 0.02))).verdict == "accumulation-overwrites"
    in_turns = diagnose(logged("", {"loss.combination": "alternate"}, grad_norm=(6, 0.02)))
    assert in_turns.verdict == HEALTHY, "objectives of unequal weights have such norms"
    assert diagnose(logged("trl", grad_norm=(6, 0.02))).verdict == HEALTHY


FLAT = {"reward": NOISY, "entropy": NOISY, "kl": [1e-5] * 20, "frac_reward_zero_std": [0.0] * 20}
DAMAGED = sick("weights-damaged", "kl", "reward")
FALLING = {"reward": [0.5, 0.48, 0.42, 0.4, 0.33, 0.3, 0.2, 0.15, 0.12, 0.05]}
MOVED = {"kl": [0.0, 0.05, 0.1, 0.2, 0.2, 0.25, 0.3, 0.3, 0.3, 0.3]}
NOISY_KL = {"kl": [0.15 + kl for kl in GOOD["kl"]]}
LONG = {name: [value for value in values for _ in range(2)] for name, values in GOOD.items()}


@pytest.mark.parametrize(
    ("suspect", "settings", "curves"),
    [
        ("number-format", {}, {**DAMAGED, "learning_rate": [1e-5] * 10}),
        ("learning-rate", {}, {**DAMAGED, "learning_rate": [1e-2] * 10}),
        ("number-format", {"model_init_kwargs.dtype": "float16"}, {**DAMAGED, "learning_rate": [1e-5] * 10}),
        ("learning-rate", {"model_init_kwargs.dtype": "float32"}, {**DAMAGED, "learning_rate": [1e-5] * 10}),
        ("data", {}, FALLING),
        ("learning-rate", {}, {**FALLING, **MOVED}),
        ("learning-rate", {}, {**FALLING, **MOVED, "learning_rate": [1e-4] * 10}),
        ("dropout", {}, NOISY_KL),
    ],
)
def test_log_and_settings_tell_the_first_suspect_and_its_remedy(suspect, settings, curves):
    found = diagnose(logged("trl", settings, **curves)).findings[0]
    assert found.suspects[0].name == suspect
    assert found.remedies[0].against in (suspect, "")


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
    curves = {**FLAT, "learning_rate": [1e-4] * 20}
    assert suspect not in named(logged("trl", base=LONG, **curves))[1]
    explained = logged("trl", given, base=LONG, **curves)
    assert named(explained)[1][0] == suspect
    (setting,) = given
    assert setting in [evidence.metric for evidence in diagnose(explained).findings[0].evidence]


def test_a_kl_of_nan_that_stays_or_is_usual_does_not_pass():
    rise = pd.DataFrame({"reward": [0.2 + 0.02 * step for step in range(20)], "loss": 0.01, "grad_norm": 0.5})
    for places, norm, passes in (([0, 9], 1, True), ([9], NAN, False), ([19], 1, False), (range(1, 12), 1, False)):
        kl = [NAN if step in places else 0.002 * step for step in range(20)]
        found = diagnose(rise.assign(kl=kl, grad_norm=[0.5] * 9 + [norm] + [0.5] * 10)).findings
        assert ("intermittent-nan" in {each.cause.name for each in found}) == passes


def test_steps_without_spread_and_a_length_at_its_cap_are_suspects_of_a_flat_reward():
    flat = pd.DataFrame({"reward": NOISY, "kl": 0.005, "loss": 0.01, "grad_norm": 0.5})
    cases = (("reward_std", 0.0, "no-spread-often"), ("completions/mean_length", 256.0, "at-the-cap"))
    cases += (("grad_norm", 0.0, "no-spread-often"),)
    for (column, value, suspect), most in itertools.product(cases, (2, 1)):
        given = [value if step % 5 < most else abs(value - 0.2 - step % 3) for step in range(20)]
        found = diagnose(flat.assign(**{column: given})).findings
        of_flat = next(each for each in found if each.cause.name == "learned-nothing")
        assert (of_flat.suspects[0].name == suspect) == (most == 2)
    for share, suspected in ((0.45, True), (0.35, False)):
        found = diagnose(flat.assign(**{"completions/clipped_ratio": share})).findings[0]
        assert ("cut-off-often" in [each.name for each in found.suspects]) == suspected
    assert "loss-near-zero" in [each.cause.name for each in diagnose(flat.assign(loss=0.0)).findings]
    still = diagnose(flat.assign(loss=0.0, grad_norm=[0.5, 0.0, 0.0, 0.0] * 5)).findings
    assert "loss-near-zero" not in [each.cause.name for each in still], "its gradient is 0, too"


def test_a_reward_that_falls_a_little_is_not_called_without_a_trend():
    falls = np.linspace(1, 0.87, 60) + np.random.default_rng(2).normal(0, 0.06, 60)
    found = diagnose(pd.DataFrame({"reward": falls}))
    assert found.verdict == NOT_ENOUGH and next(lacks.key for lacks in found.lacking) == "falls"
    assert "Reward fell" in found.text() and "shows no learning" not in found.text()


def test_a_flat_reward_of_twenty_steps_is_never_nothing_wrong():
    flat = pd.DataFrame({"reward": NOISY, "kl": [0.005] * 20, "loss": [0.01] * 20, "grad_norm": [0.5] * 20})
    assert diagnose(flat).verdict == "learned-nothing"
    assert diagnose(flat[:15]).verdict == "learned-nothing", "its noise hides no rise"
    for rough in (flat[:11], flat[:15].assign(reward=[0.3 + 0.2 * (-1) ** step for step in range(15)])):
        short = diagnose(rough)
        assert short.verdict == NOT_ENOUGH and [lacks.key for lacks in short.lacking] == ["no_trend"]
        assert diagnose(rough.assign(kl=3e-4)).verdict == "hardly-moved"
        assert diagnose(rough.assign(kl=0.0)).verdict != "hardly-moved", "the reference is the policy"
        assert diagnose(rough.assign(kl=[6e-5 * step for step in range(len(rough))])).verdict == NOT_ENOUGH, "it begins"
    lengths = {length: diagnose(flat.assign(**{"completions/mean_length": length})).verdict for length in (4.0, 256.0)}
    assert lengths == {4.0: "learned-nothing", 256.0: "at-the-limit"}, "answers of four tokens have one length"
    moved = flat.loc[flat.index.repeat(2)].reset_index(drop=True).assign(kl=[0.01 * step for step in range(40)])
    assert diagnose(moved).verdict == "reward-unmoved"
    assert diagnose(moved[:20]).verdict == NOT_ENOUGH
    surer = moved.assign(kl=1e-4, entropy=[0.9 - 0.02 * step for step in range(40)])
    assert diagnose(surer).verdict == "reward-unmoved"
    assert diagnose(surer.assign(reward=surer["reward"] + 0.53)).verdict == NOT_ENOUGH, "nearly solved"
    assert diagnose(flat.assign(reward=[0.2 + 0.02 * step for step in range(20)])).verdict == HEALTHY


def test_a_reward_that_stays_at_its_best_did_not_break():
    reward = [0.2, 0.3, 0.25, 0.4, 0.3, 0.5, 0.45, 0.6, 0.4, 0.7, 0.5, 0.65, 0.8, 0.8, 0.8, 0.8]
    alone = pd.DataFrame({"reward": reward, "loss": [0.01 * (step % 3) for step in range(16)]})
    assert diagnose(alone).verdict not in ("fell-at-once", "reward-broke")
    low = alone.assign(reward=[*reward[:12], 0.1, 0.1, 0.1, 0.1])
    assert diagnose(low).verdict == "fell-at-once"


@pytest.mark.parametrize(
    ("cause", "metric", "values"),
    [
        ("certain-from-the-start", "frac_reward_zero_std", [0.0] * 10),
        ("at-the-limit", "reward", GOOD["reward"]),
        ("masked-away", "grad_norm", [1.2] * 6 + [0.0] * 2 + [1.2] * 2),
        ("lost-unscale", "grad_norm", [1148, 700, 420, 300, 250, 181, 260, 240, 200, 190]),
        ("stale-rollouts", "clip_ratio/region_mean", [0.0] + [0.07] * 9),
        ("loss-near-zero", "loss", [0.0] * 9 + [-9.0]),
    ],
)
def test_a_curve_that_speaks_against_a_cause_rules_it_out(cause, metric, values):
    """Each was named in a published log whose author, or whose other curves, told otherwise."""
    base = curves_of(cause)
    for shown, there in ((base, True), (base | {metric: values}, False)):
        findings = diagnose(pd.DataFrame(shown)).findings
        assert (cause in [found.cause.name for found in findings]) == there


@pytest.mark.parametrize(
    ("cause", "metric", "shown", "spared"),
    [
        ("reward-fell-back", "reward", [0.3] * 5 + [0.9] * 6 + [0.3] * 49, [0.3] + [0.9] * 3 + [0.3] * 56),
        ("reward-broke", "reward", [0.8] * 30 + [0.2] * 30 + WOBBLE, [0.8] * 45 + SLOPE + WOBBLE),
        ("nothing-to-learn-from", "frac_reward_zero_std", [1.0] * 60, [1.0, 1.0, 0.0] * 20),
        ("learned-nothing", "reward", 1.3 + WOBBLE, 0.93 + WOBBLE),
        ("noise-in-the-passes", "step", range(1, 61), range(10, 610, 10)),
    ],
)
def test_what_only_looks_like_a_cause_is_spared(cause, metric, shown, spared):
    flat = pd.DataFrame({"reward": 0.3 + WOBBLE, "kl": 0.1 + WOBBLE, "entropy": 0.5 + WOBBLE, "grad_norm": 1.0})
    for given, there in ((shown, True), (spared, False)):
        findings = diagnose(flat.assign(**{metric: given})).findings
        assert (cause in [found.cause.name for found in findings]) == there


@pytest.mark.parametrize(("steps", "late"), [(4, False), (20, True)])
def test_a_warm_up_that_is_over_is_not_longer_than_the_run(steps, late):
    rate = [1e-6 * min(1.0, (step + 1) / steps) for step in range(20)]
    suspects = named(logged("trl", base=LONG, **{**FLAT, "learning_rate": rate}))[1]
    assert ("warm-up-long" in suspects) == late


def test_a_held_out_score_that_never_changes_points_to_the_updates():
    evaluated = LONG | {"eval/reward": [0.2] * 20}
    assert "never-updated" in named(logged("trl", base=evaluated, **FLAT))[1]
    assert "never-updated" not in named(logged("trl", base=evaluated | {"eval/reward": [0.2, 0.21] * 10}, **FLAT))[1]


def test_a_held_out_score_falls_from_its_best():
    rises = [0.3 + 0.03 * step for step in range(12)]
    scores = [0.31, 0.42, 0.55, 0.62, 0.65, 0.64, 0.5, 0.3, 0.15, 0.1, 0.05, 0.05]
    found = diagnose(pd.DataFrame({"reward": rises, "eval/reward": scores}))
    assert (found.verdict, found.findings[0].step) == ("reward-hacked", 7)
    assert diagnose(pd.DataFrame({"reward": rises, "eval/reward": rises})).verdict == HEALTHY


def test_a_spread_of_advantages_of_0_is_a_step_without_spread():
    flat = {"reward": NOISY, "loss": [0.0] * 20, "entropy": [0.5] * 20}
    spread = pd.DataFrame({**flat, "adv_std": [0.0, 0.0, 0.0, 1.0] * 5})
    found = diagnose(spread)
    assert found.verdict == "no-spread" and found.findings[0].evidence[0].metric == "advantages/std"
    assert diagnose(spread.assign(adv_std=1.0)).verdict == "learned-nothing"


def test_no_healthy_range_stands_beside_a_value_that_is_in_it():
    text = diagnose(LOGS["certain-from-the-start"]).text()
    (row,) = [line for line in text.splitlines() if "entropy is small from the first step" in line]
    assert ">=" not in row


def test_numbers_that_are_not_finite_to_the_end_are_never_nothing_wrong():
    rises = [0.1 * step for step in range(10)]
    assert diagnose(pd.DataFrame({"reward": rises, "loss": [0.1] * 5 + [NAN] * 5})).verdict == "loss-not-finite"
    found = diagnose(pd.DataFrame({"reward": rises, "kl": [0.1] * 5 + [NAN] * 5, "grad_norm": [0.5] * 10}))
    assert found.verdict == NOT_ENOUGH and [lacks.key for lacks in found.lacking] == ["not_finite"]


def test_a_spread_that_is_nan_is_the_cause_of_a_norm_that_is():
    """The standard deviation of one reward is 0/0, and the advantage, the gradient and the weights after it."""
    curves = {"reward": [0.25] * 3, "reward_std": [NAN] * 3, "grad_norm": [NAN] * 3}
    found = diagnose(pd.DataFrame(curves))
    assert found.verdict == "spread-undefined" and found.findings[0].suspects[0].name == "one-completion"
    assert diagnose(pd.DataFrame({**curves, "reward_std": [0.3] * 3})).verdict == "broken-from-the-start"
    late = diagnose(pd.DataFrame({"step": [30], "grad_norm": [NAN], "loss": [0.1]}))
    assert late.verdict == NOT_ENOUGH, "what was before is not known"


def test_an_entropy_bonus_makes_a_loss_that_is_in_proportion():
    entropy = np.linspace(0.1, 0.4, 12)
    curves = {"entropy": entropy, "reward": np.linspace(0.6, 0.3, 12), "grad_norm": [1.0] * 12}
    assert diagnose(pd.DataFrame({**curves, "loss": -0.5 * entropy})).verdict == "bonus-rules"
    weighted = -entropy * np.array([0.3, 0.9, 0.5, 2.0] * 3)
    assert diagnose(pd.DataFrame({**curves, "loss": weighted})).verdict != "bonus-rules"


def test_a_reward_that_repeats_each_value_did_not_break():
    repeated = [value for value in (0.82, 0.84, 0.83, 0.9, 0.91, 0.96, 0.957, 0.974) for _ in range(5)]
    curves = {"entropy": [0.5] * 40, "kl": [0.01] * 40}
    assert diagnose(pd.DataFrame({"reward": repeated, **curves})).verdict == HEALTHY
    broke = [0.5 + wave for wave in NOISY] + [0.1] * 20
    assert diagnose(pd.DataFrame({"reward": broke, **curves})).verdict == "reward-broke"
    assert diagnose(pd.DataFrame({"reward": broke})).verdict != "reward-broke", "no curve tells how the policy went on"


def test_a_suspect_is_ruled_out_by_its_setting():
    assert "dropout" not in named(logged("trl", {"disable_dropout": True}, **NOISY_KL))[1]


def test_remedies_that_are_built_in_are_left_out():
    found = diagnose(logged("verl", reward=(3, NAN))).findings[0]
    assert [remedy.here for remedy in found.remedies] == ["guards.sanitize_rewards=on"]
    assert len(found.cause.remedies) == 2


def test_a_crash_without_a_broken_metric_is_named():
    crash = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
    found = diagnose(logged("trl", crash=crash))
    assert found.verdict == "crashed" and found.findings[0].step == 9
    other = diagnose(logged("trl", crash="KeyError: 'answer'"))
    assert other.verdict == HEALTHY and "KeyError: 'answer'" in other.text()
    assert other.headline() != diagnose(logged("trl")).headline(), "the training was fine, and then it crashed"
    assert diagnose(logged("trl", crash="KeyError", **sick("drift", "kl"))).headline().startswith("The run crashed")
    alone = diagnose(logs.Log({}, crash=crash)).findings[0]
    assert alone.suspects[0].name == "weights" and math.isnan(alone.evidence[0].last)


@pytest.mark.parametrize(
    ("curves", "lacks"),
    [
        ({"reward": [0.3]}, "few_steps"),
        ({"reward": NOISY[:11]}, "lacks_two"),
        ({**{name: GOOD[name][:8] for name in GOOD}, "reward": [-1.5, 0.9, 2.6, 2.1, 2.4, 2.6, 1.0, -0.1]}, "no_trend"),
        ({name: GOOD[name] for name in ("kl", "grad_norm", "loss")}, "lacks"),
        ({"nothing": [1.0] * 10}, "nothing_logged"),
        ({}, "nothing_logged"),
    ],
)
def test_too_little_is_not_called_healthy(curves, lacks):
    found = diagnose(pd.DataFrame(curves))
    assert found.verdict == NOT_ENOUGH and lacks in [fact.key for fact in found.lacking]


def test_a_state_that_lasts_begins_where_it_lasts():
    share = [1.0, 0.2] * 4 + [0.2] * 12 + [1.0, 0.95] * 12
    found = diagnose(pd.DataFrame({"frac_reward_zero_std": share, "reward": [0.5, 0.6] * 10 + [0.8] * 24}))
    assert {each.cause.name: each.step for each in found.named}["nothing-to-learn-from"] == 20


def test_a_policy_that_lost_its_entropy_is_suspected_first():
    tied = pd.DataFrame({"frac_reward_zero_std": [1.0] * 20, "reward": NOISY, "grad_norm": 0.5})
    for last, first in ((0.05, "entropy-collapse"), (1.0, "prompts-too-hard")):
        found = diagnose(tied.assign(entropy=np.linspace(1, last, 20))).findings
        (of_tied,) = [each for each in found if "entropy-collapse" in [suspect.name for suspect in each.suspects]]
        assert of_tied.suspects[0].name == first


def test_rows_as_dictionaries():
    rows = [dict(zip(GOOD, row, strict=True)) for row in zip(*GOOD.values(), strict=True)]
    assert diagnose(rows).verdict == HEALTHY
    for broken in (NAN, INF, -INF):
        assert diagnose([*rows[:5], {**rows[5], "reward": broken}, *rows[6:]]).verdict == "nan-reward"


@pytest.mark.parametrize(
    "reward",
    [
        [-0.8, -0.7, -0.75, -0.6, -0.62, -0.5, -0.4, -0.42, -0.3, -0.25],
        [-0.02, 0.1, 0.0, 0.2, 0.15, 0.3, 0.28, 0.4, 0.42, 0.5],
        [1.0, 0.98, 1.0, 1.0, 0.99, 1.0, 1.0, 1.0, 1.0, 1.0],
        [0.5, 0.7, 0.8, 0.9, 0.96, 0.99, 1.0, 1.0, 1.0, 1.0],
        [0.0, 0.0, 0.016, 0.0, 0.031, 0.0, 0.05, 0.08, 0.1, 0.2],
    ],
    ids=["negative", "about 0", "solved", "to the top", "rare"],
)
def test_rewards_of_every_kind_may_be_healthy(reward):
    """Also with the KL noise of dropout, which TRL has by default."""
    assert diagnose(logged(reward=reward)).verdict == HEALTHY
    noisy = [0.3 + kl * (-1) ** n for n, kl in enumerate(GOOD["kl"])]
    assert diagnose(logged("trl", reward=reward, kl=noisy)).verdict == HEALTHY


def test_a_policy_that_changes_with_its_reward_is_no_broken_judge():
    reward = curves_of("reward-broke")["reward"]
    assert diagnose(logged("trl", reward=reward)).verdict == "reward-broke"
    entropy = [0.8, 0.8, 0.79, 0.78, 0.8, 0.2, 0.1, 0.1, 0.1, 0.1]
    assert diagnose(logged("trl", reward=reward, entropy=entropy)).verdict == "reward-collapse"


# Several objectives


def two(share: float = 1.0, **curves: Any):
    """The healthy steps with objectives F and H; the KL of H is this share of the mean."""
    kl = {"kl__H": [share * kl for kl in GOOD["kl"]], "kl__F": [(2 - share) * kl for kl in GOOD["kl"]]}
    return logged(**{**kl, "reward__H": GOOD["reward"], "reward__F": GOOD["reward"]} | curves)


def found_in(log):
    return [(each.cause.name, each.objective) for each in diagnose(log).findings]


def test_an_objective_with_a_small_kl_of_its_own_raises_nothing():
    """A tenth of the other's KL is a matter of its beta."""
    assert found_in(two(0.1)) == []


def test_a_kl_of_zero_is_found_for_its_objective():
    found = diagnose(two(0.0, reward__H=[0.3] * 10))
    assert found.verdict == "objective-left-out" and found.findings[0].objective == "H"
    shown = found.findings[0].evidence[0]
    assert shown.metric == "kl/H" and shown.value == 0 and found.log.medians("kl/H") == "F 0.027, H 0"
    assert found_in(two(0.0)) == [("reference-is-policy", "H"), ("objective-left-out", "H")]


def test_a_symptom_of_one_objective_is_found_though_the_mean_hides_it():
    """The mean KL stays in its healthy range; an explosion of both is one finding, of the run."""
    sick: dict[str, Any] = {"kl__H": [0.0, *[1.6] * 9], "reward__H": [0.3] * 10}
    assert found_in(two(**sick, kl=[0.0, *[0.3] * 9])) == [("steps-too-large", "H"), ("drift", "H")]
    both = two(**sick, kl__F=sick["kl__H"], reward__F=[0.3] * 10, kl=sick["kl__H"], reward=[0.3] * 10)
    assert found_in(both) == [("steps-too-large", ""), ("drift", "")]


def test_a_log_may_hold_objectives_alone():
    """As dictionaries of TRL have them; a reward function of TRL is no objective."""
    curves = {name: curve.tolist() for name, curve in two(0.0, reward__H=[0.3] * 10).metrics.items()}
    alone = {f"train/{name}": curve for name, curve in curves.items() if name not in ("kl", "reward")}
    log = logs.from_frame(
        pd.DataFrame({**alone, "train/rewards/length/mean": [0.1] * 10, "train/kl/length": [9.0] * 10})
    )
    assert sorted(log.objectives) == ["F", "H"]
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
    base = {name: curve.tolist() for name, curve in two().metrics.items()}
    found = diagnose(logged(base=base, kl__H=(3, INF), kl=(3, INF), grad_norm=[1.2] * 3 + [NAN] * 7)).findings[0]
    assert (found.cause.name, found.objective, found.evidence[0].metric) == ("kl-overflow", "H", "kl/H")


def test_the_objective_that_is_left_out_is_named():
    found, also = diagnose(LOGS["objective-left-out"]).findings
    assert (also.cause.name, also.objective) == ("hardly-moved", found.objective)
    assert [(each.metric, each.healthy) for each in found.evidence] == [("kl/H", (-0.01, 1)), ("kl", (-0.01, 1))]


def test_names_with_a_slash_are_objectives_only_with_a_kl_and_a_reward():
    curves = {"kl": [0.1], "reward": [1.0], "kl/H": [0.1], "reward/H": [1.0], "reward/format": [1.0], "loss/H": [0.5]}
    assert {*logs.from_frame(pd.DataFrame(curves)).metrics} == {"kl", "reward", "kl/H", "reward/H", "loss/H"}


# Runs


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
    run, lines = trained("cuda-001"), []
    lie = {"name": "warm_up", "kind": "fault", "stage": "loss", "update": 0, "verdict": "KEEP", "reason": "lie"}
    lies = {"verdict": "STOP", "updates": 99, "links": [], "actions": [lie], "samples": [], "failed": False}
    for line in (run.directory / "events.jsonl").read_text().splitlines():
        tree = json.loads(line)
        if tree["event"] == "Stepped":
            lines.append(json.dumps(tree | lies))
    lines.insert(0, json.dumps({"event": "Started", "config": {"loss": {"beta": NAN}}, "device": "abacus"}))
    (tmp_path / "events.jsonl").write_text("\n".join([*lines, json.dumps({"event": "Ended", "status": "done"})]) + "\n")
    honest, lied = diagnose(run.directory), diagnose(tmp_path)
    assert honest.verdict == "overflow"
    assert str(lied.findings) == str(honest.findings)
    assert diagnose(run).verdict == diagnose(run.records).verdict == "overflow"


@pytest.mark.parametrize(
    "name",
    [
        "clip-spreads-nan",
        "cuda-001",
        "zero-times-infinity",
        "single-generation",
        "nan-reward",
        "kl-overflow",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "dual-overwrite",
                "dual-kl-hinge",
                "dual-temperature-ignored",
                "bad-batch",
                "accumulation-zeroed",
                "padding-unmasked",
            )
        ),
    ],
)
def test_recorded_runs_are_diagnosed_blind(name, trained):
    assert name in CAUSES[diagnose(trained(name).directory).verdict].scenarios


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([{"step": 1, "reward": 0.3, "frac_reward_zero_std": 0.2, "kl": 0.0, "grad_norm": 0.0}], "gradient-lost"),
        ([{"step": n, "kl": 0.001, "loss": 0.1, "grad_norm": 2e9} for n in (1, 28)], "lost-unscale"),
        ([{"step": 59, "kl": math.nan, "loss": math.nan, "grad_norm": math.nan}], "not-enough"),
        ([{"step": n, "reward": [0.2, 0.6, 0.4][n % 3], "kl": 0.01} for n in range(12)], "not-enough"),
    ],
    ids=["a norm of 0", "a norm of billions", "the end of a run", "a flat reward in few steps"],
)
def test_few_rows_tell_what_they_can(rows, verdict):
    assert diagnose(rows).verdict == verdict


def test_a_huge_norm_beside_a_kl_that_stays_points_to_the_old_logprobs():
    norms = [2000.0 if n % 5 == 4 else 20.0 for n in range(30)]
    rows = [{"step": n, "reward": 0.3 + n % 3 / 1000, "kl": 0.002, "grad_norm": norms[n]} for n in range(30)]
    moved = [{**row, "kl": row["step"] / 100} for row in rows]
    suspects = [[each.name for each in diagnose(log).findings[0].suspects] for log in (rows, moved)]
    assert suspects[0][0] == "old-logprobs" and "old-logprobs" not in suspects[1]


def test_a_healthy_run_raises_nothing(tmp_path):
    config = catalog.preset("stable").with_("run.num_steps=8", "run.seed=1234", "run.threads=1", "data.num_prompts=8")
    Session(config, tmp_path / "run").run()
    assert diagnose(tmp_path / "run").verdict == HEALTHY


def test_a_curve_is_measured():
    assert curves.noise(np.array([0.0, 1.0, 0.0, 1.0])) == pytest.approx(math.sqrt(math.pi) / 2)
    assert curves.noise(np.zeros(3)) == 0
    assert curves.trend(np.array([1.0, 2.0, 1.0, 2.0, 1.0])) == 0
    assert curves.trend(np.arange(9.0) + np.array([0.1, -0.1, 0.0] * 3)) > 50
    assert curves.quotient_spread(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0])) == 0


@pytest.mark.parametrize(
    ("settings", "formulas", "algorithm"),
    [
        ({"importance_sampling_level": "sequence"}, {"importance_sampling_level": "sequence"}, ""),
        (
            {"loss_type": "grpo", "importance_sampling_level": "sequence"},
            {"surrogate": "clip", "aggregation": "sequence", "importance_sampling_level": "sequence"},
            "gspo",
        ),
    ],
)
def test_settings_tell_the_formulas_and_the_algorithm(settings, formulas, algorithm):
    log = logs.Log({}, settings=settings)
    assert (formulas_in(log), algorithm_in(log)) == (formulas, algorithm)
