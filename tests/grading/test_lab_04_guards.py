"""Lab 4: the check refuses decoys, and limits that healthy runs reach; the run of labs 0 and 4 is saved, or dies."""

import math

import pytest

from grpo_lab.config.catalog import preset, scenario
from grpo_lab.course import trials
from grpo_lab.course.judges import LEAST_SAVED
from grpo_lab.events import Stepped
from grpo_lab.runs.outcome import outcome
from grpo_lab.runs.session import Session


def test_decoys_for_each_failure(findings):
    answer = {
        "zero-times-infinity": "dual_clip",
        "fp16-adam-epsilon": "skip_nonfinite",
        "nan-reward": "clamp_advantages",
    }
    for name, guard in answer.items():
        assert [f"guards.{guard}=on"] in [list(decoy) for decoy in scenario(name).decoys]
    assert [found.right for found in findings("alone", seed=1, answer=answer)] == [False] * 3


@pytest.mark.slow
def test_a_limit_that_healthy_runs_reach():
    healthy = scenario("nan-reward").config(guards=()).with_("optimizer.learning_rate=5e-4", "faults.nan_reward=off")
    low = healthy.with_guards(trials.guards_of({"clamp_kl": {"limit": 2.0}}))
    assert [found.got for found in trials.learns(low, seed=1)][1] == "clamp_kl"


class SwitchedOn:
    """A view that switches a guard on after a step, as a learner does in the panel."""

    def __init__(self, session, guard, after):
        self.session, self.guard, self.after = session, guard, after

    def show(self, event):
        if isinstance(event, Stepped) and event.step == self.after:
            self.session.set(f"guards.{self.guard}=on")


@pytest.mark.slow
@pytest.mark.parametrize(("after", "end"), [(18, "done"), (20, "crashed")])
@pytest.mark.parametrize(
    ("fault", "guard"), [("nan_reward", "sanitize_rewards"), ("shift_log_ratio", "clamp_log_ratio")]
)
def test_a_guard_switched_on_before_the_fault_saves_the_run_and_no_later_one(fault, guard, after, end, tmp_path):
    short = ("run.num_steps=60", "run.num_eval=200", "run.seed=4", "run.threads=1")
    session = Session(preset("plain").with_(*short, f"faults.{fault}.at_step=20"), tmp_path / "run")
    session.views.append(SwitchedOn(session, guard, after))
    assert session.run().status == end
    found = outcome(session.events)
    assert found.before < 0.35
    assert (found.after >= LEAST_SAVED) == (end == "done")


def test_the_run_does_what_the_prediction_calls_right(tmp_path):
    """No step is skipped: the second norm is NaN, the update is made, and the sampling of step 1 crashes."""
    session = Session(scenario("nan-passes-threshold").config().with_("run.threads=1"), tmp_path / "run").run()
    first, second = [event for event in session.events if isinstance(event, Stepped)]
    norms = [note.magnitude for note in first.links if note.link == "gradients"]
    assert math.isfinite(norms[0]) and math.isnan(norms[1])
    assert (first.updates, first.refused, first.metrics["weights/nonfinite"]) == (4, False, 834_560)
    assert second.failed and session.crash and session.crash.operator == "torch.multinomial"
