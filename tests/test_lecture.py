"""The lecture: its command, its keys and its recordings. What it looks like is tried in tests/browser."""

import json
import os
import sys
from pathlib import Path

import pytest

from grpo_lab import cli
from grpo_lab.cli import jupyterlab as command
from grpo_lab.runs import recordings
from grpo_lab.runs.session import Session
from grpo_lab.ui.widgets.keyboard import Keyboard
from grpo_lab.ui.widgets.lecture import GUARDED, HEALTHY, SCENARIOS, Lecture


@pytest.fixture
def lecture_command(monkeypatch, tmp_path, capsys):
    """`grpo-lab lecture …` in an empty folder: what JupyterLab was told, exit code, standard error."""
    told = []
    monkeypatch.setattr("jupyterlab.labapp.main", lambda argv: told.append(argv))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/of/the/user")
    monkeypatch.chdir(tmp_path)

    def run(*words: str):
        monkeypatch.setattr(sys, "argv", ["grpo-lab", "lecture", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return told, end.value.code, capsys.readouterr().err

    return run


def test_the_command_opens_the_notebook_alone(lecture_command, tmp_path):
    (tmp_path / "labs").mkdir()
    (tmp_path / "labs" / "lecture.ipynb").touch()
    told, code, _ = lecture_command("--port", "9000", "--no-browser")
    assert not code
    root, page = f"--ServerApp.root_dir={tmp_path / 'labs'}", "--LabApp.default_url=/doc/tree/lecture.ipynb"
    assert told == [[root, page, "--ServerApp.port=9000", "--no-browser"]]
    ours, users = os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert json.loads(Path(ours, "labconfig", "page_config.json").read_text()) and users == "/of/the/user"


def test_root_in_a_container_may_open_it(lecture_command, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (told,), code, _ = lecture_command("--no-browser")
    assert not code and told[-1] == "--allow-root"


def test_the_checkout_has_the_notebook(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert command.lecture_notebook() == Path(cli.__file__).parents[2] / "labs" / "lecture.ipynb"


def test_without_labs_or_jupyterlab_the_way_out_is_named(lecture_command, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LECTURE", Path("labs/of_nobody.ipynb"))
    told, code, said = lecture_command()
    assert (told, code) == ([], 1)
    assert said.startswith(f"error: no labs/of_nobody.ipynb in {tmp_path} or ") and "checkout" in said
    (tmp_path / "labs").mkdir()
    (tmp_path / "labs" / "of_nobody.ipynb").touch()
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    told, code, said = lecture_command()
    assert (told, code) == ([], 1)
    assert "pip install 'grpo-lab[lab]'" in said


def test_a_key_does_what_it_is_for():
    done = []
    keys = Keyboard({"1": lambda: done.append("one"), " ": lambda: done.append("play")}, [("1", "first")], "frame")
    keys._receive(keys, {"key": "1"}, [])
    keys._receive(keys, {"key": " "}, [])
    keys._receive(keys, {"key": "x"}, [])
    assert done == ["one", "play"]
    assert keys.wanted == ["1", " "]


@pytest.fixture
def lecture(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Lecture()


def press(lecture, *keys: str):
    """Press keys, as the browser tells of them."""
    (found,) = (child for child in lecture.widget.children if isinstance(child, Keyboard))
    for key in keys:
        found.press(key)


@pytest.mark.parametrize("name", SCENARIOS)
def test_recordings_of_a_failure_differ_in_their_guards_alone(name):
    as_it_happens, guarded = (Session.open(recordings.find(f"lecture-{each}")) for each in (name, f"{name}-{GUARDED}"))
    assert as_it_happens.config.with_guards({}) == guarded.config.with_guards({})
    assert as_it_happens.config.run.name == name
    assert set(guarded.config.guards) == {"warm_up", "representable_epsilon", "clamp_kl", "skip_nonfinite"}


def test_every_key_shows_its_failure_as_it_happens(lecture):
    for number, name in enumerate((HEALTHY, *SCENARIOS)):
        press(lecture, str(number))
        assert (lecture.name, lecture.guarded) == (name, False)
        assert lecture.panel.session.directory.name == f"lecture-{name}"
        assert lecture.panel.config.run.name == ("stable" if name == HEALTHY else name), "what Start would train"


def test_b_draws_the_guarded_run_over_the_other_and_a_goes_back(lecture):
    press(lecture, "5", "b")
    assert lecture.panel.session.directory.name == "lecture-cuda-001-stable"
    assert set(lecture.panel.config.guards) == {"warm_up", "representable_epsilon", "clamp_kl", "skip_nonfinite"}
    press(lecture, "A")
    assert lecture.panel.session.directory.name == "lecture-cuda-001" and not lecture.guarded
    press(lecture, "0", "b")
    assert lecture.name == HEALTHY and not lecture.guarded, "there is nothing to guard"


def test_space_plays_and_pauses_and_arrows_go_by_steps(lecture):
    timeline = lecture.panel.timeline
    press(lecture, "8")
    assert timeline.playing and timeline.position == 0
    press(lecture, " ", "End", "ArrowLeft")
    assert not timeline.playing and timeline.position == timeline.length - 1
    press(lecture, "ArrowRight", "ArrowRight")
    assert timeline.position == timeline.length
    press(lecture, "Home")
    assert timeline.position == 0
    press(lecture, " ", "r")
    assert lecture.name == HEALTHY


def test_a_failure_of_ones_own_is_trained_live(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    lecture = Lecture(["kl-hinge"])
    press(lecture, "1", "9")
    assert lecture.name == "kl-hinge" and lecture.panel.config.run.name == "kl-hinge"
    assert "Train live" in lecture._says.value
