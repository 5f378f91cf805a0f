"""Runs in experiment trackers: the real TensorBoard always, W&B (offline) and trackio where they are installed."""

import math
import sys
import threading
from types import SimpleNamespace

import pytest

from grpo_lab.analysis import diagnosis
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.events import Ended, Resumed, Stepped
from grpo_lab.runs.session import Record, Session
from grpo_lab.ui import trackers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
pytest.importorskip("tensorboard")


def crashed(folder, *names):
    """A run with a NaN reward, followed by these trackers."""
    session = Session(scenario("nan-reward").config().with_("run.num_steps=6"), folder)
    session.views += trackers.views(",".join(names), session)
    return session.run()


def scalars(folder):
    """The (step, value) pairs of each curve in TensorBoard's files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}, read


def test_tensorboard_has_every_number_of_a_run(tmp_path):
    session = crashed(tmp_path / "run", "tensorboard")
    found, read = scalars(tmp_path / "run" / "tensorboard")
    steps = [event for event in session.events if isinstance(event, Stepped)]
    for name, value in steps[0].metrics.items():
        assert found[name][0] == (0, pytest.approx(value, rel=1e-6)), name
    broken = {name for event in steps for name, value in event.metrics.items() if not math.isfinite(value)}
    assert "reward" in broken
    assert broken == {tag.removeprefix("nonfinite/") for tag in found if tag.startswith("nonfinite/")}
    assert any(math.isnan(value) for _, value in found["reward"])
    texts = read.Tags()["tensors"]
    assert {"config/text_summary", "end/text_summary", "first_break/text_summary"} <= set(texts)


def test_the_diagnosis_of_an_export_is_that_of_the_run(tmp_path):
    session = crashed(tmp_path / "run")
    trackers.export("tensorboard", session, tmp_path / "out")
    mine, theirs = diagnosis.diagnose(tmp_path / "run"), diagnosis.diagnose(tmp_path / "out" / "tensorboard")
    assert mine.verdict == theirs.verdict == "nan-reward"
    assert list(theirs.log.steps) == [0, 1]


def test_a_run_that_goes_on_replaces_what_tensorboard_has_of_its_later_steps(tmp_path):
    config = preset("smoke").with_("run.checkpoint_minutes=0", "run.num_steps=4")
    whole = Session(config, tmp_path / "run")
    whole.views += trackers.views("tensorboard", whole)
    whole.views.append(Shown(lambda event: whole.stop() if isinstance(event, Stepped) else None))
    whole.run()
    resumed = Session.resume(tmp_path / "run")
    resumed.views += trackers.views("tensorboard", resumed)
    resumed.run()
    found, _ = scalars(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in found["reward"]] == [0, 1, 2, 3]


class Shown:
    """A view of a function."""

    def __init__(self, show):
        self.show = show


def test_a_tracker_that_hangs_or_fails_holds_nothing_up(tmp_path, monkeypatch, recwarn):
    never, steps = threading.Event(), []

    def fails(event):
        raise OSError("no room")

    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", lambda record: Shown(lambda event: never.wait()))
    monkeypatch.setitem(trackers.TRACKERS, "wandb", lambda record: Shown(fails))
    monkeypatch.setattr(trackers, "check", lambda names: None)
    monkeypatch.setattr(trackers, "PATIENCE", 0.1)
    monkeypatch.setattr(trackers, "MOST", 2)
    session = Session(preset("smoke").with_("run.num_steps=8"), tmp_path / "run")
    session.views += [*trackers.views("tensorboard,wandb", session), Shown(steps.append)]
    session.run(check=True)
    assert isinstance(steps[-1], Ended) and len(session.records) == 8
    said = [str(each.message) for each in recwarn]
    assert any("tensorboard: " in each and "events were not written" in each for each in said)
    assert sum("wandb: OSError: no room" in each for each in said) == 1
    never.set()


def test_what_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    session = crashed(tmp_path / "run")
    with pytest.raises(RunError, match="tensorboard cannot write to"):
        trackers.export("tensorboard", session, tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        trackers.check(["tensorbord"])
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        trackers.check(["wandb"])


class OfWandB:
    """What `wandb.init` gives: a run that has the steps 0 and 1 already."""

    resumed, summary = True, {"step": 1}

    def __init__(self, **options):
        self.logged, self.ended, self.options = [], None, options
        self.log, self.define_metric = self.logged.append, lambda name, step_metric: None

    def finish(self, exit_code):
        self.ended = exit_code


def test_wandb_is_given_what_it_does_not_have_yet(tmp_path, monkeypatch):
    made = []
    fake = SimpleNamespace(init=lambda **options: made.append(OfWandB(**options)) or made[-1], Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    steps = [Stepped(step, 1, Verdict.KEEP, {"kl": math.inf, "reward": 0.5}, (), ()) for step in range(4)]
    view = trackers.WandB(Record(preset("smoke"), tmp_path / "run"))
    for event in (*steps[:3], Resumed(1, 2), *steps[1:3], Ended("failed", "no room")):
        view.show(event)
    (run,) = made
    assert [row["step"] for row in run.logged] == [2, 1, 1, 2], "of before it has 0 and 1; step 1 is made again"
    assert run.logged[0] | {"nonfinite/kl": 1.0, "reward": 0.5, "verdict": 0.0} == run.logged[0]
    assert run.options["dir"] == str(tmp_path / "run") and run.options["resume"] == "allow"
    assert run.ended == 1 and run.summary["end"] == "failed"


def test_wandb_offline_keeps_a_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    crashed(tmp_path / "run", "wandb")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    texts = file.read_bytes()
    assert wandb.__version__ and all(name in texts for name in (b"grad_norm", b"nonfinite/reward", b"first_break"))


def test_trackio_keeps_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    crashed(tmp_path / "run", "trackio")
    (file,) = (tmp_path / "trackio").glob("*.db")
    assert b"grad_norm" in file.read_bytes() + b"".join(each.read_bytes() for each in file.parent.glob("*.db-wal"))
