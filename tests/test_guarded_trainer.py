"""Guards inside TRL's GRPOTrainer: they see rewards, advantages, the batch and the loss, as in the learner."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import grpo_lab as gl
from grpo_lab.algorithm.batch import Batch
from grpo_lab.errors import ConfigError
from grpo_lab.events import Stage, Verdict
from grpo_lab.runs.guard_callback import POSSIBLE
from grpo_lab.runs.guarded_trainer import INSIDE, Host
from grpo_lab.runs.session import Session
from tests.test_hosted_guards import OF_TRL, NanGradient, Seen, equal

trl = pytest.importorskip("trl")
pytestmark = OF_TRL


def trained(folder, *callbacks, guards=None, steps=3, base=None, reward=None, train=True, events=None, **arguments):
    """A trainer of TRL on the tiny model, guarded if there are guards, after training."""
    from benchmarks.diagnosis import recipes

    usual = {"num_generations": 4, "max_completion_length": 4, "learning_rate": 1e-4, "logging_steps": 1, "beta": 0.04}
    rewards = (reward or recipes.accuracy(),)
    spec = recipes.Spec(steps, 2, {**usual, **arguments}, rewards, callbacks=lambda: callbacks)
    base = base or trl.GRPOTrainer
    make: Any = base if guards is None else lambda **given: gl.guarded(base)(guards=guards, events=events, **given)
    made = recipes.trainer(spec, 0, folder, make)
    if train:
        made.train()
    return made


ALL = (*POSSIBLE, *INSIDE)
SILENT = ("skip_nonfinite", "check_weights", "rollback", *(name for name in INSIDE if name != "adaptive_beta"))


@pytest.mark.parametrize(
    "arguments",
    [{"steps": 6}, {"steps": 8, "num_iterations": 2, "gradient_accumulation_steps": 2, "loss_type": "grpo"}],
    ids=["plain", "accumulated"],
)
def test_silent_guards_change_no_bit(tmp_path, arguments):
    seen = [Seen(), Seen()]
    arguments = {**arguments, "max_grad_norm": 0.1, "lr_scheduler_type": "cosine"}
    bare = trained(tmp_path / "bare", seen[0], **arguments)
    made = trained(tmp_path / "guarded", seen[1], guards=SILENT, **arguments)
    assert len(seen[0].states) == arguments["steps"] and all(map(equal, *(each.states for each in seen)))
    assert made.guard_host.report.verdict == Verdict.KEEP and made.guard_host.report.step == arguments["steps"] - 1
    rows = [[{**row, "step_time": 0} for row in each.state.log_history[:-1]] for each in (bare, made)]
    assert repr(rows[0]) == repr(rows[1])


def test_a_refused_step_leaves_no_trace_and_the_chain_can_be_traced(tmp_path):
    seen = Seen()
    trained(tmp_path, NanGradient(), seen, guards="stable", steps=4, events=tmp_path / "run")
    assert equal(seen.states[1], seen.states[2]) and not equal(seen.states[2], seen.states[3])
    session = Session.open(tmp_path / "run")
    found = session.first_break()
    assert found is not None and (found.link, found.step) == ("gradients", 2)
    links = {note.link for event in session.events if hasattr(event, "links") for note in event.links}
    assert {"rewards", "advantages", "log_ratio", "kl_delta", "gradients", "weights"} <= links


def by_call(values):
    """A reward function with these rewards at its first call, and 0 or 1 later."""
    calls = iter(range(1000))

    def score(completions, **columns):
        return list(values) if next(calls) == 0 else [float(i % 2) for i in range(len(completions))]

    return score


def advantages_of(base, kept):
    """A trainer that keeps the advantages of each batch."""

    class Keeps(base):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            kept.append(output["advantages"].clone())
            return output

    return Keeps


@pytest.mark.parametrize("broken", [math.inf, -math.inf])
def test_an_infinite_reward_costs_its_completion_and_not_its_group(tmp_path, broken):
    values = [1.0, 0.0, broken, 0.0, 1.0, 0.0, 1.0, 0.0]
    as_none, bare, guarded = [], [], []
    given = {"steps": 1}
    none = [None if value == broken else value for value in values]
    trained(tmp_path / "a", base=advantages_of(trl.GRPOTrainer, as_none), reward=by_call(none), **given)
    trained(tmp_path / "b", base=advantages_of(trl.GRPOTrainer, bare), reward=by_call(values), **given)
    base = advantages_of(trl.GRPOTrainer, guarded)
    made = trained(tmp_path / "c", base=base, reward=by_call(values), guards="sanitize_rewards", **given)
    assert torch.equal(guarded[0], as_none[0]) and guarded[0][0] > 0
    assert not torch.equal(bare[0][:4], as_none[0][:4]), "without the guard the group is lost"
    [action] = made.guard_host.report.actions
    assert (action.name, action.reason) == ("sanitize_rewards", "1 of 8 rewards were not finite")


def with_broken(base, name, value, rows):
    """A trainer whose batches have this value in some rows."""

    class Broken(base):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            broken = output[name].clone()
            broken[rows] = value
            return {**output, name: broken}

    return Broken


def guarded_with(monkeypatch, base, name, value, rows):
    """The same for a guarded trainer: the value breaks before guards see the batch."""
    return with_broken(base, name, value, rows)


def test_a_broken_sample_is_left_out_and_a_broken_batch_refused(tmp_path):
    base = with_broken(trl.GRPOTrainer, "ref_per_token_logps", torch.nan, [1])
    made = trained(tmp_path / "one", base=base, guards="drop_nonfinite_samples", steps=1)
    assert all(value.isfinite().all() for value in made.model.state_dict().values())
    assert made.guard_host.report.actions[0].reason == "1 of 8 completions were not finite"
    bare = trained(tmp_path / "bare", base=base, steps=1)
    assert any(value.isnan().any() for value in bare.model.state_dict().values())
    seen = Seen()
    base = with_broken(trl.GRPOTrainer, "ref_per_token_logps", torch.nan, list(range(8)))
    made = trained(tmp_path / "all", seen, base=base, guards="drop_nonfinite_samples", steps=2)
    assert made.guard_host.report.verdict == Verdict.SKIP_STEP
    fresh = trained(tmp_path / "fresh", steps=1, train=False)
    assert equal(list(made.model.state_dict().values()), list(fresh.model.state_dict().values()))


def test_advantages_are_clamped(tmp_path):
    kept: list[torch.Tensor] = []
    given = {"reward": by_call([1, 0, 0, 0] * 2), "steps": 1}

    class Sees(trl.GRPOTrainer):
        def _compute_loss(self, model, inputs):
            kept.append(inputs["advantages"])
            return super()._compute_loss(model, inputs)

    made = trained(tmp_path, base=Sees, guards="clamp_advantages.limit=1", **given)
    assert float(kept[0].max()) == 1.0 and made.guard_host.report.actions[0].name == "clamp_advantages"


def test_adaptive_beta_moves_beta_for_the_step_and_gives_it_back(tmp_path):
    betas = []

    class Sees(trl.GRPOTrainer):
        def _compute_loss(self, model, inputs):
            betas.append(self.beta)
            return super()._compute_loss(model, inputs)

    made = trained(tmp_path, base=Sees, guards=("adaptive_beta.target=1e-9", "skip_nonfinite"), steps=4)
    assert betas[0] == made.beta == 0.04, "and the trainer has its own again"
    kls = [row["kl"] for row in made.state.log_history if "kl" in row]
    factors = [beta / 0.04 for beta in betas]
    expected, factor = [1.0], 1.0
    for kl in kls[:-1]:
        factor *= 1 + 0.1 * min(0.2, max(-0.2, kl / 1e-9 - 1))
        expected.append(factor)
    assert factors == pytest.approx(expected) and factors[-1] != 1
    with pytest.raises(ConfigError, match="beta is 0"):
        trained(tmp_path / "off", guards="adaptive_beta", beta=0.0, train=False)
