"""Settings by model: scenarios train SmolLM2-135M with a rate of its own, and `reproduce` shows recordings of it.

No test here needs that model: where one trains, the tiny model stands in its folder.
"""

import shutil
from itertools import product

import pytest

import grpo_lab as gl
from grpo_lab.analysis.healing import holds
from grpo_lab.analysis.reproduction import COLUMNS, config_for, recording_of, scenarios_for
from grpo_lab.config.catalog import model_settings
from grpo_lab.errors import ConfigError, ModelError
from grpo_lab.models.registry import MODELS
from grpo_lab.runs import child as child_pool
from grpo_lab.runs import recordings
from grpo_lab.runs.outcome import Learned, outcome
from grpo_lab.runs.session import Session
from grpo_lab.ui.run_tables import reproduce_all

MODEL = "smollm2-135m"
TEXTS = 'title = "t"\nsource = "s"\nstory = "y"\n[loss]\nlog_ratio = "reference"\n'
KEYS = [*product(scenarios_for(MODEL), COLUMNS)]


def recorded(name, column):
    return Session.open(recordings.find(recording_of(name, column, MODEL)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[models.smollm2.run]\nnum_steps = 3",
            r"unknown model in \[models\] of scenario mine 'smollm2'; did you mean",
        ),
        ("[models.smollm2-135m.run]\nnum_step = 3", "run: unknown setting 'num_step'; did you mean 'num_steps'"),
        ("[models.smollm2-135m]\nrun = 3", "run = 3: must be a table"),
    ],
)
def test_a_mistake_in_a_models_settings_shows_when_the_file_is_read(tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(TEXTS + text)
    with pytest.raises(ConfigError, match=message):
        gl.scenario(str(tmp_path / "mine.toml"))


def test_a_scenarios_own_settings_lie_over_the_shared_ones_and_over_its_trial(tmp_path):
    own = f"[trial]\nrun = {{ num_steps = 77 }}\n[models.{MODEL}]\nrun = {{ num_steps = 5 }}\n"
    heal = '[[heals]]\nchange = ["loss.log_ratio=old"]\nwhy = "w"\n'
    (tmp_path / "mine.toml").write_text(TEXTS + own + heal)
    case = gl.scenario(str(tmp_path / "mine.toml"))
    shared = model_settings()[MODEL]["settings"]
    for healed in (False, True):
        config = case.config(heal=healed, model=MODEL)
        assert (config.run.num_steps, config.run.num_eval) == (5, shared["run"]["num_eval"])
        assert (config.model.name, config.data.tasks, config.data.rewards) == (MODEL, "reviews", ("brief_answer",))
    assert config.loss.log_ratio == "old" and case.config(heal=True).run.num_steps == 77


@pytest.mark.parametrize("name", gl.scenario_names())
def test_every_scenario_keeps_its_cause_and_its_heal(name):
    case = gl.scenario(name)
    ill, healed = (case.config(heal=heal, model=MODEL) for heal in (False, True))
    assert ill.data.tasks == healed.data.tasks == "reviews" and ill.run.num_steps <= 12
    by_rate = any("learning_rate" in change for change in case.heals[0].change)
    assert by_rate or holds(ill, case), "a rate is another one for another model"
    assert not holds(healed, case)
    assert ill.faults == case.config().faults and ill.loss.log_ratio == case.config().loss.log_ratio
    words = case.sizes()[MODEL]
    assert f"{ill.run.num_steps} steps" in words and words.endswith("not tried on this model") == (not case.models)


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """The tiny model in the folder of the pretrained one."""
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path / "cache"))
    shutil.copytree(MODELS["tiny"].path, MODELS[MODEL].path)


SMALL = ("data.tasks=addition", "run.num_steps=2", "run.num_eval=4")


def test_train_takes_the_settings_of_the_model_and_an_explicit_one_wins(call, stand_in, tmp_path):
    words = [word for text in (*SMALL, "run.threads=1") for word in ("--set", text)]
    end = ["--model", MODEL, "--heal", *words, "--out", tmp_path / "run"]
    code, out, _ = call("train", "--scenario", "train-001", *end)
    assert code == 0 and "end: done" in out
    config = Session.open(tmp_path / "run").config
    expected = gl.scenario("train-001").config(heal=True, model=MODEL).with_(*SMALL, "run.threads=1")
    assert config == expected and config.data.num_prompts != 16


@pytest.mark.slow
def test_live_trains_every_column_here(stand_in, tmp_path, capsys):
    child_pool.take().close()  # one that waits since another test knows the cache of before
    page = reproduce_all(tmp_path / "out", SMALL, MODEL, live=True)
    assert "grpo-lab reproduce --model smollm2-135m --live" in page.read_text(encoding="utf-8")
    assert {path.name for path in page.parent.iterdir() if path.is_dir()} == {"-".join(key) for key in KEYS}
    assert model_settings()[MODEL]["recorded"] not in capsys.readouterr().out


def test_live_without_the_model_names_the_way_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"get it with `grpo-lab models fetch smollm2-135m`"):
        reproduce_all(tmp_path / "out", (), MODEL, live=True)
    assert not (tmp_path / "out").exists()


def test_reproduce_shows_the_recordings_without_the_model(call, monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path))
    code, out, _ = call("reproduce", "--model", MODEL, "--out", tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    origin = " ".join(model_settings()[MODEL]["recorded"].split())
    assert code == 0 and origin in " ".join(out.split()) and origin in " ".join(text.split())
    assert "of smollm2-135m and one seed" in text
    figures = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert figures == {"rewards.png", "train-001.png", "cuda-001.png"} and all(name in text for name in figures)
    assert text.count("| healed |") == 2 + 1, "two rows, and the head of the claims"
    assert "A healthy task" not in out + text and "trace cuda-001-smollm2-135m-original" in out
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_dir()]


@pytest.mark.parametrize(("name", "column"), KEYS)
def test_a_recording_was_made_with_the_settings_of_today(name, column):
    assert recorded(name, column).config == config_for(name, column, ("run.threads=1",), MODEL)


@pytest.mark.parametrize("name", scenarios_for(MODEL))
def test_the_recorded_healed_run_learns_and_the_original_does_not(name):
    *others, healed = (outcome(recorded(name, column).events) for column in COLUMNS)
    assert healed.status == "done" and not healed.poisoned and healed.learned is Learned.LEARNED
    for other in others:
        assert other.crash or healed.after > other.after
