"""What a diagnosis says: text, JSON, HTML, a figure, a comparison, and the callback of TRL's trainer."""

import dataclasses
import json
import sys
import types

import numpy as np
import pandas as pd
import pytest
from transformers import TrainerControl
from typer.testing import CliRunner

import grpo_lab as gl
from grpo_lab import diagnose
from grpo_lab.analysis.diagnosis.layout import WIDTH
from grpo_lab.analysis.diagnosis.report import headline, settings_of
from grpo_lab.cli import app
from grpo_lab.errors import ConfigError
from grpo_lab.ui.plots import diagnosis as figures
from tests.test_diagnosis import CAUSES, CUT, GOOD, NAN, SICK, changed, logged

EXPLOSION = {name.replace("/", "__"): SICK["explosion"][name] for name in ("kl", "grad_norm", "ratio/max", "reward")}
CRASH = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"


def invoke(*arguments, **options):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)], **options)


def rows(curves):
    """Curves as JSON lines."""
    lines = [dict(zip(curves, row, strict=True)) for row in zip(*curves.values(), strict=True)]
    return "\n".join(json.dumps({"step": step, **line}) for step, line in enumerate(lines))


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
    text = diagnose(logged(source, **EXPLOSION)).text("my.log").partition("To try")[2]
    assert all(setting in text for setting in settings) and not [other for other in others if other in text]


def test_lines_are_broken_only_between_words():
    for name, curves in SICK.items():
        text = diagnose(pd.DataFrame(curves)).text()
        assert f"{name}]" in text or CAUSES[name].level == "note"
        long = [line for line in text.split("\n") if len(line) > WIDTH]
        assert all(
            line.lstrip().startswith(("here", "TRL", "verl"))
            or line.startswith(("  0  ", "  from step"))
            or "  " in line.strip()
            for line in long
        ), long


def test_a_warning_is_no_failure_and_a_note_is_no_warning():
    warned = diagnose(pd.DataFrame(SICK["drift"]))
    assert headline(warned).startswith("No failure; a warning: The policy stays far")
    noted = diagnose(pd.DataFrame(SICK["noise-in-the-passes"]))
    assert (
        headline(noted) == "Nothing wrong in the logged metrics."
        and "Noted from step 0\n  The KL is not 0" in noted.text()
    )


def test_too_little_is_said_with_what_to_log():
    text = diagnose([{"reward": 0.1}]).text()
    assert "Not enough to judge" in text and "Nothing wrong" not in text and "two of grad_norm" in text


def test_earlier_runs_and_the_crash_are_named():
    last = dataclasses.replace(
        diagnose(logged("trl", crash=CRASH)), earlier=(diagnose(pd.DataFrame(SICK["nan-reward"])),)
    )
    text = last.text("both.log")
    assert "run 1 of 2 in this log: A reward is NaN" in text and f"crash: {CRASH}" in text
    assert last.tree()["earlier"][0]["verdict"] == "nan-reward" and last.tree()["log"]["crash"] == CRASH


def test_html_has_its_headings_in_the_language(monkeypatch):
    english = diagnose([{"reward": 0.1}])._repr_html_()
    monkeypatch.setenv("GRPO_LAB_LANG", "zh")
    for log, words in (
        ([{"reward": 0.1}], ["信息不足", "完整的诊断"]),
        (logged("trl", **EXPLOSION), ["可疑原因", "可尝试", "健康范围", "自第 "]),
    ):
        shown = diagnose(log)._repr_html_()
        assert all(each in shown for each in words), shown
        assert "Suspects" not in shown.partition("<details>")[0] and "whole diagnosis" not in shown
    assert "Not enough to judge" in english


def test_html_is_escaped_and_complete():
    log = dataclasses.replace(logged("trl", **EXPLOSION), notes=("<script>",))
    shown = diagnose(log)._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    for part in ("The norm and the KL explode", "<table>", "learning_rate", "<details>"):
        assert part in shown
    assert "two of grad_norm" in diagnose([{"reward": 0.1}])._repr_html_()


def test_json_of_every_rule_is_plain():
    for curves in SICK.values():
        tree = json.loads(json.dumps(diagnose(pd.DataFrame(curves)).tree(), allow_nan=False))
        first = tree["findings"][0]
        assert len(first["suspects"]) == len(first["suspect_names"]) > 0 and first["level"] in (
            "failure",
            "warning",
            "note",
        )


def test_command_reads_stdin_and_two_logs(tmp_path):
    good, sick = tmp_path / "good.jsonl", tmp_path / "sick.jsonl"
    good.write_text(rows(GOOD))
    sick.write_text(rows(SICK["reward-broke"]))
    assert "reward-broke" in invoke("-", input=sick.read_text()).stdout
    shown = invoke(good, sick)
    assert shown.exit_code == 0 and "good.jsonl: Nothing wrong" in shown.stdout and "step 5, in reward" in shown.stdout
    tree = json.loads(invoke(good, sick, "--json").stdout)
    assert tree["verdicts"] == ["healthy", "reward-broke"] and tree["parting"] == {"step": 5, "metric": "reward"}
    assert invoke(good, tmp_path / "none").exit_code != 0


def test_comparison():
    slow, fast = (
        logged("trl", {"learning_rate": rate, "beta": 0.04, "output_dir": str(rate)}) for rate in (1e-5, 1e-3)
    )
    found = diagnose(slow).compare(diagnose(fast))
    assert found.settings == {"learning_rate": (1e-5, 1e-3)} and found.parting is None
    assert (
        "learning_rate  1e-05  0.001" in " ".join(found.text().split()).replace(" ", "  ")
        and "No curve parts" in found.text()
    )
    broken = diagnose(logged("trl", grad_norm=[1.2, 1.5, 1.1, 1.4, *[NAN] * 6]))
    assert diagnose(slow).compare(broken).parting == (4, "grad_norm")
    assert np.isnan(diagnose(slow).compare(broken).levels["grad_norm"][1].largest)


def test_figure_draws_evidence_and_marks_what_is_not_finite(tmp_path):
    found = diagnose(pd.DataFrame(changed(CUT, kl=[0, 200, 5000, NAN], loss=(3, NAN), grad_norm=(3, NAN))))
    figure = figures.figure(found)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[0].startswith("loss: the loss is not finite") and any(title.startswith("kl") for title in titles)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert np.asarray(crosses[0].get_xdata()).tolist() == [3]
    assert figures.in_words(found).startswith("Numbers grew until they overflowed")
    for curves in (GOOD, {"reward": [0.1]}, {"nothing": [1.0]}):
        assert figures.figure(diagnose(pd.DataFrame(curves))) is not None
    (tmp_path / "log.jsonl").write_text(rows(SICK["explosion"]))
    shown = invoke(tmp_path / "log.jsonl", "--plot", tmp_path / "evidence.png")
    assert shown.exit_code == 0 and (tmp_path / "evidence.png").read_bytes().startswith(b"\x89PNG")
    refused = invoke(tmp_path / "log.jsonl", "--plot", tmp_path / "evidence.svg").exception
    assert isinstance(refused, ConfigError) and "ends in .png" in str(refused)


def test_evidence_shows_the_last_value_and_a_crash_none(tmp_path):
    drift = diagnose(pd.DataFrame(SICK["drift"])).findings[0].evidence[0]
    assert (drift.value, drift.last) == (1.2, 2.0)
    (tmp_path / "train.log").write_text("Traceback (most recent call last):\nRuntimeError: probability tensor is nan\n")
    crashed = diagnose(tmp_path / "train.log")
    assert "objective" not in crashed.text() and crashed.findings[0].suspects[0].name == "weights"
    refused = invoke(tmp_path / "train.log", "--plot", tmp_path / "evidence.png").exception
    assert isinstance(refused, ConfigError) and "no metric to draw" in str(refused)


def test_a_comparison_names_the_suspects_of_the_run_that_failed():
    both = diagnose(pd.DataFrame(GOOD)).compare(diagnose(pd.DataFrame(SICK["penalty-rules"])))
    assert "\n  1. a KL weight (beta)" in both.text()


def test_the_figure_of_two_runs_draws_both_and_shows_the_evidence_of_the_one_that_failed():
    healthy = diagnose(pd.DataFrame(GOOD))
    broken = diagnose(pd.DataFrame(changed(CUT, kl=[0, 200, 5000, NAN], loss=(3, NAN), grad_norm=(3, NAN))))
    figure = figures.figure(healthy, broken, names=("mine", "other"))
    loss = figure.axes[0]
    curves = [line for line in loss.lines if line.get_marker() not in ("x", None, "None")]
    assert loss.get_title(loc="left").startswith("loss: the loss is not finite") and len(curves) == 2
    assert [text.get_text() for text in figure.legends[0].texts] == ["A is mine", "B is other"]
    assert figures.in_words(healthy, broken, names=("mine", "other")).startswith("A: Nothing wrong")


def trainer(curves, step):
    """What TRL's trainer hands to a callback after a step."""
    lines = [json.loads(line) for line in rows({name: values[:step] for name, values in curves.items()}).split("\n")]
    state = types.SimpleNamespace(global_step=step, log_history=lines, is_world_process_zero=True)
    return types.SimpleNamespace(
        to_dict=lambda: {"learning_rate": 1e-2, "model_init_kwargs": {"dtype": "float32"}}
    ), state


def test_callback_says_what_is_new_and_stops():
    said = []
    callback, control = gl.DiagnoseCallback(every=2, stop_on_failure=True, say=said.append), TrainerControl()
    for step in range(1, 11):
        callback.on_log(*trainer(SICK["reward-broke"], step), control)
    assert [line.partition(":")[0] for line in said] == [f"step {step}" for step in range(2, 11, 2)]
    assert said[0] == "step 2: Not enough to judge" and said[-1].startswith("step 10: The reward broke")
    assert control.should_training_stop and callback.diagnosis is not None
    assert callback.diagnosis.log.settings["model_init_kwargs.dtype"] == "float32"
    callback.on_train_end(*trainer(SICK["reward-broke"], 10), control)
    assert "Suspects, the most likely first" in said[-1]


def test_callback_speaks_the_language_of_its_user(monkeypatch):
    monkeypatch.setenv("GRPO_LAB_LANG", "zh")
    said = []
    callback = gl.DiagnoseCallback(every=10, say=said.append)
    callback.on_log(*trainer(SICK["reward-broke"], 10), TrainerControl())
    callback.on_train_end(*trainer(SICK["reward-broke"], 10), TrainerControl())
    assert said[0].startswith("第 10 步：奖励") and "可疑原因" in said[1] and "step" not in said[1].partition("\n")[0]


@pytest.mark.parametrize("cause", SICK)
def test_every_line_stays_within_the_columns(cause):
    found = gl.diagnose(pd.DataFrame(SICK[cause]))
    kept = [setting for remedy in found.findings[0].remedies for _, setting in settings_of(remedy, found.log.source)]
    lines = [line for line in found.text().splitlines() if line != headline(found) and not line.endswith(tuple(kept))]
    assert max(map(len, lines)) <= WIDTH


class Trainer:
    """A trainer whose training raises."""

    def __init__(self, callback):
        self.callback_handler = types.SimpleNamespace(callbacks=[callback])

    def train(self):
        (callback,) = self.callback_handler.callbacks
        callback.on_train_begin(*trainer(GOOD, 1), TrainerControl())
        callback.on_log(*trainer(GOOD, 8), TrainerControl())
        raise ValueError("bad reward")


def error_of(raising):
    with pytest.raises(ValueError, match="bad") as caught:
        raising()
    return caught.value


def test_callback_reports_a_training_that_raises(monkeypatch):
    said = []

    def hook(*error):
        said.append("traceback")

    monkeypatch.setattr(sys, "excepthook", hook)
    callback, control = gl.DiagnoseCallback(every=5, say=said.append), TrainerControl()
    error = error_of(Trainer(callback).train)
    sys.excepthook(ValueError, error, error.__traceback__)
    assert said[-2] == "traceback" and "crash: ValueError: bad reward" in said[-1]
    assert "Not enough to judge" in said[-1] and sys.excepthook is hook
    callback.on_train_begin(*trainer(GOOD, 1), control)
    callback.on_train_end(*trainer(GOOD, 10), control)
    assert sys.excepthook is hook


def test_callback_leaves_an_exception_after_a_caught_one_alone(monkeypatch):
    said, hook = [], lambda *error: said.append("traceback")
    monkeypatch.setattr(sys, "excepthook", hook)
    error_of(Trainer(gl.DiagnoseCallback(every=100, say=said.append)).train)  # and a program goes on
    error = error_of(lambda: int("bad"))
    sys.excepthook(ValueError, error, error.__traceback__)
    assert said == ["traceback"] and sys.excepthook is hook


def test_callback_says_as_much_in_a_second_training():
    said = []
    callback, control = gl.DiagnoseCallback(every=5, say=said.append), TrainerControl()
    for _ in range(2):
        callback.on_train_begin(None, types.SimpleNamespace(global_step=0), control)
        assert callback.diagnosis is None
        for step in range(1, 11):
            callback.on_log(*trainer(GOOD, step), control)
        callback.on_train_end(*trainer(GOOD, 10), control)
    assert [line.partition(":")[0] for line in said] == 2 * ["step 5", "step 10"]


def test_callback_is_quiet_about_a_healthy_run():
    said = []
    callback, control = gl.DiagnoseCallback(every=5, say=said.append), TrainerControl()
    for step in range(1, 11):
        callback.on_log(*trainer(GOOD, step), control)
    callback.on_train_end(*trainer(GOOD, 10), control)
    assert (
        said == ["step 5: Not enough to judge", "step 10: Nothing wrong in the logged metrics."]
        and not control.should_training_stop
    )
    with pytest.raises(ConfigError, match="every=0"):
        gl.DiagnoseCallback(every=0)


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
