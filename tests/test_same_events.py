"""The comparison of two checkouts finds every number that differs, and nothing else."""

import json

import pytest

import grpo_lab as gl
from benchmarks.same_events import WAYS, Case, cases, compare, config_of
from grpo_lab.config.catalog import preset_names, scenario_names
from grpo_lab.models.registry import MODELS

CASE = Case("preset", "smoke", "alone", 0)
STEP = {
    "event": "Stepped",
    "step": 1,
    "metrics": {"loss": "nan", "kl": 0.5, "step_time": 0.1},
    "links": [{"link": "loss", "magnitude": "nan", "facts": {}}],
    "actions": [{"name": "skip_spikes", "verdict": "SKIP_STEP", "reason": "norm 12 > 10"}],
}
STARTED = {"event": "Started", "config": {"run": {"seed": 0}}, "device": "cpu"}


def folder(path, *events):
    path.mkdir()
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


@pytest.mark.parametrize(
    ("after", "name", "old", "new"),
    [
        (STEP | {"metrics": STEP["metrics"] | {"kl": 0.25}}, "Stepped.metrics.kl", 0.5, 0.25),
        (STEP | {"metrics": STEP["metrics"] | {"loss": 0.0}}, "Stepped.metrics.loss", "nan", 0.0),
        (STEP | {"metrics": {"loss": "nan", "step_time": 0.1}}, "Stepped.metrics.kl", 0.5, None),
        (STEP | {"links": [STEP["links"][0] | {"magnitude": 1.0}]}, "Stepped.links[0 loss].magnitude", "nan", 1.0),
        (STEP | {"actions": []}, "Stepped.actions[0 skip_spikes].name", "skip_spikes", None),
        (STEP | {"step": 2}, "Stepped.step", 1, 2),
    ],
)
def test_a_number_that_differs_is_named(tmp_path, after, name, old, new):
    found = compare(CASE, folder(tmp_path / "old", STARTED, STEP), folder(tmp_path / "new", STARTED, after))
    assert next(iter(found.differences.items()))[0] == name and found.differences[name][1:] == (old, new)
    assert name in found.verdict


def test_step_times_new_settings_and_nan_are_no_difference(tmp_path):
    started = STARTED | {"config": {"run": {"seed": 0, "new": 1}}}
    later = STEP | {"metrics": STEP["metrics"] | {"step_time": 9.0}}
    found = compare(CASE, folder(tmp_path / "old", STARTED, STEP), folder(tmp_path / "new", started, later))
    assert found.verdict == "identical"
    assert compare(CASE, tmp_path / "new", tmp_path / "old").verdict == "identical", "a setting that is gone"


def test_every_scenario_preset_algorithm_and_way_is_trained():
    """But for presets of a model that has to be fetched, where it is not here."""
    found = list(cases(seeds=2))
    here = [name for name in preset_names() if MODELS[gl.preset(name).model.name].present]
    names = [*here, *gl.algorithm_names(), *WAYS]
    assert {"smoke", "stable", "dual"} <= {*here}
    assert len(found) == len(set(found)) == 2 * (2 * len(scenario_names()) + len(names))
    assert [case.name for case in cases(1, ["smoke", "sft"])] == ["smoke", "sft"]
    for case in cases(1):
        config_of(case)


def test_a_small_difference_is_allowed_where_it_is_asked_for(tmp_path):
    later = STEP | {"metrics": STEP["metrics"] | {"kl": 0.5000001}}
    folders = folder(tmp_path / "old", STARTED, STEP), folder(tmp_path / "new", STARTED, later)
    assert compare(CASE, *folders).differences and not compare(CASE, *folders, steps=1).differences
    found = compare(CASE, *folders, within=1e-6)
    assert not found.differences and found.verdict == "within 2e-07"
    other = STEP | {"actions": [STEP["actions"][0] | {"verdict": "CHANGED"}]}
    assert compare(CASE, folders[0], folder(tmp_path / "other", STARTED, other), within=1.0).differences
