"""Several processes that train one policy: the same verdicts and the same weights as one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from grpo_lab.config.catalog import preset
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.events import Resumed
from grpo_lab.runs.session import Session
from grpo_lab.training.distributed import Processes, new_store

sys.path.insert(0, str(Path(__file__).parent))
import ranks


def together(folder, size, names):
    """The results of the cases by rank, made by that many processes."""
    store = new_store()
    command = [sys.executable, "-W", "ignore", ranks.__file__, str(store.port)]
    files = [folder / f"{rank}.json" for rank in range(size)]
    processes = [
        subprocess.Popen([*command, str(rank), str(size), str(file), *names]) for rank, file in enumerate(files)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0] * size
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The results of the quick cases, made by two processes."""
    return together(tmp_path_factory.mktemp("ranks"), 2, list(ranks.CASES))


def alone(name):
    """The result of one process that does what two do, one after the other."""
    torch.set_num_threads(1)
    return json.loads(json.dumps(ranks.run((ranks.CASES | ranks.FOUR)[name])))


@pytest.mark.parametrize("name", ranks.ALIKE)
def test_two_processes_make_the_steps_of_one_to_the_bit(name, two):
    expected = alone(name)
    for found in two:
        for what in ("error", "end", "steps", "weights"):
            assert found[name][what] == expected[what], what
        noted, theirs = ([[note[:4] for note in step] for step in each["links"]] for each in (found[name], expected))
        assert noted == theirs
    assert len(expected["steps"]) >= 2


def test_no_group_is_lost_where_processes_have_unequal_shares(two):
    expected, drawn = alone("ragged"), []
    for mine, other in zip(two[0]["ragged"]["steps"], expected["steps"], strict=True):
        drawn.append(mine.get("dynamic_sampling/draws", 0.0))
        for name in ("num_tokens", "grad_norm", "kl", "reward"):
            assert mine.get(name, 0.0) == pytest.approx(other.get(name, 0.0), rel=1e-4, abs=1e-6)
    reasons = [reason for name, _, reason in two[0]["ragged"]["actions"] if name == "dynamic_sampling"]
    assert any(reason.startswith("3 of 4 groups") for reason in reasons) and max(drawn) == 1


WHOLE = [*sorted(ranks.ONE_SIDED.keys() - {"breaks", "nan_logits"}), *ranks.DROPOUT, *ranks.RAGGED]


@pytest.mark.parametrize("name", WHOLE)
def test_a_fault_of_one_process_has_the_same_verdict_on_both(name, two):
    first, second = (found[name] for found in two)
    assert first["weights"] == second["weights"] and first["steps"] == second["steps"]
    assert first["actions"] == second["actions"] and first["links"] == second["links"]


@pytest.mark.parametrize("name", ["nan_log_ratio", "nan_kl"])
def test_a_nan_of_one_process_is_refused_by_both(name, two):
    assert [step.get("verdict") for step in two[0][name]["steps"]] == [None, "KEEP", "SKIP_STEP", "KEEP", None]


def test_actions_and_notes_say_which_process_they_are_from(two):
    changes = [reason for name, _, reason in two[0]["nan_kl"]["actions"] if name == "clamp_kl"]
    assert changes and all(reason.startswith("rank 1: ") for reason in changes)
    broken = [
        where for link, *_, count, _, where in two[0]["nan_log_ratio"]["links"][1] if link == "log_ratio" and count
    ]
    assert broken and all(where.startswith("rank 1") for where in broken)


def test_an_error_of_one_process_ends_both_and_names_it(two):
    first, second = (found["breaks"] for found in two)
    assert first["error"] == "PeerFailed: rank 1: ValueError: the second process broke"
    assert second["error"] == "ValueError: the second process broke"
    assert two[0]["nan_logits"]["error"].startswith("PeerFailed: rank 1: RuntimeError: probability tensor contains")
    broken = [where for link, *_, count, _, where in two[0]["nan_logits"]["links"][1] if link == "logits" and count]
    assert broken and all(where.startswith("rank 1") for where in broken), "the chain of the first process names it"


@pytest.mark.slow
def test_four_processes_make_the_steps_of_one_up_to_rounding(tmp_path):
    expected = alone("four")
    found = together(tmp_path, 4, ["four"])
    assert len({each["four"]["weights"] for each in found}) == 1
    for mine, other in zip(found[0]["four"]["steps"], expected["steps"], strict=True):
        for name in ("reward", "grad_norm", "kl", "num_tokens"):
            assert mine.get(name, 0.0) == pytest.approx(other.get(name, 0.0), rel=1e-5, abs=1e-6)


def test_prompts_that_processes_cannot_share_are_refused():
    for overrides, message in (
        (("run.processes=8",), "more processes than prompts"),
        (("run.processes=3",), "unequal shares"),
        (("run.processes=2", "loss.accumulation=step_inside"), "drift apart"),
        (("run.processes=2", "run.streams=3"), "run.streams = 3 with run.processes = 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            preset("smoke").with_(*overrides)
    with pytest.raises(RunError, match=r"another process loads .* name them in the config"):
        Session(preset("smoke").with_("run.processes=2"), rewards=[lambda completions, **_: [0.0] * len(completions)])


def test_a_process_that_never_comes_is_named():
    with pytest.raises(RunError, match=r"process 1 of 2 did not come within 0\.01 minutes \(run\.peer_minutes\)"):
        Processes(new_store(), 0, 2, minutes=0.01)


KILLS = """
import psutil, os
from pathlib import Path

def score(completions, **columns):
    marker = Path({marker!r})
    marker.write_text((marker.read_text() if marker.exists() else "") + "x")
    if len(marker.read_text()) == 3:
        for child in psutil.Process().children():
            child.kill()
    return [float(len(each)) for each in completions]
"""


def killing(tmp_path, *overrides):
    """A run of two processes, the second of which is killed in step 2, before the first has judged it."""
    tmp_path.mkdir(exist_ok=True)
    reward = tmp_path / "kills.py"
    reward.write_text(KILLS.format(marker=str(tmp_path / "marker")))
    return preset("smoke").with_("run.processes=2", "run.num_steps=4", f"data.rewards={reward}:score,", *overrides)


def test_a_killed_process_ends_the_run_and_is_named(tmp_path):
    session = Session(killing(tmp_path), tmp_path / "run").run()
    assert session.status == "crashed" and len(session.records) == 3
    assert session.ended is not None and "rank 1 was ended by SIGKILL" in session.ended.message


@pytest.mark.slow
def test_a_run_with_a_killed_process_goes_on_by_itself_to_the_same_weights(tmp_path):
    config = killing(tmp_path, "run.checkpoint_minutes=0", "run.max_restarts=1")
    killed = Session(config, tmp_path / "killed", child=True, save_model=True).run()
    assert killed.status == "done" and any(isinstance(event, Resumed) for event in killed.events)
    whole = Session(config, tmp_path / "whole", save_model=True).run()  # the marker is longer by now
    files = [session.directory / "model" / "model.safetensors" for session in (killed, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()


STREAMS = ("run.streams=2", "run.checkpoint_minutes=0")
"""A run that two processes and one make alike, and that can go on."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """That run by two processes."""
    config = preset("smoke").with_("run.processes=2", *STREAMS)
    return Session(config, tmp_path_factory.mktemp("whole") / "run", save_model=True).run(check=True)


@pytest.mark.slow
def test_torchrun_starts_all_processes_of_the_same_run(whole, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "grpo_lab"]
    settings = [word for setting in STREAMS for word in ("--set", setting)]
    subprocess.run([*torchrun, "train", "--preset", "smoke", *settings, "--out", str(tmp_path / "run")], check=True)
    weights = [folder / "model" / "model.safetensors" for folder in (tmp_path / "run", whole.directory)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill -9 of the first", "Ctrl-C"])
def test_all_processes_end_together(tmp_path, how):
    command = [sys.executable, "-m", "grpo_lab", "train", "--preset", "smoke", "--processes", "2"]
    command += ["--set", "run.num_steps=5000", "--out", str(tmp_path / "run")]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    events = tmp_path / "run" / "events.jsonl"
    while not (events.exists() and events.read_text().count("\n") > 2):
        assert first.poll() is None
        time.sleep(0.1)
    others = psutil.Process(first.pid).children()
    if how == "Ctrl-C":
        os.killpg(first.pid, signal.SIGINT)
    else:
        first.kill()
    error = first.communicate(timeout=60)[1]
    assert others and not psutil.wait_procs(others, timeout=60)[1]
    if how == "Ctrl-C":
        assert first.returncode == 130 and "rank" not in error and "Traceback" not in error, error


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_goes_on_with_any_number(whole, tmp_path):
    for processes, tensors in ((2, 0.0), (1, 1e-3)):
        shutil.copytree(whole.directory, folder := tmp_path / str(processes))
        shutil.rmtree(folder / "model")
        lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
        (folder / "events.jsonl").write_text("".join(lines[:-2]))
        session = Session.resume(folder, processes=processes, save_model=True).run(check=True)
        assert session.config.run.streams == 2
        resumed = next(event for event in session.events if isinstance(event, Resumed))
        assert ("number of processes (2, now 1)" in resumed.reason) is (processes == 1)
        mine, theirs = (load_file(each.directory / "model" / "model.safetensors") for each in (session, whole))
        assert max(float((mine[name] - theirs[name]).abs().max()) for name in theirs) <= tensors
