"""Diagnosis of logs of other algorithms than GRPO: what a clip fraction means there, and which remedies act."""

import json
import re
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest

import grpo_lab as gl
from grpo_lab.algorithm.surrogates import SURROGATES
from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import HEALTHY, diagnose
from grpo_lab.analysis.diagnosis.rules import algorithm_in, formulas_in
from grpo_lab.config.algorithms import PART_OF, USED_BY, algorithm_of, unused
from grpo_lab.config.schema import Config
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.registry import without_effect

STEPS = 12
HEALTHY_CURVES = {
    "reward": [0.30 + 0.015 * step for step in range(STEPS)],
    "frac_reward_zero_std": [0.25, 0.125, 0.25, 0.0] * 3,
    "kl": [0.002 * step for step in range(STEPS)],
    "entropy": [0.8 - 0.005 * step for step in range(STEPS)],
    "grad_norm": [1.2, 1.5, 1.1, 1.4] * 3,
    "loss": [0.0, 0.001, -0.002, 0.001] * 3,
    "completions/mean_length": [3.5, 3.6, 3.4, 3.55] * 3,
    "completions/clipped_ratio": [0.0] * STEPS,
}
CLIPPED = {"clip_ratio/region_mean": [0.0, *([0.25] * (STEPS - 1))]}
TRL_OF = {
    "grpo": {"loss_type": "grpo", "importance_sampling_level": "token"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "gspo_token": {"loss_type": "grpo", "importance_sampling_level": "sequence_token"},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "importance_sampling_level": "token"},
    "sapo": {"loss_type": "sapo", "importance_sampling_level": "token"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "scale_rewards": "group", "importance_sampling_level": "token"},
    "bnpo": {"loss_type": "bnpo", "scale_rewards": "batch"},
    "vespo": {"loss_type": "vespo", "importance_sampling_level": "token"},
    "rloo": {"normalize_advantages": False, "num_generations": 2},
}
ACTOR = "actor_rollout_ref.actor."
VERL_OF = {
    "grpo": {"algorithm.adv_estimator": "grpo", f"{ACTOR}policy_loss.loss_mode": "vanilla"},
    "gspo": {"algorithm.adv_estimator": "grpo", f"{ACTOR}policy_loss.loss_mode": "gspo"},
    "clip_cov": {"algorithm.adv_estimator": "grpo", f"{ACTOR}policy_loss.loss_mode": "clip_cov"},
    "ppo": {"algorithm.adv_estimator": "gae"},
    "rloo": {"algorithm.adv_estimator": "rloo", f"{ACTOR}policy_loss.loss_mode": "vanilla"},
    "dr_grpo": {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": False,
        f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm",
    },
}


def log(source: Any = "trl", settings: Any = None, **curves: Any) -> logs.Log:
    table = {**HEALTHY_CURVES, **{name.replace("__", "/"): values for name, values in curves.items()}}
    series = {name: pd.Series(values, index=range(1, len(values) + 1), name=name) for name, values in table.items()}
    return logs.Log(series, source=source, settings=settings or {})


@pytest.mark.parametrize(("name", "settings"), TRL_OF.items())
def test_trl_s_settings_tell_the_algorithm(name, settings):
    assert algorithm_in(log(settings=settings)) == name


@pytest.mark.parametrize(("name", "settings"), VERL_OF.items())
def test_verl_s_settings_tell_the_algorithm(name, settings):
    assert algorithm_in(log("verl", settings)) == name


@pytest.mark.parametrize("name", gl.algorithm_names())
def test_the_config_of_a_run_tells_the_algorithm(name, tmp_path):
    config = Config().with_algorithm(name)
    settings = {f"loss.{key}": value for key, value in config.to_dict()["loss"].items()}
    assert algorithm_in(log("grpo_lab", settings)) == algorithm_of(config.to_dict()["loss"]) == name


def test_a_log_without_settings_tells_no_algorithm_except_by_its_metrics():
    assert algorithm_in(log()) == "" and formulas_in(log()) == {}
    assert algorithm_in(log(cispo_clip_ratio=[0.02] * STEPS)) == "cispo"
    assert "algorithm" not in diagnose(log()).text()


def test_the_report_names_the_algorithm_and_the_settings_that_tell_it():
    found = diagnose(log(settings=TRL_OF["gspo"]))
    assert "algorithm: gspo (loss_type=grpo, importance_sampling_level=sequence)" in found.text().split("\n")
    assert found.tree()["log"]["algorithm"] == "gspo"


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "luspo"])
def test_a_quarter_of_clipped_completions_is_healthy_under_gspo(name):
    found = diagnose(log(settings=TRL_OF[name], **CLIPPED))
    assert found.verdict == HEALTHY
    assert "clip_ratio/region_mean (loss.importance_sampling_level=" in found.text()


@pytest.mark.parametrize("settings", [{}, TRL_OF["grpo"], TRL_OF["dr_grpo"], TRL_OF["dapo"]])
def test_the_same_fraction_is_judged_as_before_under_a_clip_of_tokens(settings):
    assert diagnose(log(settings=settings, **CLIPPED)).verdict == "stale-rollouts"


@pytest.mark.parametrize("name", ["cispo", "sapo", "vespo"])
def test_no_clip_is_judged_where_nothing_is_clipped(name):
    first = {"clip_ratio/region_mean": [0.25] * STEPS}
    for curves in (CLIPPED, first):
        assert diagnose(log(settings={**TRL_OF[name], "epsilon": 3.0}, **curves)).verdict == HEALTHY


@pytest.mark.parametrize("name", ["cispo", "sapo", "gspo", "luspo", "grpo"])
def test_samples_of_an_older_policy_are_known_by_their_ratio_where_the_clip_tells_nothing(name):
    settings = {f"loss.{key}": value for key, value in Config().with_algorithm(name).to_dict()["loss"].items()}
    stale = {"ratio/max": [1.0, *([2.1, 1.9, 2.6, 2.2] * 3)][:STEPS]}
    found = diagnose(log("grpo_lab", settings, **stale))
    assert found.verdict == (HEALTHY if name == "grpo" else "stale-ratio")  # of grpo the clipped share decides
    twice = {"ratio/max": [1.1, *([1.2, 1.9, 1.3, 2.2] * 3)][:STEPS]}
    assert diagnose(log("grpo_lab", settings, **twice)).verdict == HEALTHY


@pytest.mark.parametrize("level", ["sequence_sum", "sequence", "token"])
def test_a_ratio_of_a_sum_is_named_where_completions_leave_the_clip_range(level):
    settings, often = {"loss.importance_sampling_level": level}, {"clip_ratio/region_mean": [0.1, 0.2] * 6}
    assert (diagnose(log("grpo_lab", settings, **often)).verdict == "ratio-summed") == (level == "sequence_sum")
    assert diagnose(log("grpo_lab", settings)).verdict == HEALTHY


def test_a_wide_clip_range_is_a_mistake_only_where_it_is_used():
    wide = {"epsilon": 3.0}
    assert diagnose(log(settings={**TRL_OF["grpo"], **wide})).verdict == "clip-off"
    assert diagnose(log(settings={**TRL_OF["sapo"], **wide})).verdict == HEALTHY


def test_no_division_by_a_standard_deviation_is_named_where_there_is_none():
    tiny = {"reward_std": [0.001] * STEPS, "frac_reward_zero_std": [0.0] * STEPS, "reward": [0.3, 0.31] * 6}
    assert diagnose(log(settings=TRL_OF["grpo"], **tiny)).verdict == "noise-amplified"
    assert diagnose(log(settings=TRL_OF["dr_grpo"], **tiny)).verdict != "noise-amplified"


EXPLODING = {
    "grad_norm": [1.0, 2.0, 30.0, 400.0, 5e3, 6e3, 7e3, 8e3, 9e3, 9e3, 9e3, 9e3],
    "kl": [0.0, 0.1, 3.0, 60.0, 90.0, 99.0, 99.0, 99.0, 99.0, 99.0, 99.0, 99.0],
    "ratio/max": [1.0, 3.0, 60.0, 700.0, 900.0, 900.0, 900.0, 900.0, 900.0, 900.0, 900.0, 900.0],
    "reward": [0.3, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
}
NOT_FINITE = {"loss": [0.0] * 8 + [float("nan")] * 4, "grad_norm": [1.0] * 6 + [900.0] * 2 + [float("nan")] * 4}
OVERFLOWED = {"ratio/max": [1.0] * 8 + [float("inf")] * 4, "grad_norm": [1.0] * 8 + [float("nan")] * 4}
HUGE_NORM = {"grad_norm": [1.0, 1.2, 1.1, 1.0, 1.0, 1.2, 900.0, 950.0, 990.0, 950.0, 940.0, 980.0]}
SICK = {"explosion": EXPLODING, "not finite": NOT_FINITE, "overflow": OVERFLOWED, "norm": HUGE_NORM}


def advised(found):
    """Every setting of every remedy of a diagnosis, as the report names it."""
    return [text for finding in found.findings for r in finding.remedies for text in (r.here, r.trl, r.verl)]


@pytest.mark.parametrize("curves", SICK.values(), ids=SICK)
@pytest.mark.parametrize("name", ["cispo", "sapo", "reinforce_plus_plus", "gspo", "dr_grpo", "grpo"])
def test_no_remedy_is_without_effect(name, curves):
    config = Config().with_algorithm(name)
    loss = config.to_dict()["loss"]
    found = diagnose(log("grpo_lab", {f"loss.{key}": value for key, value in loss.items()}, **curves))
    assert found.verdict != HEALTHY
    for text in advised(found):
        named = re.findall(r"guards\.(\w+)", text)
        assert not without_effect(config.with_guards({guard: {} for guard in named if guard in GUARDS}))


@pytest.mark.parametrize("name", ["cispo", "sapo"])
@pytest.mark.parametrize("curves", SICK.values(), ids=SICK)
def test_trl_s_delta_and_verl_s_clip_ratio_c_are_named_only_where_they_act(name, curves):
    settings = {"trl": TRL_OF[name], "verl": {f"{ACTOR}policy_loss.loss_mode": name}}
    for source in settings:
        found = advised(diagnose(log(source, settings[source], **curves)))
        assert not any("delta" in text.split() or "clip_ratio_c" in text or "dual_clip" in text for text in found)
    for mode in ("gspo", "clip_cov"):
        found = advised(diagnose(log("verl", {f"{ACTOR}policy_loss.loss_mode": mode}, **curves)))
        assert not any("clip_ratio_c" in text for text in found)
    under_grpo = advised(diagnose(log("trl", TRL_OF["grpo"], **EXPLODING)))
    assert "delta" in under_grpo


def test_no_remedy_sets_what_is_set_already():
    outlier = {"reward": [0.3, 0.31, 0.3, 0.32, 0.3, 40.0, 0.31, 0.3, 0.3, 0.31, 0.3, 0.3]}
    grouped = diagnose(log("trl", {"scale_rewards": "group"}, **outlier))
    assert grouped.verdict == "reward-outlier" and "scale_rewards='group'" not in advised(grouped)
    none = diagnose(log("trl", {"scale_rewards": "none"}, **outlier))
    assert "scale_rewards='group'" in advised(none)


def test_an_overflow_behind_a_weight_without_gradient_is_not_zero_times_infinity():
    own = {name: {"loss.surrogate": name} for name in ("clip", "cispo")}
    assert diagnose(log("grpo_lab", own["clip"], **OVERFLOWED)).verdict == "zero-times-infinity"
    assert diagnose(log("grpo_lab", own["cispo"], **OVERFLOWED)).verdict not in ("zero-times-infinity", HEALTHY)


def test_the_parts_of_a_loss_are_declared_for_every_surrogate_and_guard():
    assert USED_BY.keys() == SURROGATES.keys()
    parts = {part for used in USED_BY.values() for part in used} | {"beta", "kl", ""}
    assert set(PART_OF) <= set(GUARDS) and set(PART_OF.values()) <= parts


def test_a_diagnosis_needs_no_torch():
    code = "import sys, grpo_lab.analysis.diagnosis; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_guards_and_settings_without_effect_are_named_with_the_reason():
    config = Config().with_algorithm("sapo").with_("guards.dual_clip=on", "guards.clamp_kl=on", "loss.epsilon=0.1")
    assert without_effect(config) == [
        "loss.epsilon has no effect under loss.surrogate=sapo",
        "guards.dual_clip has no effect under loss.surrogate=sapo",
    ]
    unpaid = Config().with_("loss.beta=0", "guards.clamp_kl=on", "guards.adaptive_beta=on")
    assert without_effect(unpaid) == [
        "guards.clamp_kl has no effect under loss.beta=0",
        "guards.adaptive_beta has no effect under loss.beta=0",
    ]
    assert without_effect(Config().with_("guards.dual_clip=on", "guards.clamp_kl=on")) == []


@pytest.mark.parametrize("part", ["delta", "ratio"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_a_part_that_is_said_to_be_unused_does_not_change_the_loss(surrogate, part):
    import torch

    from grpo_lab.algorithm.surrogates import Limits

    generator = torch.Generator().manual_seed(0)
    weights, logprobs, gains = (torch.randn(6, 5, generator=generator) for _ in range(3))
    limits = {"delta": (Limits(), Limits(delta=1.1)), "ratio": (Limits(), Limits())}[part]
    moved = (weights, weights.clamp(-0.1, 0.1) if part == "ratio" else weights)
    one, other = (
        SURROGATES[surrogate](w, logprobs, gains[:, 0], limit) for w, limit in zip(moved, limits, strict=True)
    )
    assert torch.equal(one, other) is (part in unused({"surrogate": surrogate}))


def test_a_run_folder_tells_its_algorithm(tmp_path):
    rows = [{"step": step, **{name: values[step] for name, values in HEALTHY_CURVES.items()}} for step in range(STEPS)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    (tmp_path / "args.yaml").write_text("loss_type: cispo\nlearning_rate: 1e-6\n")
    assert "algorithm: cispo (loss_type=cispo)" in diagnose(tmp_path).text()
