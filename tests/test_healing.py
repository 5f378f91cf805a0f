"""A heal removes the cause of a scenario, so that the model learns; `suggest` finds it for a run that broke."""

import math

import pytest

import grpo_lab as gl
from grpo_lab.analysis.healing import holds, in_words, suggest, write_preset
from grpo_lab.config.catalog import TRIAL
from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError
from grpo_lab.events import Stepped
from grpo_lab.runs.outcome import Learned, outcome

NAMES = gl.scenario_names()
EACH = pytest.mark.parametrize("name", NAMES)
TRAINED = (
    "accumulation-zeroed",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("cuda-001", "judge-timeout-is-zero", "lora-reference-adapters-on", "dual-overwrite")
    ),
)
"""Heals of five kinds. `python -m benchmarks.runs heals` trains the heal of every scenario, on five seeds."""


@pytest.mark.parametrize("name", TRAINED)
def test_a_healed_run_learns(name):
    here = ("run.name=healed", "run.threads=1", "run.device=cpu", "run.num_eval=250")
    config = gl.scenario(name).config(heal=True).with_(*here)
    events = list(gl.train(config))
    found = outcome(events)
    assert (found.status, found.learned, found.finished) == ("done", Learned.LEARNED, config.run.num_steps)
    assert found.gained >= 0.15 and found.first_break is None, "more than chance, by far"
    norms = [event.metrics["grad_norm"] for event in events if isinstance(event, Stepped)]
    assert sum(norm > 10 for norm in norms) <= 3, "norms above 10 are counted exceptions"


@EACH
def test_the_healed_config_differs_by_the_heal_and_the_trial(name):
    case = gl.scenario(name)
    ill, healed = case.config(), case.config(heal=True)
    assert healed == ill.merged(case.trial).with_(*case.heals[0].change) != ill
    assert case.config(guards="stable", heal=True).guards == gl.preset("stable").guards
    assert all(heal.why.strip() for heal in case.heals)


@EACH
def test_every_scenario_is_recognised_by_its_config_and_healed(name):
    case = gl.scenario(name)
    found = suggest(case.config())
    assert found is not None and found.case == case and found.config == case.config().with_(*case.heals[0].change)
    assert not holds(found.config, case), "a healed config no longer holds the cause"


def test_a_cause_is_found_without_the_name_of_its_scenario():
    mine = gl.preset("original").with_("run.name=mine", "model.precision=fp16_pure", "optimizer.learning_rate=1e-3")
    found = suggest(mine)
    assert found is not None and found.case.name == "cuda-001", "the cause with the most settings"
    assert found.config.loss.log_ratio == "old" and found.config.model.precision == "fp32"
    assert found.config.optimizer.learning_rate == 1e-3, "nothing but the heal changes"


def test_a_number_counts_from_the_scenarios_value_on():
    config = gl.preset("plain")
    for rate, expected in (("1e-2", True), ("5e-2", True), ("5e-3", False)):
        found = suggest(config.with_(f"optimizer.learning_rate={rate}"))
        assert (found is not None and found.case.name == "learning-rate-too-high") is expected, rate


@pytest.mark.parametrize("name", ["plain", "stable", "smoke"])
def test_a_config_without_a_known_cause_gets_no_suggestion(name):
    assert suggest(gl.preset(name)) is None


def test_the_words_say_stop_heal_and_why():
    found = suggest(gl.scenario("cuda-001").config())
    assert found is not None
    stop, heal, why, *more = in_words(found).splitlines()
    assert max(map(len, (why, *more))) <= 80, "a notebook breaks longer lines inside a word"
    assert stop == f"stop: {', '.join(found.case.cures[0])}"
    assert heal == f"heal: {', '.join(found.heal.change)}" and why.startswith("why: ")


def test_a_written_preset_is_the_same_config(tmp_path):
    odd = ("guards.clip_gradients.max_norm=inf", "data.rewards=exact_match,", "faults.nan_reward.at_step=3")
    odd += ("run.checkpoint_minutes=none",)
    config = gl.scenario("single-generation").config().with_(*odd)
    write_preset(config, tmp_path / "healed.toml", 'a "title"', "why\nnot")
    read = gl.preset(str(tmp_path / "healed.toml"))
    assert read == config and math.isinf(read.guards["clip_gradients"]["max_norm"])


def dual(*overrides):
    """The preset dual under a name of one's own."""
    return gl.preset("dual").with_("run.name=mine", *overrides)


def test_a_run_with_objectives_is_healed_and_keeps_them(tmp_path):
    config = dual("loss.accumulation=zeroed", "objectives.H.weight=2", "objectives.H.sampling.temperature=0.9")
    found = suggest(config)
    assert found is not None and found.heal.change == ("loss.accumulation=add",)
    write_preset(found.config, tmp_path / "healed.toml", "t", "w")
    read = gl.preset(str(tmp_path / "healed.toml"))
    assert read == found.config and read.objectives == config.objectives and read.loss.accumulation == "add"
    assert suggest(dual()) is None


def test_a_cause_that_one_objective_sets_is_found_and_changed_there():
    """Each objective of `dual` has num_prompts of its own: that of the run counts for nothing."""
    found = suggest(dual("objectives.F.num_prompts=1", "data.num_generations=4"))
    assert found is not None and found.case.name == "small-batch"
    assert found.heal.change == ("objectives.F.num_prompts=16", "data.num_generations=8")
    assert [each.num_prompts for each in found.config.objectives] == [16, 96]
    assert suggest(dual("data.num_prompts=1", "data.num_generations=4")) is None


def test_a_cause_of_the_run_is_changed_where_objectives_inherit_it():
    ill = gl.scenario("temperature-ignored").config()
    assert ill.faults, "the fault is part of the cause"
    temperature = ill.sampling.temperature
    one = dual(f"sampling.temperature={temperature}", "objectives.F.sampling.temperature=1.0")
    found = suggest(Config.from_dict(one.to_dict() | {"faults": ill.to_dict()["faults"]}))
    assert found is not None and found.case.name == "temperature-ignored"
    assert found.heal.change == ("sampling.temperature=1.0",)
    both = dual(f"objectives.F.sampling.temperature={temperature}", f"objectives.H.sampling.temperature={temperature}")
    found = suggest(Config.from_dict(both.to_dict() | {"faults": ill.to_dict()["faults"]}))
    assert found is not None
    assert found.heal.change == tuple(f"objectives.{name}.sampling.temperature=1.0" for name in "FH")


def test_a_heal_of_an_objective_is_no_matter_of_a_run_without_it(tmp_path):
    objectives = '[[objectives]]\nname = "F"\n[[objectives]]\nname = "H"\nbeta = 0.0\n'
    heals = '[[heals]]\nchange = ["objectives.H.beta=0.1"]\nwhy = "w"\n'
    (tmp_path / "mine.toml").write_text(TEXTS + objectives + heals)
    case = gl.scenario(str(tmp_path / "mine.toml"))
    assert holds(case.config(), case) and holds(dual("objectives.H.beta=0"), case)
    assert not holds(gl.preset("plain"), case) and not holds(dual(), case)


TEXTS = 'title = "t"\nsource = "s"\nstory = "y"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heals = 3", "heals = 3: must be a list"),
        ('[[heals]]\nchange = ["loss.beta=0.1"]', r"mine.heals: why is missing"),
        ('[[heals]]\nchange = 3\nwhy = "w"', "change = .*3.*: each must be a non-empty str"),
        ('[[heals]]\nchange = ["loss.bta=0.1"]\nwhy = "w"', "'bta'; did you mean 'beta'"),
        ('[[heals]]\nchange = ["loss.beta=0.1"]\nwhy = 5', "why = 5: must be of type str"),
        ("[trial]\nrn.num_steps = 5", "unknown section 'rn'"),
    ],
)
def test_a_mistake_in_a_heal_shows_when_the_file_is_read(tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(TEXTS + text)
    with pytest.raises(ConfigError, match=message):
        gl.scenario(str(tmp_path / "mine.toml"))


def test_a_scenario_of_ones_own_may_name_no_heal(tmp_path):
    (tmp_path / "mine.toml").write_text(TEXTS + "[loss]\nbeta = 0.9")
    case = gl.scenario(str(tmp_path / "mine.toml"))
    assert case.heals == () and case.trial == TRIAL
    with pytest.raises(ConfigError, match=r"scenario mine names no heal; add \[\[heals\]\]"):
        case.config(heal=True)
    assert Config.from_dict(case.config().to_dict()) == case.config()
