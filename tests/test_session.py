"""A run's folder is whole and can be read again, whatever ended the run; views and signals cannot harm it."""

import json
import os
import resource
import signal
import threading
import time

import pytest

from grpo_lab.config.catalog import preset, scenario
from grpo_lab.errors import RunError
from grpo_lab.events import Ended, Stepped, to_json
from grpo_lab.models import loading
from grpo_lab.runs import run_folder
from grpo_lab.runs.commands import CommandQueue
from grpo_lab.runs.session import AT_ONCE, BY_THE_USER, Session
from tests.steps import Calls

SMOKE = preset("smoke").with_("run.threads=1")


def session_with(view, directory, *overrides, **more):
    session = Session(SMOKE.with_(*overrides), directory, **more)
    session.views.append(view)
    return session


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return Session(SMOKE, tmp_path_factory.mktemp("done") / "run", save_model=True).run()


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    config = scenario("fp16-adam-epsilon").config().with_("run.threads=1", "data.num_prompts=2")
    with pytest.warns(UserWarning, match="not saved: .* not finite"):
        return Session(config, tmp_path_factory.mktemp("crashed") / "run", save_model=True).run()


@pytest.fixture
def copy(done, tmp_path):
    """A run folder to damage."""
    for name in (run_folder.CONFIG, run_folder.EVENTS):
        (tmp_path / name).write_bytes((done.directory / name).read_bytes())
    return tmp_path


def lines(session):
    """Its events as text: NaN is not equal to itself, and JSON knows no tuples."""
    return [to_json(event) for event in session.events]


def kinds(session):
    return [type(event).__name__ for event in session.events]


def test_runs_of_one_name_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    """Two processes chose the same free name before either had made its folder; the later one failed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder.time, "strftime", lambda _: "20261122-120000")
    one, other = Session(SMOKE), Session(SMOKE)
    assert one.directory == other.directory and not one.directory.exists()
    assert one.run().directory != other.run().directory
    for session in (one, other):
        assert Session.open(session.directory).status == "done"


def test_the_folder_holds_config_environment_and_events(done):
    lines = (done.directory / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["Started", "Stepped", "Stepped", "Stepped", "Ended"]
    assert json.loads((done.directory / "config.json").read_text())["run"]["name"] == "smoke"
    assert json.loads((done.directory / "environment.json").read_text())["threads"] == 1
    assert done.status == "done" and done.crash is None and done.first_break() is None


def test_an_opened_run_is_the_same(done, crashed):
    for session in (done, crashed):
        again = Session.open(session.directory)
        assert lines(again) == lines(session)
        assert (again.config, again.status, again.crash) == (session.config, session.status, session.crash)
        assert (again.first_break(), again.saved_model) == (session.first_break(), session.saved_model)


def test_a_crash_is_an_ending(crashed):
    assert crashed.status == "crashed" and crashed.crash.operator == "torch.multinomial"
    assert crashed.first_break().link == "weights"
    assert "RuntimeError" in (crashed.directory / "traceback.txt").read_text()
    assert crashed.saved_model is None and not list(crashed.directory.glob("model*"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", None, "holds no run: config.json is missing"),
        ("config.json", b"[]", "damaged"),
        ("config.json", b'{"loss": {"epsilon": -1}}', "damaged: loss.epsilon = -1"),
        ("events.jsonl", b"\xff\xfe", "damaged"),
        ("events.jsonl", b'{"event": "Evaluated"}\n{"event": "End', r"events.jsonl:1: not an event.*delete that line"),
    ],
)
def test_a_damaged_run_is_refused_in_a_sentence(copy, name, text, message):
    (copy / name).unlink() if text is None else (copy / name).write_bytes(text)
    with pytest.raises(RunError, match=message) as caught:
        Session.open(copy)
    assert str(copy) in str(caught.value)


def test_a_folder_with_a_run_is_refused_and_left_alone(copy):
    before = (copy / "events.jsonl").read_bytes()
    with pytest.raises(RunError, match="already holds a run"):
        Session(SMOKE, copy).run()
    assert (copy / "events.jsonl").read_bytes() == before


def test_a_full_disk_leaves_earlier_events_whole(tmp_path):
    """A limit on file sizes fails the write half-way, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event):
        size = (tmp_path / "run" / "events.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))

    try:
        with pytest.raises(RunError, match=r"cannot be written after 1 steps.*room"):
            session_with(Calls(fill, Stepped), tmp_path / "run").run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    text = (tmp_path / "run" / "events.jsonl").read_text()
    assert not text.endswith("\n") and kinds(Session.open(tmp_path / "run")) == ["Started", "Stepped"]


def test_a_view_that_raises_is_left_out_once(tmp_path):
    shown = []

    def fail(event):
        raise ValueError("no screen")

    session = session_with(Calls(fail), tmp_path / "run")
    session.views.append(Calls(shown.append))
    with pytest.warns(UserWarning, match="Calls failed and was left out: ValueError") as warned:
        session.run()
    assert len(warned) == 1 and session.status == "done" and shown == session.events


def interrupt(event):
    if event.step == 1:
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_after_the_step_with_healthy_weights(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    session = session_with(Calls(interrupt, Stepped), tmp_path / "run", "run.num_steps=50", save_model=True).run()
    assert session.ended == Ended("stopped", BY_THE_USER) and len(session.records) == 2
    assert session.saved_model and loading.load(str(session.saved_model))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    def twice(event):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    session = session_with(Calls(twice, Stepped), tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        session.run()
    assert session.ended == Ended("stopped", AT_ONCE) == Session.open(session.directory).ended


def test_a_run_obeys_another_thread(tmp_path):
    session = Session(SMOKE.with_("run.num_steps=50"), tmp_path / "run")
    stepped = threading.Semaphore(0)
    session.views.append(Calls(lambda event: stepped.release(), Stepped))
    session.pause()
    thread = threading.Thread(target=session.run)
    thread.start()
    assert not stepped.acquire(timeout=1.5)
    session.set("loss.beta=0.5", "optimizer.learning_rate=*2")
    session.advance()
    assert stepped.acquire(timeout=180) and not stepped.acquire(timeout=0.5)
    session.go_on()
    assert stepped.acquire(timeout=180)
    session.stop()
    thread.join(180)
    assert session.status == "stopped" and len(session.records) < 50
    assert set(session.records["beta"]) == {0.5} and kinds(session)[:3] == ["Started", "Changed", "Stepped"]


def test_a_pace_and_a_pause():
    queue, begin = CommandQueue(), time.monotonic()
    queue.command("pace", ("20",))
    assert [queue(step) for step in range(3)] == [[], [], []]
    assert time.monotonic() - begin >= 2 / 20
    queue.command("pace", ("0.001",))
    queue.command("step")
    queue(3)  # a single step is not delayed
    queue.command("pace", ("0",))
    queue(4)
    queue.command("pause")
    threading.Timer(0.2, queue.command, ["resume"]).start()
    begin = time.monotonic()
    queue(5)
    assert time.monotonic() - begin >= 0.15
    queue(6)


def test_replay_shows_what_was_recorded(done):
    shown = []
    assert list(done.replay(Calls(shown.append), speed=1e6)) == shown == done.events
