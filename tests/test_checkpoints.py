"""A run that is cut off anywhere goes on from its newest checkpoint, to the bit, and never from a broken one."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import grpo_lab as gl
from grpo_lab.core.hooks import Stage
from grpo_lab.errors import ConfigError, ModelError, RunError
from grpo_lab.events import Changed, Checkpointed, Ended, Evaluated, Resumed, Started, Stepped, lineage
from grpo_lab.models import loading
from grpo_lab.runs import checkpoints, run_folder
from grpo_lab.runs import session as of_run
from grpo_lab.runs.session import Session
from grpo_lab.training import saved_state
from grpo_lab.training.interventions import Outcome
from tests.steps import Calls, stopping, told

SMALL = gl.preset("stable").with_(
    *("run.num_steps=5", "run.threads=1", "run.checkpoint_minutes=0", "run.num_eval=4"),
    *("data.num_prompts=2", "data.num_generations=4", "sampling.max_completion_length=4"),
)
CUT = 3
"""The steps that are made before a run is cut off."""


def session_of(config, folder, cut=0, change=(), **more):
    """A session that changes a setting in its first step, if one is given, and stops after `cut` steps."""
    session = stopping(Session(config, folder, child=False, save_model=True, **more), cut)
    session.views.append(Calls(lambda event: change and event.step == 0 and session.set(*change), Stepped))
    return session


def tales(events):
    """The events without times, and without those that tell of checkpoints."""
    return [told(event) for event in events if not isinstance(event, Checkpointed | Resumed)]


def weights(session):
    """The final weights, by name."""
    return {
        name: value for path in session.saved_model.glob("*.safetensors") for name, value in load_file(path).items()
    }


def same(one, other):
    """Whether two sessions have told the same and left the same weights, to the bit."""
    mine, theirs = weights(one), weights(other)
    equal = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    return equal and tales(one.events) == tales(other.events)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of SMALL that nothing cuts off."""
    return session_of(SMALL, tmp_path_factory.mktemp("whole") / "run").run()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run of SMALL that was stopped after CUT steps; to be copied."""
    return session_of(SMALL, tmp_path_factory.mktemp("stopped") / "run", CUT).run().directory


@pytest.fixture
def cut_off(stopped, tmp_path):
    """A folder of one's own of that run."""
    return Path(shutil.copytree(stopped, tmp_path / "cut"))


def resumed(folder, **more):
    return Session.resume(folder, child=False, save_model=True, **more).run()


# --- the same bits ---------------------------------------------------------------------------------------------------

CASES = {
    "fp16, loss scale, 2 updates": ("model.precision=fp16", "loss.num_iterations=2"),
    "cosine, a refused step": ("optimizer.schedule=cosine", "faults.nan_gradient.at_step=1"),
    "adaptive guards": ("guards.adaptive_learning_rate=on", "guards.adaptive_beta=on", "guards.skip_outliers=on"),
    "adapters": ("lora.r=2",),
    "a sampler with old weights": ("model.sampler_weights=start", "loss.beta=0"),
    "snapshots every two steps": ("run.snapshot_every=2",),
    "both stages": ("run.stages=sft,grpo", "sft.data=dual", "sft.num_steps=2", "sft.batch_size=4"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_stopped_and_went_on_is_the_run_that_was_not(name, tmp_path):
    config = SMALL.with_(*CASES[name])
    one = session_of(config, tmp_path / "whole").run()
    session_of(config, tmp_path / "cut", CUT).run()
    other = resumed(tmp_path / "cut")
    assert other.status == "done" and [type(e) for e in other.events].count(Resumed) == 1
    assert same(one, other)
    assert same(one, Session.open(tmp_path / "cut")), "and it reads back as the same"


def test_a_change_of_the_running_model_goes_on_with_it(tmp_path):
    change = ("optimizer.learning_rate=*0.5", "guards.clip_gradients.max_norm=0.1")
    one = session_of(SMALL, tmp_path / "whole", change=change).run()
    session_of(SMALL, tmp_path / "cut", CUT, change).run()
    assert same(one, resumed(tmp_path / "cut"))
    assert any(isinstance(event, Changed) for event in one.events)


def test_without_a_checkpoint_it_begins_again_with_the_same_bits(whole, tmp_path):
    session_of(SMALL.with_("run.checkpoint_minutes=none"), tmp_path / "cut", CUT).run()
    other = resumed(tmp_path / "cut")
    (event,) = (event for event in other.events if isinstance(event, Resumed))
    assert (event.step, event.reason) == (0, "there is no checkpoint: from the start")
    assert weights(other).keys() == weights(whole).keys() and tales(other.events)[1:] == tales(whole.events)[1:]


def test_checkpoints_change_nothing(whole, tmp_path):
    without = session_of(SMALL.with_("run.checkpoint_minutes=none"), tmp_path / "run").run()
    assert tales(without.events)[1:] == tales(whole.events)[1:] and not (without.directory / "checkpoints").exists()


STORED = {
    "scaler": lambda value: {**value, "scale": 1.0},
    "metrics": lambda value: {},
    "config": lambda value: SMALL.to_dict(),
    "interventions": lambda value: {},
    "moments": lambda value: {},
    "weights": lambda value: {name: tensor + 0.01 for name, tensor in value.items()},
    "verdict": lambda value: "SKIP_STEP",
}


def test_every_stored_item_matters(tmp_path, monkeypatch, fault):
    """Without one of them a run goes on differently: none is stored for nothing."""
    reads = fault(Stage.BATCH, lambda batch, step: Outcome(batch, step.last_verdict, f"{sorted(step.last_metrics)}"))
    config = SMALL.with_(
        *("model.precision=fp16", "optimizer.schedule=cosine", "faults.stale_batch.lag=2", reads, "run.num_eval=0")
    )
    change = ("optimizer.learning_rate=*30",)
    one = session_of(config, tmp_path / "whole", change=change).run()
    cut = session_of(config, tmp_path / "cut", CUT, change).run().directory
    real, unchanged = saved_state.put_back, []
    for item, spoil in {"nothing": None, **STORED}.items():
        folder = shutil.copytree(cut, tmp_path / item)
        changed = lambda training, state, item=item, spoil=spoil: real(  # noqa: E731
            training, state | ({item: spoil(state[item])} if spoil else {})
        )
        monkeypatch.setattr(saved_state, "put_back", changed)
        if same(one, resumed(folder)):
            unchanged.append(item)
    assert unchanged == ["nothing"]


# --- killed anywhere -------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of a process in the middle of an operation."""


@pytest.fixture
def killed_at(monkeypatch):
    """Let the filesystem operations of checkpoints and run folders fail from the n-th on, as in a process that died."""
    count = {"made": 0, "limit": -1}

    def counted(operation):
        def act(*args, **kwargs):
            count["made"] += 1
            if 0 <= count["limit"] < count["made"]:
                raise Killed
            return operation(*args, **kwargs)

        return act

    for owner, names in {
        checkpoints.os: ("rename", "fsync"),
        checkpoints.shutil: ("rmtree",),
        checkpoints: ("save_file",),
        Path: ("write_text", "write_bytes", "mkdir", "rename", "replace"),
        run_folder: ("to_json",),
        loading: ("save",),
    }.items():
        for name in names:
            monkeypatch.setattr(owner, name, counted(getattr(owner, name)))

    def begin(limit):
        count.update(made=0, limit=limit)
        return count

    return begin


def test_a_process_that_dies_at_any_operation_leaves_a_run_that_goes_on(whole, tmp_path, killed_at):
    """Whole operations only: a write that was cut off in the middle is the next test's."""
    count = killed_at(-1)
    session_of(SMALL, tmp_path / "counted").run()
    total = count["made"]
    assert total > 60
    for number, limit in enumerate(range(3, total, 23)):  # before the third there is no config, and no run
        folder = tmp_path / str(number)
        killed_at(limit)
        with pytest.raises(Killed):
            session_of(SMALL, folder).run()
        killed_at(-1)
        other = resumed(folder)
        assert other.status == "done" and same(whole, other), limit
        assert not [path for path in (folder / "checkpoints").iterdir() if path.name.startswith(".tmp-")]


def test_a_last_line_that_was_cut_in_half_is_dropped(whole, cut_off):
    log = cut_off / "events.jsonl"
    log.write_bytes(log.read_bytes()[:-40])
    assert same(whole, resumed(cut_off))


# --- broken checkpoints ----------------------------------------------------------------------------------------------


def newest(folder):
    return sorted((folder / "checkpoints").glob("checkpoint-*"))[-1]


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_every_flipped_bit_and_every_cut_is_seen(cut_off):
    chance, place = random.Random(0), newest(cut_off)
    assert {"training.safetensors", "state.json", "manifest.json", "model.safetensors"} <= {
        p.name for p in files_of(place)
    }
    for path in files_of(place):
        whole = path.read_bytes()
        for _ in range(5):
            at = chance.randrange(len(whole))
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1 :])
            with pytest.raises(RunError, match=r"cannot be read|differs"):
                checkpoints.read(place)
        for _ in range(3):
            path.write_bytes(whole[: chance.randrange(len(whole))])
            with pytest.raises(RunError, match=r"cannot be read|differs"):
                checkpoints.read(place)
        path.unlink()
        with pytest.raises(RunError, match="cannot be read"):
            checkpoints.read(place)
        path.write_bytes(whole)
    assert checkpoints.read(place)["step"] == CUT


def test_a_broken_checkpoint_is_put_aside_and_the_older_one_is_taken(whole, cut_off):
    (newest(cut_off) / "state.json").unlink()
    other = resumed(cut_off)
    (event,) = (event for event in other.events if isinstance(event, Resumed))
    assert event.step == CUT - 1 and "checkpoint-000003: cannot be read" in event.reason
    assert (cut_off / "checkpoints" / "broken-checkpoint-000003").is_dir() and same(whole, other)


def test_where_all_are_broken_there_is_no_silent_new_beginning(cut_off):
    for path in (cut_off / "checkpoints").glob("checkpoint-*"):
        (path / "manifest.json").write_text("{}")
    log, saved = (cut_off / "events.jsonl").read_bytes(), weights(Session.open(cut_off))
    with pytest.raises(RunError, match=r"no checkpoint in .* is whole.*train again into another folder"):
        resumed(cut_off)
    assert (cut_off / "events.jsonl").read_bytes().startswith(log), "nothing is lost"
    kept = weights(Session.open(cut_off))
    assert all(torch.equal(kept[name], value) for name, value in saved.items()), "the saved weights neither"


def test_weights_that_are_not_finite_are_neither_written_nor_taken(tmp_path, cut_off, monkeypatch):
    breaks = ("faults.nan_gradient.at_step=1", "guards.rollback=off", "guards.skip_nonfinite=off")
    config = SMALL.with_(*breaks, "guards.check_weights=off", "guards.clip_gradients=off")
    session = Session(config, tmp_path / "broken", child=False).run()
    assert [event.step for event in session.events if isinstance(event, Checkpointed)] == [1]
    real, poisonous = checkpoints.read, newest(cut_off)

    def poisoned(path):
        state = real(path)
        if path == poisonous:
            next(iter(state["moments"].values()))["exp_avg"].view(-1)[0] = torch.nan
        return state

    monkeypatch.setattr(checkpoints, "read", poisoned)
    (event,) = (event for event in resumed(cut_off).events if isinstance(event, Resumed))
    assert event.step == CUT - 1 and "checkpoint-000003: 1 of its weights and moments are not finite" in event.reason


def test_a_full_disk_stops_no_training_and_leaves_no_rubbish(whole, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", full)
        session = Session(SMALL, tmp_path / "run", child=False).run()
    found = [event for event in session.events if isinstance(event, Checkpointed)]
    assert session.status == "done" and tales(session.events) == tales(whole.events)
    assert found and {event.problem for event in found} == {"No space left on device"}
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_two_are_kept_and_each_is_a_model(whole):
    folder = whole.directory / "checkpoints"
    assert [path.name for path in sorted(folder.iterdir())] == ["checkpoint-000003", "checkpoint-000004"]
    policy, _ = loading.load(str(folder / "checkpoint-000004"))
    state = checkpoints.read(folder / "checkpoint-000004")
    assert all(torch.equal(parameter, state["weights"][name]) for name, parameter in policy.named_parameters())


# --- refusals, and what is said --------------------------------------------------------------------------------------


def test_runs_that_cannot_go_on(whole, cut_off, tmp_path):
    with pytest.raises(RunError, match=r"is done, after 5 steps; .*--model"):
        Session.resume(whole.directory)
    with pytest.raises(RunError, match=r"holds no run: config.json is missing"):
        Session.resume(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"run\.\* is fixed"):
        Session.resume(cut_off, recover=["run.num_steps=9"])
    with pytest.raises(ConfigError, match="unknown guard 'no_such'"):
        Session.resume(cut_off, recover=["guards.no_such=on"])
    with pytest.raises(ConfigError, match=r"run\.\* is fixed"):
        Session(SMALL.with_("run.recover=run.seed=3,"), tmp_path / "new")


def test_a_run_that_another_process_writes_is_refused_with_its_number(cut_off):
    hold = (
        "import sys\nfrom pathlib import Path\nfrom grpo_lab.runs import run_folder\n"
        "with run_folder.held(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(cut_off)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        about = cut_off / "environment.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"pid": 4321}))
        with pytest.raises(RunError, match="is written by process 4321"):
            Session.resume(cut_off)
        process.kill()
    assert Session.resume(cut_off, child=False).status == "stopped", "a hold dies with its process"


def test_the_command_refuses_a_run_of_a_newer_version(cut_off, call):
    def refused(named):
        code, out, errors = call("train", "--resume", cut_off)
        return (code, out) == (2, "") and named in " ".join(errors.split()) and "Traceback" not in errors

    with (cut_off / "events.jsonl").open("a") as log:
        log.write('{"event": "Tomorrow"}\n')
    assert refused("the version of grpo_lab that wrote it")
    tree = json.loads((cut_off / "config.json").read_text())
    tree["run"]["of_tomorrow"] = 1
    (cut_off / "config.json").write_text(json.dumps(tree))
    assert refused("'of_tomorrow'")


def test_another_model_is_refused(cut_off):
    policy, tokenizer = loading.load("tiny")
    with torch.no_grad():
        next(policy.parameters()).view(-1)[0] += 1
    with pytest.raises(ModelError, match="other weights than those that the run began with"):
        resumed(cut_off, model=(policy, tokenizer))


def test_a_format_of_another_version_is_refused(cut_off, monkeypatch):
    monkeypatch.setattr(of_run, "VERSION", 2)
    with pytest.raises(RunError, match="format 1, and this version reads 2"):
        resumed(cut_off)


def test_other_surroundings_go_on_and_are_named(cut_off, monkeypatch):
    real = of_run._surroundings
    monkeypatch.setattr(of_run, "_surroundings", lambda training: real(training) | {"torch": "9.9", "tasks": "0" * 64})
    reason = next(event.reason for event in resumed(cut_off).events if isinstance(event, Resumed))
    assert f"another torch ({torch.__version__}, now 9.9)" in reason and "another tasks" in reason


def test_a_change_at_the_resume_holds_from_there_on(cut_off):
    session = resumed(cut_off, recover=["optimizer.learning_rate=1e-9"])
    rates = session.records["learning_rate"].to_numpy()
    assert (rates[CUT:] <= 1e-9).all() and rates[CUT - 1] > 1e-9
    assert next(e.overrides for e in session.events if isinstance(e, Resumed)) == ("optimizer.learning_rate=1e-9",)


# --- restarts --------------------------------------------------------------------------------------------------------


def crashing(fault, *steps, times=99):
    """The override of a fault that raises at these steps, so often in all."""
    left = [times]

    def act(value, step):
        if step.index in steps and left[0]:
            left[0] -= 1
            raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")

    return fault(Stage.LOSS, act)


def test_a_run_that_crashed_goes_on_by_itself(whole, tmp_path, fault):
    config = SMALL.with_(crashing(fault, 3, times=1), "run.max_restarts=2")
    session = Session(config, tmp_path / "run", child=False, save_model=True).run()
    (event,) = (event for event in session.events if isinstance(event, Resumed))
    assert session.status == "done" and event.step == 3 and event.reason.startswith("restart 1 after a crash: Runtime")
    assert tales(session.events)[1:] == tales(whole.events)[1:]
    assert "probability tensor" in (tmp_path / "run" / "traceback.txt-2").read_text()


def test_each_restart_without_progress_goes_further_back_and_changes_more(tmp_path, fault):
    halves = ("run.max_restarts=3", "run.recover=optimizer.learning_rate=*0.5,")
    config = SMALL.with_(crashing(fault, 3), *halves, "guards.warm_up=off", "optimizer.schedule=constant")
    session = Session(config, tmp_path / "run", child=False)
    seen = []
    session.views.append(Calls(seen.append))
    session.run()
    found = [event for event in seen if isinstance(event, Resumed)]
    assert session.status == "crashed" and len([e for e in seen if isinstance(e, Ended)]) == 1
    assert [event.step for event in found] == [3, 2, 3], (
        "the second went one back, and made the third's checkpoint again"
    )
    assert [len(event.overrides) for event in found] == [1, 2, 1]
    rate = SMALL.optimizer.learning_rate
    assert session.records["learning_rate"].dropna().iloc[-1] == pytest.approx(rate / 4)


@pytest.mark.slow
def test_a_child_that_is_killed_is_replaced(tmp_path):
    config = SMALL.with_("run.num_steps=10", "run.max_restarts=1", "run.num_eval=0")
    session = Session(config, tmp_path / "run", child=True, save_model=True)
    killed, seen = [], []

    def show(event):
        seen.append(event)
        if isinstance(event, Stepped) and event.step == 3 and not killed:
            assert session._child is not None
            killed.append(session._child.process.pid)
            os.kill(session._child.process.pid, signal.SIGKILL)

    session.views.append(Calls(show))
    session.run()
    assert len([event for event in seen if isinstance(event, Started)]) == 1, "none is shown twice"
    assert killed and session.status == "done"
    (event,) = (event for event in session.events if isinstance(event, Resumed))
    assert event.step >= 3 and "SIGKILL" in event.reason
    one = Session(config, tmp_path / "whole", child=False, save_model=True).run()
    assert same(one, session) and same(one, Session.open(tmp_path / "run"))


HANGS = """
import os, time
from pathlib import Path

calls = []

def hangs(completions, **columns):
    calls.append(1)
    mark = Path({mark!r})
    if len(calls) == {at} and not mark.exists():
        mark.touch()
        time.sleep(9999)
    return [float(sum(map(ord, text)) % 7) for text in completions]
"""


@pytest.mark.slow
def test_a_child_that_hangs_is_replaced(tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS.format(mark=str(tmp_path / "mark"), at=3))
    reward = (f"data.rewards={tmp_path / 'hangs.py'}:hangs,", "run.num_eval=0")
    config = SMALL.with_(*reward, "run.max_restarts=1", "run.hang_minutes=0.1")
    session = Session(config, tmp_path / "run", child=True, save_model=True).run()
    (event,) = (event for event in session.events if isinstance(event, Resumed))
    assert session.status == "done" and (event.step, len(session.records)) == (2, 5)
    assert event.reason == "restart 1 after a crash: no event for 0.1 minutes; the child was ended"
    assert "in hangs" in (tmp_path / "run" / "traceback.txt-2").read_text(), "it says where"
    one = session_of(config, tmp_path / "whole").run()
    assert same(one, session)


@pytest.mark.slow
def test_a_pause_is_no_hang(tmp_path):
    config = SMALL.with_("run.hang_minutes=0.1", "run.num_eval=0")
    session = Session(config, tmp_path / "run", child=True)
    session.views.append(Calls(lambda event: isinstance(event, Stepped) and event.step == 1 and session.pause()))
    thread = threading.Thread(target=session.run, daemon=True)
    thread.start()
    thread.join(9)
    assert thread.is_alive() and not session.ended, "it waits for longer than a hang may last"
    session.go_on()
    thread.join(180)
    assert session.status == "done"


def test_a_run_that_is_stopped_while_it_is_paused_leaves_a_checkpoint(whole, tmp_path):
    config = SMALL.with_("run.checkpoint_minutes=1000")
    session = Session(config, tmp_path / "cut", child=False, save_model=True)

    def stop_soon(event):
        if isinstance(event, Stepped) and event.step + 1 == CUT:
            session.pause()
            threading.Timer(0.5, session.stop).start()  # by then it has asked for a checkpoint, and waits

    session.views.append(Calls(stop_soon))
    session.run()
    assert [event.step for event in session.events if isinstance(event, Checkpointed)] == [CUT]
    assert tales(resumed(tmp_path / "cut").events)[1:] == tales(whole.events)[1:]


# --- readers ---------------------------------------------------------------------------------------------------------


def test_readers_see_each_step_once(cut_off):
    raw = resumed(cut_off).directory / "events.jsonl"
    lines = [json.loads(line) for line in raw.read_text().splitlines()]
    assert [line["status"] for line in lines if line["event"] == "Ended"] == ["stopped", "done"]
    session = Session.open(cut_off)
    assert list(session.records.index) == list(range(5)) and session.status == "done"
    assert [event.step for event in session.events if isinstance(event, Evaluated)] == [0, 5]
    assert lineage(run_folder.whole_events(cut_off)) == session.events
    found = gl.diagnose(cut_off)
    assert len(found.log.steps) == 5 and found.log.metrics["reward"].tolist() == session.records["reward"].tolist()
