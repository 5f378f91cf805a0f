"""A child process tells the same events, and its parent outlives whatever happens to it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from grpo_lab.config.catalog import preset, scenario
from grpo_lab.errors import RewardError, RunError
from grpo_lab.events import Changed, Ended, Stepped, to_json
from grpo_lab.runs.child import Child
from grpo_lab.runs.session import AT_ONCE, BY_THE_USER, Session
from tests.steps import Calls, told

SMOKE = preset("smoke").with_("run.threads=1")
LONG = SMOKE.with_("run.num_steps=100000")
NOISY = """
import os
def noisy(completions, **_):
    print('{"event": "Ended", "status": "done"}')
    os.write(1, b"from below\\n")
    return [float(len(text)) for text in completions]
"""


def at_first(session, kind, act):
    """Call a function with the session at the first event of a type."""

    def once(event):
        session.views.remove(view)
        act(session)

    session.views.append(view := Calls(once, kind))


def child_of(session):
    """Its process, which tests may look at."""
    assert session._child is not None
    return session._child


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


PATIENCE = 180
"""Seconds. A busy machine may take long over what takes a blink, and every wait here ends with what it waits for."""


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def quiet(session):
    """The number of its events, once there was none for a second: a run that goes on has a step in less."""
    count, since = len(session.events), time.monotonic()

    def still():
        nonlocal count, since
        if len(session.events) != count:
            count, since = len(session.events), time.monotonic()
        return time.monotonic() - since > 1

    until(still)
    return count


def finish(thread):
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.slow
def test_a_child_tells_the_same_events_whatever_a_reward_prints(tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    config = SMOKE.with_(f"data.rewards={tmp_path / 'noisy.py'}:noisy,")
    child = Session(config, tmp_path / "child", child=True, save_model=True).run()
    here = Session(config, tmp_path / "here").run()
    assert [told(event) for event in child.events] == [told(event) for event in here.events]
    assert child.status == "done" and child.saved_model
    assert "from below" in child_of(child).stderr and json.loads((child.directory / "environment.json").read_text())
    assert [to_json(e) for e in Session.open(child.directory).events] == [to_json(e) for e in child.events]


def kill(session):
    os.kill(child_of(session).process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_commands_reach_the_child(tmp_path):
    """Those given before the process exists, too."""
    session = Session(LONG, tmp_path / "run", child=True, save_model=True)
    session.set("loss.beta=0.5")
    at_first(session, Changed, lambda session: session.pause())
    thread = threading.Thread(target=session.run, daemon=True)
    thread.start()
    until(lambda: any(isinstance(event, Changed) for event in session.events))
    paused = quiet(session)
    session.advance()
    until(lambda: len(session.events) > paused)
    assert quiet(session) == paused + 1
    session.go_on()
    until(lambda: len(session.events) > paused + 2)
    session.stop()
    finish(thread)
    assert session.ended == Ended("stopped", BY_THE_USER) and not alive(child_of(session).process.pid)
    assert set(session.records["beta"]) == {0.5} and session.saved_model


@pytest.fixture(scope="module")
def warm():
    """A child that serves several runs."""
    child = Child()
    assert child.ready()
    yield child
    child.close()
    assert not child.alive


@pytest.mark.slow
def test_a_warm_child_runs_what_a_new_one_would(tmp_path, warm):
    """Also after another config, a crash and a mistake."""
    pid, unset = warm.process.pid, Session(SMOKE.with_("run.threads=0"), tmp_path / "unset", child=warm).run()
    crashing = scenario("fp16-adam-epsilon").config().with_("run.threads=1", "data.num_prompts=2")
    (tmp_path / "bad.py").write_text("def bad(**_):\n    raise ValueError('no such key')\n")
    assert Session(SMOKE.with_("run.threads=3"), tmp_path / "three", child=warm).run().status == "done"
    again = Session(SMOKE.with_("run.threads=0"), tmp_path / "again", child=warm).run()
    first, then = (json.loads((one.directory / "environment.json").read_text()) for one in (unset, again))
    assert first["threads"] == then["threads"] != 3
    crashed = Session(crashing, tmp_path / "crash", child=warm).run()
    assert crashed.status == "crashed" and crashed.crash and crashed.crash.kind == "multinomial-cpu"
    broken = crashed.first_break()
    assert broken and broken.link == "weights"
    mistaken = Session(SMOKE.with_(f"data.rewards={tmp_path / 'bad.py'}:bad,"), tmp_path / "mistake", child=warm)
    with pytest.raises(RewardError, match="reward bad raised ValueError: no such key; mend it") as caught:
        mistaken.run()
    assert mistaken.ended == Ended("failed", str(caught.value)) == Session.open(mistaken.directory).ended
    assert "Traceback" not in warm.stderr
    here, there = (Session(SMOKE, tmp_path / name, child=child) for name, child in (("here", False), ("there", warm)))
    assert [told(event) for event in there.run().events] == [told(event) for event in here.run().events]
    assert warm.alive and warm.process.pid == pid


def test_a_stopped_run_leaves_a_warm_child_for_the_next(tmp_path, warm):
    session = Session(LONG, tmp_path / "long", child=warm)
    at_first(session, Stepped, lambda session: session.stop())
    assert session.run().ended == Ended("stopped", BY_THE_USER)
    assert Session(SMOKE, tmp_path / "next", child=warm).run().status == "done" and warm.alive


def test_a_killed_child_is_a_crash_and_takes_no_further_run(tmp_path):
    """What it said in an earlier run does not explain its death."""
    child, noisy = Child(), 'import sys\ndef noisy(completions, **_):\n    print("out of memory", file=sys.stderr)\n'
    (tmp_path / "noisy.py").write_text(f"{noisy}    return [0.0] * len(completions)\n")
    Session(SMOKE.with_(f"data.rewards={tmp_path / 'noisy.py'}:noisy,"), tmp_path / "noisy", child=child).run()
    assert "out of memory" in child.stderr
    session = Session(LONG, tmp_path / "run", child=child)
    at_first(session, Stepped, kill)
    crash = session.run().crash
    assert crash and crash.kind == "unknown" and not child.alive
    assert session.ended == Ended("crashed", "the child was ended by SIGKILL (out of memory?)", crash)
    again = Session.open(session.directory)
    assert [to_json(event) for event in again.events] == [to_json(event) for event in session.events]
    with pytest.raises(
        RunError, match=r"no run can begin: the child was ended by SIGKILL \(out of memory\?\); start another"
    ):
        Session(SMOKE, tmp_path / "next", child=child).run()


SLOW = """
import pathlib, time
def slow(completions, **_):
    pathlib.Path(__file__).with_suffix(".begun").touch()
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_second_stop_ends_a_child_that_does_not_come_back(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    session = Session(LONG.with_(f"data.rewards={tmp_path / 'slow.py'}:slow,"), tmp_path / "run", child=True)
    thread = threading.Thread(target=session.run, daemon=True)
    thread.start()
    until((tmp_path / "slow.begun").exists)
    session.stop()
    thread.join(0.5)
    assert thread.is_alive() and session.status == "running"
    session.stop()
    finish(thread)
    assert session.ended == Ended("stopped", AT_ONCE) and session.crash is None


@pytest.mark.slow
def test_no_orphan_is_left_by_a_parent_that_is_killed(tmp_path):
    code = f"""
import json, grpo_lab
config = grpo_lab.preset("smoke").with_("run.num_steps=100000")
session = grpo_lab.Session(config, {str(tmp_path / "run")!r}, child=True)
class View:
    def show(self, event):
        print(session._child.process.pid, flush=True)
session.views.append(View())
session.run()
"""
    command = [sys.executable, "-c", code]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not alive(pid) or zombie(pid))
    assert Session.open(tmp_path / "run").ended == Ended("stopped", BY_THE_USER)


def zombie(pid):
    """Gone, but for a parent that would ask: in a container nobody may."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
