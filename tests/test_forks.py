"""A fork goes on from a step of another run: to the bit where nothing was changed, and in another way where it was."""

import json
import shutil
from pathlib import Path

import pytest

import grpo_lab as gl
from grpo_lab.analysis.run_state import fold
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.events import Changed, Checkpointed, Ended, Forked, Resumed, Started, Stepped
from grpo_lab.runs.session import Session
from tests.steps import Calls, stopping, told

SMALL = gl.preset("stable").with_(
    *("run.num_steps=7", "run.threads=1", "run.checkpoint_minutes=0", "run.num_eval=4"),
    *("data.num_prompts=2", "data.num_generations=4", "sampling.max_completion_length=4"),
)
HALF = "optimizer.learning_rate=*0.5"


def steps(session):
    return {event.step: told(event) for event in session.events if isinstance(event, Stepped)}


def story(session):
    """The events without those that tell of files, of the fork and of its config."""
    files = Checkpointed | Resumed | Started
    return [told(event) for event in session.events if not isinstance(event, files)]


def changes(session):
    return [(event.step, event.overrides) for event in session.events if isinstance(event, Changed)]


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A run that halves its learning rate before step 1 and before step 3, with its two newest checkpoints."""
    session = Session(SMALL, tmp_path_factory.mktemp("parent") / "doomed", child=False)
    session.views.append(Calls(lambda event: event.step in (0, 2) and session.set(HALF), Stepped))
    session.run()
    assert changes(session) == [(1, (HALF,)), (3, (HALF,))]
    return session


@pytest.fixture
def fork(parent, tmp_path):
    def make(step, *overrides, **more):
        return Session.fork(parent.directory, step, overrides, tmp_path / f"fork-{step}", child=False, **more)

    return make


@pytest.mark.parametrize(("step", "began"), [(6, 6), (5, 5), (4, 0), (2, 0), (0, 0)])
def test_a_fork_in_which_nothing_was_changed_is_the_same_run(parent, fork, step, began):
    """From a checkpoint before the step or, where there is none, from the beginning, with the parent's own changes."""
    other = fork(step).run()
    (event,) = (event for event in other.events if isinstance(event, Forked))
    assert (event.step, event.parent, event.at) == (began, "doomed", step)
    mine, theirs = story(other), story(parent)
    late = [each for each in theirs if each["event"] == "Changed" and each["step"] >= step]
    if not late:  # else the fork leaves out a change that the parent had after the step
        assert mine == theirs
    for number in range(step):
        assert steps(other)[number] == steps(parent)[number]
    assert other.status == "done" and len(steps(other)) == 7
    assert story(Session.open(other.directory)) == mine


def test_a_fork_with_a_guard_differs_from_its_step_on(parent, fork):
    other = fork(4, "guards.clip_gradients.max_norm=0.001").run()
    same = [steps(other)[step] == steps(parent)[step] for step in range(7)]
    assert same == [True] * 4 + [False] * 3
    assert changes(other)[-1] == (4, ("guards.clip_gradients.max_norm=0.001",))
    marks = [(mark.step, mark.kind) for mark in fold(other.events).marks if mark.kind in ("forked", "changed")]
    assert marks == [(4, "forked"), (1, "changed"), (3, "changed"), (4, "changed")]
    assert "doomed" in next(mark.text for mark in fold(other.events).marks if mark.kind == "forked")


def test_a_relative_change_is_of_the_value_at_the_step(parent, fork):
    """Both halve the rate before step 1, the fork again before step 2 and the parent before step 3."""
    rates, theirs = (
        [each["metrics"]["learning_rate"] for each in steps(run).values()] for run in (fork(2, HALF).run(), parent)
    )
    assert rates[:2] == theirs[:2] and rates[2] == theirs[2] / 2 and rates[3:] == theirs[3:]


@pytest.mark.parametrize("cut", [2, 5])
def test_a_fork_that_is_stopped_before_or_after_its_step_goes_on_as_the_fork(fork, cut, tmp_path):
    change = "optimizer.learning_rate=1e-5"
    whole = fork(4, change).run()
    shutil.rmtree(whole.directory)
    stopping(fork(4, change), cut).run()
    other = Session.resume(tmp_path / "fork-4", child=False).run()
    assert other.status == "done" and story(other) == story(whole)


def test_a_fork_of_a_fork(parent, fork, tmp_path):
    first = fork(5, "loss.beta=0.2").run()
    second = Session.fork(first.directory, 6, (), tmp_path / "second", child=False).run()
    assert story(second) == story(first)
    assert [mark.step for mark in fold(second.events).marks if mark.kind == "forked"] == [5, 6]


def test_in_a_child_from_a_run_that_was_stopped(tmp_path):
    """The fork goes beyond the last step of its parent, at the step for which the parent's last checkpoint is."""
    config = SMALL.with_("run.num_eval=0")
    stopping(Session(config, tmp_path / "stopped", child=False), 4).run()
    whole = Session(config, tmp_path / "whole", child=False).run()
    other = Session.fork(tmp_path / "stopped", 4, directory=tmp_path / "fork", child=True).run()
    assert story(other) == story(whole)


def test_what_cannot_be_forked(parent, fork, tmp_path):
    for step in (-1, 7, 99):
        with pytest.raises(RunError, match="from 0 to 6"):
            fork(step)
    with pytest.raises(ConfigError, match="fixed once a run has started"):
        fork(3, "run.num_steps=9")
    with pytest.raises(RunError, match="holds no run"):
        Session.fork(tmp_path / "nothing", 3)
    with pytest.raises(RunError, match="already holds a run"):
        Session.fork(parent.directory, 3, (), parent.directory)
    assert isinstance(parent.ended, Ended) and json.loads((Path(parent.directory) / "config.json").read_text())
