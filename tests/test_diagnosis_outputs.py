"""What a diagnosis says: text, JSON, HTML, a figure, a comparison, the command, and the callback of TRL's trainer."""

import dataclasses
import json
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from transformers import TrainerControl
from typer.testing import CliRunner

import grpo_lab as gl
from grpo_lab import diagnose
from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis.report import WIDTH, Number, Words, settings_of, width, wrapped
from grpo_lab.analysis.logs.table import fact
from grpo_lab.cli import app
from grpo_lab.errors import ConfigError
from grpo_lab.ui.plots import diagnosis as figures

LOGS = {path.stem: path for path in (Path(__file__).parent / "logs" / "causes").glob("*.csv")}
VERL = Path(__file__).parent / "logs" / "verl-spike" / "spike.log"
CRASH = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"


def log_of(name, **fields):
    """The log that shows a cause, with other fields, such as another source."""
    return dataclasses.replace(logs.read(LOGS[name]), **fields)


def invoke(*arguments, **options):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)], **options)


@pytest.mark.parametrize(
    ("source", "settings", "others"),
    [
        ("trl", ["TRL   learning_rate"], ["optimizer.learning_rate", "actor_rollout_ref"]),
        ("verl", ["verl  actor_rollout_ref.actor.optim.lr"], ["optimizer.learning_rate", "TRL"]),
        ("grpo_lab", ["here  optimizer.learning_rate=*0.1"], ["actor_rollout_ref", "TRL"]),
        ("", ["here  optimizer", "TRL   learning_rate", "verl  actor_rollout_ref"], []),
    ],
)
def test_remedies_are_in_the_words_of_the_trainer(source, settings, others):
    text = diagnose(log_of("explosion", source=source)).text("my.log").partition("To try")[2]
    assert all(setting in text for setting in settings) and not [other for other in others if other in text]


@pytest.mark.parametrize("name", sorted(LOGS))
def test_text_and_json_of_every_rule(name):
    """Lines are broken between words, but for settings; the JSON holds no NaN, and the evidence the suspects."""
    found = diagnose(LOGS[name])
    word, remedies = Words("en"), [remedy for each in found.findings for remedy in each.remedies]
    settings = [own for remedy in remedies for _, own in settings_of(remedy, found.log.source, word)]
    lines = [
        line for line in found.text().splitlines() if line != found.headline() and not line.endswith(tuple(settings))
    ]
    assert max(map(width, lines)) <= WIDTH
    tree = json.loads(json.dumps(found.tree(), allow_nan=False))
    assert tree["verdict"] == found.verdict and tree["log"]["format"] == "CSV"
    for each in tree["findings"]:
        assert len(each["suspects"]) == len(each["suspect_names"]) > 0
        assert each["level"] in ("failure", "warning", "note")


def test_a_warning_is_no_failure_and_a_note_is_no_warning():
    assert diagnose(LOGS["drift"]).headline().startswith("No failure; a warning: The policy stays far")
    noted = diagnose(LOGS["noise-in-the-passes"])
    assert noted.headline() == "Nothing wrong in the logged metrics."
    assert "Noted from step 0\n  The KL is not 0" in noted.text()


def test_earlier_runs_and_the_crash_are_named():
    last = diagnose(log_of("healthy", source="trl", crash=CRASH))
    last = dataclasses.replace(last, earlier=(diagnose(LOGS["nan-reward"]),))
    text = last.text("both.log")
    assert "run 1 of 2 in this log: Reward" in text and "A reward is NaN" in text and f"crash: {CRASH}" in text
    assert last.tree()["earlier"][0]["verdict"] == "nan-reward" and last.tree()["log"]["crash"] == CRASH


def test_a_run_that_has_hardly_begun_does_not_hide_a_longer_one(tmp_path):
    rows = [{"step": step, "reward": 0.1 + 0.05 * step, "kl": 0.01 * step} for step in range(1, 13)]
    path = tmp_path / "log.jsonl"
    for begun, number in ((4, 1), (5, 2), (12, 2)):
        path.write_text("\n".join(json.dumps(row) for row in rows + rows[:begun]), encoding="utf-8")
        found = diagnose(path)
        other = len(rows) if number == 2 else begun
        assert (found.number, len(found.log.steps), len(found.earlier[0].log.steps)) == (
            number,
            12 if number == 1 else begun,
            other,
        )
        assert f"run {3 - number} of 2 in this log: Reward" in found.text()


def test_html_is_escaped_and_complete_in_each_language(monkeypatch):
    log = log_of("explosion", source="trl", notes=(fact("bad_settings", file="<script>", why=""),))
    shown = diagnose(log)._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    for part in ("The norm and the KL explode", "<table>", "learning_rate", "<details>"):
        assert part in shown
    little = diagnose([{"reward": 0.1}])
    assert "Not enough to judge" in little._repr_html_() and "log more of grad_norm" in little._repr_html_()
    monkeypatch.setenv("GRPO_LAB_LANG", "zh")
    for found, words in (
        (little, ["信息不足", "完整的诊断"]),
        (diagnose(log), ["可疑原因", "可尝试", "健康范围", "自第 "]),
    ):
        shown = found._repr_html_()
        assert all(each in shown for each in words), shown
        assert "Suspects" not in shown.partition("<details>")[0] and "whole diagnosis" not in shown


def test_comparison():
    slow, fast = (
        diagnose(log_of("healthy", settings={"learning_rate": rate, "beta": 0.04, "output_dir": str(rate)}))
        for rate in (1e-5, 1e-3)
    )
    found = slow.compare(fast)
    assert found.settings == {"learning_rate": (1e-5, 1e-3)} and found.parting is None
    assert "learning_rate 1e-05 0.001" in " ".join(found.text().split()) and "No curve parts" in found.text()
    broken = diagnose(log_of("broken-from-the-start"))
    assert slow.compare(broken).parting == (0, "grad_norm")
    assert np.isnan(slow.compare(broken).levels["grad_norm"][1].largest)
    assert "\n  1. a KL weight (beta)" in slow.compare(diagnose(LOGS["penalty-rules"])).text()


def test_figure_draws_evidence_and_marks_what_is_not_finite():
    found = diagnose(LOGS["overflow"])
    figure = figures.figure(found)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[0].startswith("loss: the loss is not finite") and any(title.startswith("kl") for title in titles)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert np.asarray(crosses[0].get_xdata()).tolist() == [3]
    for curves in ({"reward": [0.1]}, {"nothing": [1.0]}):
        assert figures.figure(diagnose(pd.DataFrame(curves))) is not None


def test_the_figure_of_two_runs_draws_both_and_shows_the_evidence_of_the_one_that_failed():
    healthy, broken = diagnose(LOGS["healthy"]), diagnose(LOGS["overflow"])
    figure = figures.figure(healthy, broken, names=("mine", "other"))
    loss = figure.axes[0]
    curves = [line for line in loss.lines if line.get_marker() not in ("x", None, "None")]
    assert loss.get_title(loc="left").startswith("loss: the loss is not finite") and len(curves) == 2
    assert [text.get_text() for text in figure.legends[0].texts] == ["A is mine", "B is other"]


# The command


def test_command():
    shown = invoke(VERL)
    assert shown.exit_code == 0
    for said in (
        "a console, 12 steps",
        "One batch spiked",
        "bad-batch",
        "38",
        "actor_rollout_ref.actor.grad_clip",
    ):
        assert said in shown.stdout
    tree = json.loads(invoke(VERL, "--json").stdout)
    assert tree["verdict"] == "bad-batch" and tree["findings"][0]["evidence"][0]["value"] == 38.0
    assert tree["findings"][0]["remedies"][0]["here"] == "guards.skip_spikes=on"


def test_command_on_a_log_that_begins_late(tmp_path):
    (tmp_path / "late.log").write_text("step:34 - actor/grad_norm:0.13 - actor/kl_loss:0.5")
    shown = " ".join(invoke(tmp_path / "late.log").stdout.split())
    for said in ("1 step (34 to 34)", "most curves show no trend yet", "kl, grad_norm (the log begins at step 34)"):
        assert said in shown


def test_command_reads_stdin_and_two_logs(tmp_path):
    good, sick = LOGS["healthy"], LOGS["reward-broke"]
    assert "reward-broke" in invoke("-", input=sick.read_text()).stdout
    shown = invoke(good, sick)
    assert shown.exit_code == 0 and "healthy.csv: Nothing wrong" in shown.stdout and "step 5, in reward" in shown.stdout
    tree = json.loads(invoke(good, sick, "--json").stdout)
    assert tree["verdicts"] == ["healthy", "reward-broke"] and tree["parting"] == {"step": 5, "metric": "reward"}
    assert invoke(good, tmp_path / "none").exit_code != 0


def test_command_draws_the_evidence(tmp_path):
    shown = invoke(LOGS["explosion"], "--plot", tmp_path / "evidence.png")
    assert shown.exit_code == 0 and (tmp_path / "evidence.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "train.log").write_text(f"Traceback (most recent call last):\n{CRASH}\n")
    for log, plot, said in ((LOGS["healthy"], "evidence.jpg", ".png"), (tmp_path / "train.log", "a.png", "no metric")):
        refused = invoke(log, "--plot", tmp_path / plot).exception
        assert isinstance(refused, ConfigError) and said in str(refused)


# The callback


CURVES = {name: logs.read(LOGS[name]).metrics for name in ("healthy", "reward-broke")}


def trainer(name, step):
    """What TRL's trainer hands to a callback after a step of a run with these curves."""
    columns = {metric: curve.tolist() for metric, curve in CURVES[name].items()}
    rows = [{"step": each, **{metric: curve[each] for metric, curve in columns.items()}} for each in range(step)]
    state = types.SimpleNamespace(global_step=step, log_history=rows, is_world_process_zero=True)
    settings = {"learning_rate": 1e-2, "model_init_kwargs": {"dtype": "float32"}}
    return types.SimpleNamespace(to_dict=lambda: settings), state


def train(callback, name, steps=10):
    """Ten steps as a trainer makes them; the control of the last one."""
    control = TrainerControl()
    callback.on_train_begin(*trainer(name, 0), control)
    for step in range(1, steps + 1):
        callback.on_log(*trainer(name, step), control)
    callback.on_train_end(*trainer(name, steps), control)
    return control


def test_callback_says_what_it_sees_and_stops_in_each_training():
    said = []
    callback = gl.DiagnoseCallback(every=2, stop_on_failure=True, say=said.append)
    for training in range(2):
        assert train(callback, "reward-broke").should_training_stop
        lines = said[6 * training : 6 * training + 6]
        assert [line.partition(":")[0] for line in lines[:5]] == [f"step {step}" for step in range(2, 11, 2)]
        assert lines[0] == "step 2: Not enough to judge" and lines[4].startswith("step 10: The reward broke")
        assert "Suspects, the most likely first" in lines[5]
    assert callback.diagnosis and callback.diagnosis.log.settings["model_init_kwargs.dtype"] == "float32"


def test_callback_speaks_the_language_of_its_user(monkeypatch):
    monkeypatch.setenv("GRPO_LAB_LANG", "zh")
    said = []
    train(gl.DiagnoseCallback(every=10, say=said.append), "reward-broke")
    assert said[0].startswith("第 10 步：奖励") and "可疑原因" in said[1] and "step" not in said[1].partition("\n")[0]


def test_callback_is_quiet_about_a_healthy_run():
    said = []
    assert not train(gl.DiagnoseCallback(every=5, say=said.append), "healthy").should_training_stop
    assert said == ["step 5: Not enough to judge", "step 10: Nothing wrong in the logged metrics."]
    with pytest.raises(ConfigError, match="every=0"):
        gl.DiagnoseCallback(every=0)


class Trainer:
    """A trainer whose training raises."""

    def __init__(self, callback):
        self.callback_handler = types.SimpleNamespace(callbacks=[callback])

    def train(self):
        (callback,) = self.callback_handler.callbacks
        callback.on_train_begin(*trainer("healthy", 1), TrainerControl())
        callback.on_log(*trainer("healthy", 8), TrainerControl())
        raise ValueError("bad reward")


def error_of(raising):
    with pytest.raises(ValueError, match="bad") as caught:
        raising()
    return caught.value


@pytest.fixture
def hook(monkeypatch):
    """The hook of a program for exceptions that end it, which notes that it showed a traceback."""
    said = []

    def shown(*error):
        said.append("traceback")

    monkeypatch.setattr(sys, "excepthook", shown)
    return shown, said


def test_callback_reports_a_training_that_raises(hook):
    shown, said = hook
    callback = gl.DiagnoseCallback(every=5, say=said.append)
    error = error_of(Trainer(callback).train)
    sys.excepthook(ValueError, error, error.__traceback__)
    assert said[-2] == "traceback" and "crash: ValueError: bad reward" in said[-1]
    assert "the run ended in ValueError: bad reward" in said[-1] and sys.excepthook is shown
    train(callback, "healthy")
    assert sys.excepthook is shown


def test_callback_leaves_an_exception_after_a_caught_one_alone(hook):
    shown, said = hook
    error_of(Trainer(gl.DiagnoseCallback(every=100, say=said.append)).train)  # and a program goes on
    error = error_of(lambda: int("bad"))
    sys.excepthook(ValueError, error, error.__traceback__)
    assert said == ["traceback"] and sys.excepthook is shown


@pytest.mark.trl
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # TRL sets it itself
def test_callback_in_a_trainer_of_trl(tmp_path):
    pytest.importorskip("trl")
    from benchmarks.diagnosis import recipes, trl_runs

    run = dataclasses.replace(trl_runs.spec("rate-too-high-no-kl", 300), steps=20)
    made, callback = recipes.trainer(run, 300, tmp_path), gl.DiagnoseCallback(every=5, say=lambda text: None)
    made.add_callback(callback)
    made.train()
    assert callback.diagnosis and callback.diagnosis.findings
    assert callback.diagnosis.log.settings["beta"] == 0.0


def test_what_began_before_the_cause_is_no_consequence():
    """Groups without spread from step 4 on, and a reward that falls at the end."""
    spread = {"frac_reward_zero_std": [0.2] * 4 + [0.9, 1.0] * 13, "entropy": [0.3] * 4 + [0.02] * 26}
    rows = pd.DataFrame({"reward": [0.85 - 0.015 * step + 0.04 * (step % 2) for step in range(30)], **spread})
    found = diagnose(rows)
    assert found.verdict == "reward-collapse" and found.named[0].suspects[0].name == "lost-diversity"
    assert "Also found, and before it:" in found.text() and "consequence" not in found.text()
    later = diagnose(rows.assign(frac_reward_zero_std=[0.2] * 25 + [0.9] * 5, entropy=0.3))
    assert later.verdict == "reward-collapse" and "and before it" not in later.text()


def test_numbers_words_and_lines_of_a_sentence():
    assert [f"{Number(value)}" for value in (17098.2, 0.06361, 1e-9)] == ["17,098", "0.064", "0"]
    assert [Words(language)("tell_apart") for language in ("en", "zh")] == ["To tell them apart", "如何区分"]
    assert wrapped("one two", 2, "1. ") == ["  1. one two"]
    assert fact("begins_at", step=7).said() == "the log begins at step 7"
