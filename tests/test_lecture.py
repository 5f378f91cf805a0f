"""The lecture: its command, its keys and its recordings. What it looks like is tried in tests/browser."""

import json
import os
from html import unescape
from pathlib import Path

import pytest

from grpo_lab.cli import labs as command
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.events import Stepped
from grpo_lab.messages import VARIABLE
from grpo_lab.runs import recordings
from grpo_lab.runs.outcome import Learned, outcome
from grpo_lab.runs.session import Session
from grpo_lab.ui.plots.strip import GROUPS
from grpo_lab.ui.widgets.lecture import HEALTHY, KEYS, SCENARIOS, SPEED, Keyboard, Lecture, recording, training


@pytest.fixture
def told(monkeypatch, tmp_path):
    """What JupyterLab is told by a command in an empty folder."""
    told = []
    monkeypatch.setattr("jupyterlab.labapp.main", lambda argv: told.append(argv))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/of/the/user")
    monkeypatch.chdir(tmp_path)
    return told


@pytest.mark.parametrize(("user", "more"), [(1000, []), (0, ["--allow-root"])], ids=["user", "root in a container"])
def test_the_command_opens_the_notebook_alone(call, told, monkeypatch, tmp_path, user, more):
    (tmp_path / "labs" / "lecture").mkdir(parents=True)
    (tmp_path / "labs" / "lecture" / "lecture.ipynb").touch()
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert call("lecture", "--port", "9000", "--no-browser")[0] == 0
    root, page = f"--ServerApp.root_dir={tmp_path / 'labs' / 'lecture'}", "--LabApp.default_url=/doc/tree/lecture.ipynb"
    assert told == [[root, page, "--ServerApp.port=9000", "--no-browser", *more]]
    ours, users = os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert json.loads(Path(ours, "labconfig", "page_config.json").read_text()) and users == "/of/the/user"


def test_the_lecture_of_an_installed_package_is_opened_as_a_copy_that_is_kept(call, told, monkeypatch, tmp_path):
    package, here = tmp_path / "site-packages" / "grpo_lab", tmp_path / "here"
    for folder in ("data/presets", "labs/lecture"):
        (package / folder).mkdir(parents=True)
    (package / "labs" / "lecture" / "lecture.ipynb").write_text("of the package")
    monkeypatch.setattr("grpo_lab.paths.__file__", str(package / "paths.py"))
    here.mkdir()
    monkeypatch.chdir(here)
    assert call("lecture")[0] == 0 and told[0][0] == f"--ServerApp.root_dir={here / 'work'}"
    copy = here / "work" / "lecture.ipynb"
    assert copy.read_text() == "of the package"
    copy.write_text("saved by JupyterLab")
    call("lecture")
    assert copy.read_text() == "saved by JupyterLab"


def test_without_labs_or_jupyterlab_the_way_out_is_named(call, told, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LECTURE", "of_nobody")
    code, _, said = call("lecture")
    assert code == 2 and str(tmp_path / "labs") in said and "install grpo_lab again" in said
    (tmp_path / "labs" / "of_nobody").mkdir(parents=True)
    (tmp_path / "labs" / "of_nobody" / "of_nobody.ipynb").touch()
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    code, _, said = call("lecture")
    assert code == 1 and "pip install 'grpo-lab[lab]'" in said and told == []


@pytest.fixture
def lecture(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Lecture()


def press(lecture, *keys: str):
    """Press keys, as the browser tells of them."""
    (found,) = (child for child in lecture.widget.children if isinstance(child, Keyboard))
    for key in keys:
        found.press(key)


RUNS = [(HEALTHY, False), *((name, healed) for name in SCENARIOS for healed in (False, True))]


def recorded(name: str, healed: bool = False) -> Session:
    return Session.open(recordings.find(recording(name, healed)))


@pytest.mark.parametrize(("name", "healed"), RUNS)
def test_a_recording_was_made_with_the_settings_that_start_trains(name, healed):
    session = recorded(name, healed)
    assert session.config == training(name, healed)
    assert 0 < len(session.records) / SPEED <= 15, "seconds that it plays"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fails_and_b_learns_by_heal_and_guards_alone(name):
    case = scenario(name)
    healed = training(name).with_(*case.heals[0].change).with_guards(preset("stable").guards)
    assert training(name, healed=True) == healed != training(name)
    a, b = recorded(name), recorded(name, healed=True)
    shown = []
    for session in (a, b):
        steps = [event.metrics for event in session.events if isinstance(event, Stepped)]
        shown.append(case.expect.shown(session.crash.operator if session.crash else "", steps))
    assert shown == [True, False]
    broken = a.first_break()
    assert (broken.link if broken else "") == case.expect.first_break
    now = outcome(b.events)
    assert b.status == "done" and now.learned == Learned.LEARNED and now.after > now.before
    # In bad-batch A ends one problem of 250 below B: clipping bounds what the corrupt sample does to the weights.
    assert a.status == "crashed" or now.after > outcome(a.events).after


def test_the_recordings_are_small_and_no_others_are_left():
    folders = [path for path in recordings.find("lecture-healthy").parent.glob("lecture-*")]
    assert sorted(folder.name for folder in folders) == sorted(recording(*run) for run in RUNS)
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) <= 10_500_000


def test_every_key_shows_its_failure_as_it_happens(lecture):
    for key, name in zip(KEYS, (HEALTHY, *SCENARIOS), strict=True):
        press(lecture, key)
        assert (lecture.name, lecture.healed) == (name, False)
        assert lecture._heal.value == '<div role="status"></div>'
        assert lecture.panel.session.directory.name == f"lecture-{name}"
        assert lecture.panel.config.run.name == ("stable" if name == HEALTHY else name), "what Start would train"


def test_b_draws_the_healed_run_over_the_other_and_a_goes_back(lecture):
    press(lecture, "5", "b")
    assert lecture.panel.session.directory.name == "lecture-cuda-001-healed"
    assert lecture.panel.config == training("cuda-001", healed=True), "Start would train it"
    press(lecture, "A")
    assert lecture.panel.session.directory.name == "lecture-cuda-001" and not lecture.healed
    press(lecture, "0", "b")
    assert lecture.name == HEALTHY and not lecture.healed, "there is nothing to heal"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_b_says_what_stops_the_failure_what_heals_it_and_why(lecture, monkeypatch, language):
    monkeypatch.setenv(VARIABLE, language)
    for key, name in zip(KEYS[1:], SCENARIOS, strict=True):
        press(lecture, key.lower(), "b")
        case = scenario(name)
        *stop, heal, why = unescape(lecture._heal.value).split(" → ")
        assert stop == [] if case.cures[0] == case.heals[0].change else all(each in stop[0] for each in case.cures[0])
        assert all(change in heal for change in case.heals[0].change)
        assert (case.heals[0].why in why) == (language == "en")


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


def test_the_first_screen_of_a_learner_has_one_failure_and_four_links(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_lab.ui.notebook_mode.headless", lambda: False)
    first = Lecture(tmp_path, only="verl-nan-logprob")
    assert not first.widget.children[-1].focused, "Shift + Enter goes on to the next cell"
    assert set("ab AB").issuperset(key for key in first.widget.children[-1].wanted if len(key) == 1)
    figure = first.panel.figure
    figure.draw(*first.panel.screens())
    axes = figure._axes
    assert [label.get_text() for label in axes["strip"].get_yticklabels()][:-1] == list(GROUPS)
    assert "nats" not in axes["kl"].get_title(loc="left")
    first.compare(True)
    assert first.healed and "learns to the end" in first._says.value
    first.panel.timeline.move(60)
    assert first.panel.timeline.screen().status == "done, learned"
