"""A config is frozen, validated as a whole, changed by overrides, and survives being written down."""

import copy
import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.config.catalog import preset, preset_names
from grpo_lab.config.fields import settings_of
from grpo_lab.config.schema import REMOVED, SECTIONS, Config
from grpo_lab.core.hooks import Stage
from grpo_lab.errors import ConfigError
from grpo_lab.events import encodable
from grpo_lab.training.faults import FAULTS
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.registry import arrange


def through_json(config: Config) -> Config:
    return Config.from_dict(json.loads(json.dumps(encodable(config.to_dict()), allow_nan=False)))


@pytest.mark.parametrize("name", REMOVED)
def test_a_setting_that_is_gone_is_read_with_the_value_that_is_left(name):
    """So that recordings and folders of earlier versions are read."""
    section, setting = name.split(".")
    left, _ = REMOVED[name]
    for read in (Config.from_dict, Config().merged):
        assert read({section: {setting: left}}) == Config()
        with pytest.raises(ConfigError, match=f"{name} = 'other' is no longer there"):
            read({section: {setting: "other"}})
    with pytest.raises(ConfigError, match=f"{name} = 'other' is no longer there"):
        Config().with_(f"{name}=other")
    assert Config().with_(f"{name}={left}") == Config()


def test_overrides_change_what_they_name_and_nothing_else():
    config = Config()
    changed = config.with_("loss.beta=0.04", "run.num_steps = 3", "loss.epsilon_high=0.28", "data.rewards=a,b")
    expected = config.to_dict()
    expected["loss"] |= {"beta": 0.04, "epsilon_high": 0.28}
    expected["run"]["num_steps"] = 3
    expected["data"]["rewards"] = ["a", "b"]
    assert changed.to_dict() == expected
    assert config == Config()
    assert changed.with_("loss.epsilon_high=none").loss.epsilon_high is None


def test_a_star_multiplies_the_value_there():
    config = Config().with_("optimizer.learning_rate=3e-4", "guards.clip_gradients.max_norm=0.5")
    times_10 = "optimizer.learning_rate=*10"
    for larger in (config.with_(times_10, times_10), config.merged({"optimizer": {"learning_rate": "*100"}})):
        assert larger.optimizer.learning_rate == pytest.approx(3e-2)
    assert config.with_("data.num_prompts=*2").data.num_prompts == 32
    assert config.with_("guards.clip_gradients.max_norm=*3").guards == {"clip_gradients": {"max_norm": 1.5}}
    with pytest.raises(ConfigError, match=r"guards\.clip_gradients\.max_norm = '\*3'.*give the number itself"):
        Config().with_("guards.clip_gradients=on", "guards.clip_gradients.max_norm=*3")


@pytest.mark.parametrize(("text", "value"), [("7", ("7",)), ("on", ("on",)), ("a", ("a",)), ("a,7", ("a", "7"))])
def test_names_are_kept_as_typed(text, value):
    assert Config().with_(f"data.rewards={text}").data.rewards == value


def test_guards_are_switched_on_set_and_switched_off():
    config = Config().with_("guards.warm_up=on", "guards.clip_gradients.max_norm=0.3", "faults.nan_gradient=true")
    assert config.guards == {"warm_up": {}, "clip_gradients": {"max_norm": 0.3}}
    assert list(config.guards) == ["warm_up", "clip_gradients"]
    assert config.faults == {"nan_gradient": {}}
    assert config.with_("guards.clip_gradients=on").guards["clip_gradients"] == {"max_norm": 0.3}
    assert config.with_("guards.warm_up=off").guards == {"clip_gradients": {"max_norm": 0.3}}
    assert Config().with_("guards.warm_up=off").guards == {}
    two = Config().with_("guards.skip_spikes.threshold=3", "guards.skip_spikes.patience=1")
    assert two.guards == {"skip_spikes": {"threshold": 3, "patience": 1}}
    assert config.with_guards({"dual_clip": {}}).guards == {"dual_clip": {}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.bta=1", r"loss: unknown setting 'bta'; did you mean 'beta'\?"),
        ("los.beta=1", r"unknown section 'los'; did you mean 'loss'\?"),
        ("loss.beta", "'loss.beta' is no override; write section.setting=value"),
        ("loss=3", "'loss=3' is no override"),
        ("guards.warm_up=3", "a guard or fault is switched with =on or =off"),
        ("loss.epsilon=-1", r"loss\.epsilon = -1\.0: must be above 0 and at most 1"),
        ("loss.beta=lots", r"loss\.beta = 'lots': must be of type float"),
        ("run.num_steps=0", r"run\.num_steps = 0: must be at least 1"),
        ("loss.aggregation=tokens", "must be one of token, sequence, constant"),
        ("data.rewards=", r"data\.rewards = \('',\): each must be a non-empty str"),
        ("loss.kl_estimator=*2", "both must be numbers"),
        ("loss.beta=*on", "both must be numbers"),
        ("data.num_generations=1", "a group of one has nothing to be compared with.*use at least 2"),
    ],
)
def test_a_bad_override_names_the_value_and_the_way_out(override, message):
    with pytest.raises(ConfigError, match=message):
        Config().with_(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("guards.clip_gradients.max_norm=-1", r"guards\.clip_gradients\.max_norm = -1\.0: must be above 0"),
        (
            "guards.clip_gradients.max_norn=1",
            "guards.clip_gradients: unknown setting 'max_norn'; did you mean 'max_norm'",
        ),
        ("guards.clip_gradient=on", r"unknown guard 'clip_gradient'; did you mean 'clip_gradients'"),
        ("guards.dual_clip.delta=1", r"guards\.dual_clip\.delta = 1\.0: must be above 1"),
        ("guards.check_weights.then=panic", "must be one of roll_back, warn"),
        ("faults.nan_gradients=on", r"unknown fault 'nan_gradients'; did you mean 'nan_gradient'"),
        ("faults.skip_spikes=on", "unknown fault 'skip_spikes'"),
    ],
)
def test_arranging_refuses_unknown_guards_and_their_bad_settings(override, message):
    with pytest.raises(ConfigError, match=message):
        arrange(Config().with_(override), FAULTS, GUARDS)


def test_arranged_guards_have_the_configured_settings_and_off_means_absent():
    assert arrange(Config(), FAULTS, GUARDS) == {}
    arranged = arrange(Config().with_("guards.clip_gradients.max_norm=0.3"), FAULTS, GUARDS)
    assert arranged == {Stage.GRADIENTS: [("guard", GUARDS["clip_gradients"](max_norm=0.3))]}  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"los": {}}, r"unknown section 'los'; did you mean 'loss'\?"),
        ({"loss": {"bta": 1}}, "did you mean 'beta'"),
        ({"guards": {"warm_up": True}}, r"guards\.warm_up = True: must be a table of its settings"),
        ([], r"the config = \[\]: must be a table"),
        ({"loss": {"beta": 10**400}}, r"loss\.beta: must be at most 1\.8e\+308"),
        ({"data": {"rewards": ["a", 3]}}, r"data\.rewards = \['a', 3\]: each must be a non-empty str"),
    ],
)
def test_a_bad_tree_is_refused(tree, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_dict(tree)


def test_merging_lays_settings_over_and_leaves_the_rest():
    config = Config().with_("loss.epsilon=0.1", "guards.warm_up=on")
    merged = config.merged({"loss": {"beta": 0.5}, "guards": {"clip_gradients": {"max_norm": 2.0}}})
    assert (merged.loss.epsilon, merged.loss.beta) == (0.1, 0.5)
    assert merged.guards == {"warm_up": {}, "clip_gradients": {"max_norm": 2.0}}
    again = merged.merged({"guards": {"clip_gradients": {"max_norm": "*2"}, "warm_up": {"steps": 5}}})
    assert again.guards == {"warm_up": {"steps": 5}, "clip_gradients": {"max_norm": 4.0}}
    two = config.with_("guards.skip_spikes.patience=1").merged({"guards": {"skip_spikes": {"threshold": 3}}})
    assert two.guards["skip_spikes"] == {"patience": 1, "threshold": 3}
    assert config.guards == {"warm_up": {}}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_survives_being_written_down(name):
    config = preset(name)
    assert Config.from_dict(config.to_dict()) == config
    assert through_json(config) == config
    arrange(through_json(config), FAULTS, GUARDS)


@given(
    beta=st.floats(0, 1e300),
    rewards=st.lists(st.text(min_size=1), max_size=3),
    name=st.text(),
    settings=st.dictionaries(st.text(min_size=1), st.dictionaries(st.text(min_size=1), st.integers()), max_size=3),
)
def test_any_valid_config_survives_being_written_down(beta, rewards, name, settings):
    tree = {"loss": {"beta": beta}, "data": {"rewards": rewards}, "run": {"name": name}, "guards": settings}
    config = Config.from_dict(tree)
    assert config.loss.beta == beta
    assert config.run.name == name
    assert through_json(config) == config
    assert list(through_json(config).guards) == list(settings)  # the order in which they act


@pytest.mark.parametrize("name, cls", [*SECTIONS.items(), *GUARDS.items(), *FAULTS.items()])
def test_every_setting_has_a_help_text_and_a_default_within_its_limit(name, cls):
    for setting in settings_of(cls).values():
        assert len(setting.help.split()) >= 2, f"{name}.{setting.name} has no help text"
        assert setting.help.endswith("."), f"{name}.{setting.name}: {setting.help!r}"
    cls()  # raises ConfigError for a default outside its limit


def test_a_config_is_copied_pickled_and_taken_apart():
    config = Config().with_("guards.clip_gradients.max_norm=0.3", "guards.warm_up=on", "faults.nan_gradient=on")
    config = config.merged({"guards": {"mine.py:Mine": {"layers": [1, 2]}}})
    for again in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config)), through_json(config)):
        assert again == config and list(again.guards) == list(config.guards)
        with pytest.raises(TypeError, match="cannot be changed"):
            again.guards["clip_gradients"]["max_norm"] = 9.0  # type: ignore[index]
    assert dataclasses.asdict(config)["guards"] == config.guards
    assert config.to_dict()["guards"]["mine.py:Mine"] == {"layers": [1, 2]}
    assert config.guards["mine.py:Mine"] == {"layers": (1, 2)}
    config.to_dict()["guards"]["warm_up"]["steps"] = 3  # a copy, which may be changed
    with pytest.raises(ConfigError, match=r"guards\.warm_up = True: must be a table of its settings"):
        Config(guards={"warm_up": True})  # type: ignore[dict-item]
