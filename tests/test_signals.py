"""A run that a signal or a raising reward function ends is whole, and its healthy weights are saved."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import grpo_lab as gl
from grpo_lab.errors import RewardError
from grpo_lab.events import Ended, Stepped
from grpo_lab.models import loading
from grpo_lab.runs import commands
from grpo_lab.runs.session import AT_ONCE, BY_THE_USER, Session
from tests.steps import Calls

SMOKE = gl.preset("smoke").with_("run.threads=1")
LONG = ("--preset", "smoke", "--set", "run.threads=1", "--set", "run.num_steps=100000")
BREAKS = """
calls = []

def breaks(completions, **columns):
    calls.append(1)
    if len(calls) == {at}:
        {way}
    return [float(sum(map(ord, text)) % 7) for text in completions]
"""


def killed(directory, *numbers, steps=50):
    """A session whose process gets these signals after its second step."""

    def kill(event):
        for number in numbers if event.step == 1 else ():
            os.kill(os.getpid(), number)

    session = Session(SMOKE.with_(f"run.num_steps={steps}"), directory, save_model=True)
    session.views.append(Calls(kill, Stepped))
    return session


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([signal.SIGTERM], id="term"),
        pytest.param([signal.SIGHUP], id="hup"),
        pytest.param([signal.SIGTERM, signal.SIGHUP], id="term and hup"),
        pytest.param([signal.SIGTERM, signal.SIGTERM], id="term twice, as `timeout` sends it to process and group"),
    ],
)
def test_the_run_ends_after_the_step_and_then_the_process(tmp_path, numbers):
    before = signal.getsignal(numbers[0])
    session = killed(tmp_path / "run", *numbers)
    with pytest.raises(SystemExit) as end:
        session.run()
    assert end.value.code == 128 + numbers[0] and signal.getsignal(numbers[0]) is before
    again = Session.open(session.directory)
    assert again.ended == Ended("stopped", BY_THE_USER) and len(again.records) == 2
    assert again.saved_model and loading.load(str(again.saved_model))


def test_a_second_sigterm_ends_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "ONE_REQUEST", 0)
    session = killed(tmp_path / "run", signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        session.run()
    assert end.value.code == 143 and session.ended == Ended("stopped", AT_ONCE) and session.saved_model is None


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None], ids=["nohup", "own"])
def test_what_the_process_ignores_or_handles_is_left_to_it(tmp_path, handler):
    before = signal.signal(signal.SIGHUP, handler)
    try:
        assert killed(tmp_path / "run", signal.SIGHUP, steps=3).run().status == "done"
    finally:
        signal.signal(signal.SIGHUP, before)


def own(path, at, way="raise ValueError('no such answer')"):
    path.write_text(BREAKS.format(at=at, way=way))
    return f"data.rewards={path}:breaks"


def test_a_reward_that_raises_leaves_the_weights_of_the_steps_before(tmp_path):
    config = SMOKE.with_("run.num_steps=5", "optimizer.schedule=constant")
    session = Session(config.with_(own(tmp_path / "mine.py", 3)), tmp_path / "run", save_model=True)
    with pytest.raises(RewardError, match=r"reward breaks raised ValueError: no such answer; mend it or return None"):
        session.run()
    again = Session.open(tmp_path / "run")
    assert again.status == "failed" and list(again.records["failed"]) == [False, False, True]
    two = Session(config.with_(own(tmp_path / "mine.py", 99), "run.num_steps=2"), tmp_path / "two", save_model=True)
    saved, expected = (loading.load(str(each.saved_model))[0].state_dict() for each in (again, two.run()))
    assert all(torch.equal(saved[name], expected[name]) for name in expected)


def started(tmp_path, *words, **more):
    """The process of `grpo-lab train`, once it has made two steps."""
    command = [sys.executable, "-m", "grpo_lab", "train", *LONG, "--out", str(tmp_path / "run"), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    log = tmp_path / "run" / "events.jsonl"
    for _ in range(1200):
        if log.exists() and log.read_text().count('"Stepped"') >= 2:
            return process
        time.sleep(0.1)
    raise AssertionError(process.communicate(process.kill()))


def check_whole(directory: Path):
    """The run is over, can be read, and its model loads."""
    session = Session.open(directory)
    assert session.status == "stopped" and session.saved_model
    assert json.loads((directory / "events.jsonl").read_text().splitlines()[-1])["event"] == "Ended"
    assert loading.load(str(session.saved_model)) and not list(directory.glob("*.part"))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "child"), [(signal.SIGHUP, "--no-child"), (signal.SIGTERM, "--child")])
def test_a_killed_command_saves_its_weights(tmp_path, number, child):
    process = started(tmp_path, child)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number and "Traceback" not in err
    assert f"model: {tmp_path / 'run' / 'model'}" in out
    check_whole(tmp_path / "run")


@pytest.mark.slow
def test_a_signal_to_every_process_as_a_job_scheduler_sends_it(tmp_path):
    process = started(tmp_path, "--child")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143 and "Traceback" not in err
    check_whole(tmp_path / "run")


@pytest.mark.slow
def test_a_terminal_that_is_closed(tmp_path):
    """The system sends SIGHUP, and every write to the terminal fails from then on."""
    leader, terminal = pty.openpty()
    words = [sys.executable, "-m", "grpo_lab", "train", *LONG, "--out", str(tmp_path / "run")]
    take = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    code = f"{take}; os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    reader = threading.Thread(target=drain, args=(leader, tmp_path / "run" / "events.jsonl"))
    reader.start()
    reader.join(120)
    os.close(leader)
    process.wait(120)
    check_whole(tmp_path / "run")


def drain(leader, log):
    """Read what the command writes, until it has made two steps."""
    while not (log.exists() and log.read_text().count('"Stepped"') >= 2):
        os.read(leader, 10_000)
