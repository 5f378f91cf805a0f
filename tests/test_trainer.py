"""Whole steps: what guards, faults, micro-batches, seeds and refusals do to weights, moments and events."""

import copy
import dataclasses
import gc
import math
from typing import Any

import pytest
import torch
from torch import tensor

import grpo_lab as gl
from grpo_lab.config.schema import LIVE_SECTIONS
from grpo_lab.core.advantages import group_advantages
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.errors import ConfigError, RewardError
from grpo_lab.events import Changed, Ended, Evaluated, Started, Stepped, from_json, to_json
from grpo_lab.models import loading
from grpo_lab.models import precision as precisions
from grpo_lab.tasks import tasks as task_sets
from grpo_lab.training import rollouts, torch_settings, trainer
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import Outcome
from grpo_lab.training.state import Training
from tests.steps import told

SMOKE = gl.preset("smoke").with_("run.threads=1")
PRECISIONS = list(precisions.PRECISIONS)


@pytest.fixture(scope="session")
def base():
    """The tiny model in each precision; runs train copies."""
    return {precision: loading.load("tiny", precision) for precision in PRECISIONS}


class Run:
    """A run with its own copy of the model: its events, its training, and the weights as each step left them."""

    def __init__(self, base, config, **given):
        policy, self.tokenizer = base[config.model.precision]
        self.policy = copy.deepcopy(policy)
        self.initial = weights(self.policy)
        self.events: list[Any] = []
        self.after: list[list[torch.Tensor]] = []
        self.moments: list[list[torch.Tensor]] = []
        self.updates: list[int] = []
        self.error: Exception | None = None
        self.training: Any = None
        self._config, self._given = config, given

    def go(self, monkeypatch):
        def kept(*arguments):
            self.training = Training(*arguments)
            return self.training

        monkeypatch.setattr(trainer, "Training", kept)
        try:
            for event in gl.train(self._config, (self.policy, self.tokenizer), **self._given):
                self.events.append(event)
                if isinstance(event, Stepped):
                    self.after.append(weights(self.policy))
                    self.moments.append(moments(self.training))
                    self.updates.append(self.training.updates.count)
        except Exception as error:
            self.error = error
        return self

    @property
    def steps(self):
        return [event for event in self.events if isinstance(event, Stepped)]

    def metric(self, name):
        return [step.metrics.get(name) for step in self.steps]

    @property
    def verdicts(self):
        return [step.verdict.name for step in self.steps]


def weights(policy):
    return [parameter.detach().clone() for parameter in policy.parameters()]


def moments(training):
    updates = training.updates
    states = [updates.optimizer.state[p] for p in updates.parameters if p in updates.optimizer.state]
    return [state[key].clone() for state in states for key in ("step", "exp_avg", "exp_avg_sq")]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def finite(tensors):
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def comparable(events):
    """Events as JSON without the clock and the configuration."""
    return [told(event) for event in events if not isinstance(event, Started)]


@pytest.fixture
def failing(base, monkeypatch):
    """A run that may raise: with its error."""
    return lambda *overrides, **given: Run(base, SMOKE.with_(*overrides), **given).go(monkeypatch)


@pytest.fixture
def run(failing):
    def runs(*overrides, **given):
        done = failing(*overrides, **given)
        if done.error:
            raise done.error
        return done

    return runs


def poison(steps):
    """Makes one weight NaN after the update of these steps."""

    def act(policy, step):
        if step.index not in steps:
            return None
        with torch.no_grad():
            next(policy.parameters()).view(-1)[3] = torch.nan
        return Outcome(policy, Verdict.CHANGED, "poisoned")

    return act


# --- guards on a healthy run ---------------------------------------------------------------------------------------

ADAPTIVE = {"adaptive_learning_rate", "adaptive_beta"}
SILENT = [name for name, guard in GUARDS.items() if not guard.changes_healthy_runs]
ALL_GUARDS = [*(f"guards.{name}=on" for name in SILENT), "guards.clip_gradients.max_norm=1e9"]


def test_all_guards_leave_a_healthy_run_bit_identical(run):
    assert set(GUARDS) - set(SILENT) == {"warm_up", "safe_sampling", "clip_gradients", *ADAPTIVE}
    plain, guarded = run("run.num_steps=6"), run("run.num_steps=6", *ALL_GUARDS)
    assert len(plain.steps) == 6 and max(plain.metric("grad_norm")) < 10
    assert comparable(plain.events) == comparable(guarded.events)
    assert same(plain.policy.parameters(), guarded.policy.parameters())
    assert not same(plain.policy.parameters(), plain.initial)


@pytest.mark.parametrize("name", ["warm_up", "clip_gradients", "adaptive_beta"])
def test_a_guard_that_says_it_changes_healthy_runs_does(run, name):
    plain, guarded = run("run.num_steps=2"), run("run.num_steps=2", f"guards.{name}=on")
    assert not same(plain.after[1], guarded.after[1])  # AdamW's first step does not depend on the gradient's size
    assert {action.name for step in guarded.steps for action in step.actions} == {name}


# --- micro-batches -------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(fault):
    """Switches on something that keeps copies of the gradients and of the batch of every update."""
    kept: dict[str, list[Any]] = {"gradients": [], "batches": []}

    def keep_gradients(policy, step):
        kept["gradients"].append([p.grad.clone() for p in policy.parameters()])

    def keep_batch(batch, step):
        kept["batches"].append(batch)

    switches = (fault(Stage.GRADIENTS, keep_gradients, "keep_gradients"), fault(Stage.BATCH, keep_batch, "keep_batch"))
    return switches, kept


def every_third_unscorable(completions, **_):
    """Half a point a character, and None for every third, so that groups are ragged."""
    return [None if row % 3 == 1 else len(text) / 2 + row % 2 for row, text in enumerate(completions)]


def test_a_mean_of_micro_batches_weighs_each_the_same_and_is_nan_where_one_has_no_token(run, fault):
    """The mean over all tokens weighs a micro-batch by its tokens, and one without a token is 0 in it."""
    found = []
    cause = fault(Stage.LOSS, lambda loss, step: found.append((step.batch, loss.detach())))
    own = ("loss.aggregation=micro_batch", "data.micro_batch_prompts=1", "run.num_steps=1", cause)
    run(*own)
    for batch, _ in found:
        (weight,) = batch.weights[batch.completion_mask].unique()
        assert float(weight) == pytest.approx(1 / len(found) / int(batch.completion_mask.sum()))
    assert len(found) > 1 and len({int(batch.completion_mask.sum()) for batch, _ in found}) > 1
    found.clear()
    masked = ("loss.completion_mask=not_truncated", "sampling.max_completion_length=3", "data.num_prompts=8")
    done = run(*own, *masked)
    empty = [not batch.ended.any() for batch, _ in found]
    assert [bool(loss.isnan()) for _, loss in found] == empty and any(empty) and not all(empty)
    assert math.isnan(done.metric("grad_norm")[0])
    found.clear()
    done = run(*own, *masked, "loss.aggregation=token")
    assert all(loss.isfinite() for _, loss in found) and math.isfinite(done.metric("grad_norm")[0])


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant", "sum"])
def test_micro_batches_add_up_to_the_gradient_of_the_batch(run, seen, aggregation):
    switches, kept = seen
    overrides = (
        *switches,
        f"loss.aggregation={aggregation}",
        "loss.num_iterations=2",
        "loss.beta=0.1",
        "run.num_steps=1",
        "optimizer.adam_eps=1e-3",  # with less, AdamW blows the last bits of the smallest gradients up to whole steps
    )
    whole = run(*overrides, rewards=[every_third_unscorable])
    parts = run(*overrides, "data.micro_batch_prompts=3", rewards=[every_third_unscorable])
    assert len(kept["batches"][0].completion_mask.sum(dim=1).unique()) > 1
    assert len(kept["batches"][0].group.unique(return_counts=True)[1].unique()) > 1
    first, second, *split = kept["gradients"]
    assert len(split) == 2
    for expected, found in ((first, split[0]), (second, split[1])):
        largest = max(float(gradient.abs().max()) for gradient in expected)
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=2e-6 * largest)
    for a, b in zip(whole.policy.parameters(), parts.policy.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-6)
    for name in ("loss", "kl", "grad_norm", "clip_ratio/region_mean", "log_ratio/max"):
        assert parts.metric(name)[0] == pytest.approx(whole.metric(name)[0], rel=1e-3, abs=1e-6), name


# --- seeds ---------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_another_does_not(run):
    first, again, other = run(), run(), run("run.seed=1")
    assert comparable(first.events) == comparable(again.events)
    assert same(first.policy.parameters(), again.policy.parameters())
    assert first.steps[0].samples != other.steps[0].samples
    assert not same(first.after[0], other.after[0])


def test_a_run_reads_and_moves_no_global_randomness(run):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = run("run.num_steps=2")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert comparable(run("run.num_steps=2").events) == comparable(first.events)


def test_a_skipped_step_does_not_change_what_later_ones_draw(run):
    """With one prompt and a learning rate of 0 only draws can differ, between steps and between both runs."""
    still = ("optimizer.learning_rate=0", "run.num_steps=4", "guards.skip_nonfinite=on")
    tasks = task_sets.Tasks("one", [task_sets.Problem("1+1=", {"answer": "2"})] * 4, [])
    whole, skipping = run(*still, tasks=tasks), run(*still, "faults.nan_gradient=on", tasks=tasks)
    assert whole.verdicts == ["KEEP"] * 4
    assert skipping.verdicts == ["KEEP", "SKIP_STEP", "KEEP", "KEEP"]
    assert [step.samples for step in whole.steps] == [step.samples for step in skipping.steps]
    assert len({step.samples for step in whole.steps}) == 4


# --- several updates on a batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["top_p=1", "top_p=0.9", "temperature=0.7"])
def test_the_ratio_is_one_at_the_first_update_and_moves_after_it(run, sampling):
    three = ("loss.num_iterations=3", "optimizer.learning_rate=3e-3", f"sampling.{sampling}")
    done = run(*three)
    for step in done.steps:
        largest = {note.update: note.magnitude for note in step.links if note.link == Stage.LOG_RATIO}
        assert list(largest) == [0, 1, 2]
        assert largest[0] < 1e-4 and largest[1] > 1e-2 and largest[2] > 1e-2
    assert done.updates == [3, 6, 9] and [step.updates for step in done.steps] == [3, 3, 3]
    assert max(done.metric("clip_ratio/region_mean")) > 0.05
    once = run("optimizer.learning_rate=3e-3", f"sampling.{sampling}")
    assert once.metric("clip_ratio/region_mean") == [0.0] * 3


def test_gradients_of_one_update_do_not_reach_the_next(run, seen):
    """Without a learning rate, two updates on one batch have the same gradient."""
    switches, kept = seen
    run(*switches, "loss.num_iterations=2", "optimizer.learning_rate=0", "run.num_steps=2")
    first, second, third, _ = kept["gradients"]
    assert same(first, second) and not same(second, third)


def test_a_refusal_in_the_second_update_keeps_the_first(run, fault):
    def act(policy, step):
        if step.index == 1 and step.update == 1:
            next(policy.parameters()).grad.view(-1)[0] = torch.nan

    overrides = (fault(Stage.GRADIENTS, act), "guards.skip_nonfinite=on", "loss.num_iterations=2")
    done = run(*overrides)
    assert done.verdicts == ["KEEP", "SKIP_STEP", "KEEP"]
    assert [step.updates for step in done.steps] == [2, 1, 2] and done.updates == [2, 3, 5]
    assert not same(done.after[0], done.after[1]) and finite(done.after[1])


# --- an update is a transaction ------------------------------------------------------------------------------------


def test_a_refused_update_leaves_no_trace(run):
    done = run("faults.nan_gradient=on", "guards.skip_nonfinite=on")
    assert done.verdicts == ["KEEP", "SKIP_STEP", "KEEP"]
    assert done.steps[1].actions[-1].reason == "grad norm nan is not finite"
    assert same(done.after[0], done.after[1]) and same(done.moments[0], done.moments[1])
    assert done.updates == [1, 1, 2] and done.steps[1].updates == 0
    assert not same(done.after[1], done.after[2]) and finite(done.after[2])
    assert all(parameter.grad is None for parameter in done.policy.parameters())


def test_without_a_guard_the_same_nan_is_stepped(failing):
    done = failing("faults.nan_gradient=on", "guards.clip_gradients=on")
    assert gl.classify_crash(str(done.error)).operator == "torch.multinomial"
    assert not finite(done.after[1])
    assert done.steps[-1].failed and done.steps[-1].step == 2


COSINE = [3e-4 * 0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]


@pytest.mark.parametrize("fault", ["faults.nan_gradient=on", "guards.clip_gradients=on"])
def test_the_last_step_has_the_end_of_the_schedule_whatever_was_refused(run, fault):
    overrides = ("optimizer.schedule=cosine", "guards.skip_nonfinite=on", "run.num_steps=4")
    done = run(*overrides, fault, "loss.num_iterations=2")
    assert done.metric("learning_rate") == pytest.approx(COSINE, rel=1e-15)
    assert done.updates[-1] == 2 * (4 if "clip" in fault else 3)


def test_a_rollback_restores_bits_and_the_learning_rate_is_halved_after_it(run, fault):
    overrides = (fault(Stage.WEIGHTS, poison({1})), "guards.check_weights=on", "guards.rollback=on")
    done = run(*overrides, "run.num_steps=4", "loss.num_iterations=2")
    assert done.verdicts == ["KEEP", "ROLL_BACK", "CHANGED", "CHANGED"]
    assert same(done.after[0], done.after[1]) and same(done.moments[0], done.moments[1])
    assert done.moments[1] and done.updates == [2, 2, 4, 6] and done.steps[1].updates == 0
    assert done.metric("learning_rate") == [3e-4, 3e-4, 1.5e-4, 1.5e-4]
    assert done.steps[1].actions[-1].reason.endswith("weight tensors hold NaN or inf")
    assert finite(done.after[3]) and not same(done.after[2], done.after[1])


def test_a_rollback_over_several_steps_takes_their_updates_back(run, fault):
    overrides = (fault(Stage.WEIGHTS, poison({3})), "guards.check_weights=on", "run.num_steps=8")
    done = run(*overrides, "run.snapshot_every=2", "optimizer.schedule=cosine")
    assert done.verdicts[3] == "ROLL_BACK"
    assert done.updates == [1, 2, 3, 2, 3, 4, 5, 6]
    assert same(done.after[3], done.after[1]) and same(done.moments[3], done.moments[1])
    assert done.metric("learning_rate")[4] == pytest.approx(COSINE[2]), "and not the schedule"


def test_a_small_model_takes_the_fastest_number_of_threads_and_a_large_one_as_many_as_torch_has(run, monkeypatch):
    """With 6 cores of which 4 are idle, a product takes 1/n on n threads up to 4, and longer again on all."""
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch_settings, "_seconds", lambda threads: {1: 1.0, 2: 0.5, 4: 0.25, 6: 0.9}[threads])
    short = ("run.num_steps=1", "data.num_prompts=2")
    found = {}
    for name, given, small in (("tried", 0, 10**7), ("configured", 3, 10**7), ("large", 0, 800_000)):
        threads.append(6)
        monkeypatch.setattr(torch_settings, "SMALL", small)
        [started] = [e for e in run(*short, f"run.threads={given}").events if isinstance(e, Started)]
        found[name] = started.threads
    assert found == {"tried": 4, "configured": 3, "large": 6}


def test_a_snapshot_is_never_taken_of_broken_weights(run, fault):
    """Poisoned in step 1 and seen by nobody; the guard of the probabilities notices in step 2."""
    overrides = (fault(Stage.WEIGHTS, poison({1})), "guards.check_probabilities=on", "run.num_steps=4")
    done = run(*overrides)
    assert done.verdicts[:3] == ["KEEP", "CHANGED", "ROLL_BACK"]
    assert not finite(done.after[1])
    assert same(done.after[2], done.after[0]) and same(done.moments[2], done.moments[0])
    assert done.verdicts[3] == "KEEP" and finite(done.after[3])


def test_a_stop_leaves_the_last_healthy_weights(run, fault):
    overrides = (fault(Stage.WEIGHTS, poison(range(1, 99))), "guards.check_weights.patience=2", "run.num_steps=9")
    done = run(*overrides)
    assert done.verdicts == ["KEEP", "ROLL_BACK", "ROLL_BACK", "STOP"]
    ended = done.events[-1]
    assert isinstance(ended, Ended) and ended.status == "stopped"
    assert ended.message.endswith("; 3 steps in a row, patience 2")
    assert same(done.policy.parameters(), done.after[0]) and finite(done.policy.parameters())
    assert not any(isinstance(event, Evaluated) for event in done.events)


def test_dropout_of_one_step_does_not_reach_the_next(run, fault):
    done = run("faults.dropout_on=on", "run.num_steps=2")
    assert not same(done.after[0], run("run.num_steps=2").after[0])
    modes = []
    run("faults.dropout_on=on", fault(Stage.SAMPLING, lambda _, step: modes.append(step.policy.training)))
    assert modes == [False] * 3
    still = run("faults.dropout_on=on", "run.num_steps=2", "optimizer.learning_rate=0")
    clean = run("run.num_steps=2", "optimizer.learning_rate=0")
    assert [step.samples for step in still.steps] == [step.samples for step in clean.steps]


# --- the controls door ---------------------------------------------------------------------------------------------


def door(**changes):
    """A `controls` that answers with these overrides: at_1=("loss.beta=0.5",)."""
    return lambda step: changes.get(f"at_{step}", ())


def test_overrides_at_the_top_of_a_step_act_in_it_and_are_told(run):
    changes = {"at_1": ("loss.beta=0.5", "optimizer.learning_rate=*0.1"), "at_2": ("guards.clip_gradients=on",)}
    done = run(controls=door(**changes))
    assert done.metric("beta") == [0.02, 0.5, 0.5]
    assert done.metric("learning_rate") == pytest.approx([3e-4, 3e-5, 3e-5])
    changed = [(place, event) for place, event in enumerate(done.events) if isinstance(event, Changed)]
    assert [event for _, event in changed] == [Changed(1, changes["at_1"]), Changed(2, changes["at_2"])]
    assert all(done.events[place + 1].step == event.step for place, event in changed)
    assert [action.name for action in done.steps[2].actions] == ["clip_gradients"]
    assert done.steps[1].actions == ()


@pytest.mark.parametrize("setting", ["schedule=cosine", "adam_eps=1e-3", "weight_decay=9"])
def test_a_setting_of_the_optimizer_reaches_a_running_model(run, setting):
    override = f"optimizer.{setting}"
    changed, configured = run(controls=door(at_0=(override,))), run(override)
    assert same(changed.policy.parameters(), configured.policy.parameters())
    assert not same(changed.policy.parameters(), run().policy.parameters())


@pytest.mark.parametrize("override", ["run.num_steps=9", "faults.nan_gradient=on"])
def test_what_is_fixed_cannot_be_changed_while_running(failing, override):
    section = override.partition(".")[0]
    assert section not in LIVE_SECTIONS
    done = failing(controls=door(at_1=(override,)))
    assert isinstance(done.error, ConfigError)
    assert f"{section}.* is fixed once a run has started; {', '.join(LIVE_SECTIONS)} may change" in str(done.error)
    assert len(done.steps) == 1


def test_guards_keep_their_memory_through_a_change(run, fault):
    def act(policy, step):
        next(policy.parameters()).grad.view(-1)[0] = torch.nan

    overrides = (fault(Stage.GRADIENTS, act), "guards.skip_nonfinite.patience=2", "run.num_steps=5")
    expected = ["SKIP_STEP", "SKIP_STEP", "ROLL_BACK", "ROLL_BACK", "ROLL_BACK"]
    assert run(*overrides).verdicts == expected
    changes = {"at_1": ("loss.beta=0.1",), "at_2": ("guards.clip_gradients=on",)}
    assert run(*overrides, controls=door(**changes)).verdicts == expected


# --- precisions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_trains(run, precision):
    done = run(f"model.precision={precision}", "optimizer.adam_eps=1e-4", "run.num_steps=2")
    assert done.updates == [1, 2] and finite(done.policy.parameters())
    assert not same(done.policy.parameters(), done.initial)
    assert {p.dtype for p in done.policy.parameters()} == {precisions.PRECISIONS[precision].weights}
    assert ("loss_scale" in done.steps[0].metrics) == (precision == "fp16")
    assert ("sampling/sampling_logp_difference/max" in done.steps[0].metrics) == (precision != "fp32")
    log_ratios = [note for note in done.steps[0].links if note.link == Stage.LOG_RATIO]
    assert [note.magnitude < 1e-4 for note in log_ratios] == [True]


def test_mixed_fp16_has_the_gradients_of_fp32(run):
    """GradScaler's factor is gone before anybody looks."""
    precise = run("run.num_steps=1", rewards=[every_third_unscorable])
    mixed = run("run.num_steps=1", "model.precision=fp16", rewards=[every_third_unscorable])
    assert precise.steps[0].samples == mixed.steps[0].samples
    assert mixed.metric("grad_norm")[0] == pytest.approx(precise.metric("grad_norm")[0], rel=0.02)
    assert mixed.metric("loss_scale") == [65536.0]


@pytest.fixture
def overflow(fault):
    """Switches on a loss that is out of range in step 1."""
    return fault(Stage.LOSS, lambda loss, step: Outcome(loss * 1e35, Verdict.CHANGED) if step.index == 1 else None)


def test_grad_scaler_leaves_out_an_update_with_inf_gradients_and_says_so(run, overflow):
    done = run(overflow, "model.precision=fp16")
    assert done.updates == [1, 1, 2] and [step.updates for step in done.steps] == [1, 0, 1]
    assert done.metric("loss_scale") == [65536.0, 32768.0, 32768.0]
    assert same(done.after[0], done.after[1]) and same(done.moments[0], done.moments[1])
    assert not any(note.link == "moments" for note in done.steps[1].links)


def test_the_loss_scale_falls_also_when_a_guard_refuses_first(run, overflow):
    done = run(overflow, "model.precision=fp16", "guards.skip_nonfinite=on")
    assert done.verdicts == ["KEEP", "SKIP_STEP", "KEEP"]
    assert done.updates == [1, 1, 2]
    assert done.metric("loss_scale") == [65536.0, 32768.0, 32768.0]


# --- rewards -------------------------------------------------------------------------------------------------------


def constant(*rewards):
    """A reward function that gives these to the completions, over and over."""

    def given(completions, **_):
        return [rewards[row % len(rewards)] for row in range(len(completions))]

    return [given]


def test_a_reward_that_raises_is_a_reward_error_after_a_failed_step(failing):
    def broken(**_):
        raise ZeroDivisionError("no answer")

    done = failing(rewards=[broken])
    assert isinstance(done.error, RewardError)
    assert str(done.error).startswith("reward broken raised ZeroDivisionError: no answer")
    assert done.steps[-1].failed and done.events[-1] is done.steps[-1]
    assert any(note.link == "probabilities" for note in done.steps[-1].links), "what was noted before is not lost"


def test_sanitized_rewards_are_as_if_they_had_not_been_scored(run):
    dirty = run("guards.sanitize_rewards=on", rewards=constant(1.0, 0.0, math.nan, 0.0))
    clean = run(rewards=constant(1.0, 0.0, None, 0.0))
    assert same(dirty.policy.parameters(), clean.policy.parameters())
    assert dirty.metric("reward") == clean.metric("reward") == pytest.approx([1 / 3] * 3)
    assert dirty.steps[0].actions[0].reason == "4 of 16 rewards were not finite"
    assert gl.first_break(dirty.events) is None


def test_unscorable_completions_leave_group_statistics_and_loss(run, seen):
    switches, kept = seen
    run(*switches, "run.num_steps=1", rewards=constant(1.0, None, 0.0, 0.5))
    batch = kept["batches"][0]
    assert batch.group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    expected = group_advantages(tensor([[1.0, 0.0, 0.5]] * 4)).flatten()
    torch.testing.assert_close(batch.advantages, expected)
    assert batch.old_logprobs.shape == batch.completions.shape and len(batch.completions) == 12


def test_the_spread_of_rewards_is_of_those_that_were_scored(run):
    spread = run("run.num_steps=1", rewards=constant(1.0, None, 0.0, 0.5)).steps[0].metrics
    assert spread["reward"] == pytest.approx(0.5)
    assert spread["reward_std"] == pytest.approx(0.5)
    assert spread["frac_reward_zero_std"] == 0.0
    level = run("run.num_steps=1", rewards=constant(1.0, None, 1.0, 1.0)).steps[0].metrics
    assert level["reward_std"] == 0.0 and level["frac_reward_zero_std"] == 1.0


def test_nothing_scorable_refuses_the_step(run):
    done = run(rewards=constant(None))
    assert done.verdicts == ["SKIP_STEP"] * 3 and done.updates == [0, 0, 0]
    action = done.steps[0].actions[0]
    assert (action.name, action.kind, action.stage) == ("trainer", "trainer", "rewards")
    assert action.reason.startswith("none of") and "16 completions" in action.reason
    assert same(done.policy.parameters(), done.initial)


# --- the reference -------------------------------------------------------------------------------------------------


def test_the_kl_is_of_the_reference_minus_the_policy(run, fault):
    """The other way round, k3 estimates another divergence."""
    found = []

    def compare(delta, step):
        batch = step.batch
        expected = (batch.ref_logprobs - batch.old_logprobs).masked_fill(~batch.completion_mask, 0.0)
        found.append((torch.allclose(delta, expected, atol=1e-5), float(expected.detach().abs().amax())))

    run(fault(Stage.KL_DELTA, compare), "optimizer.learning_rate=3e-3")
    assert all(close for close, _ in found) and max(largest for _, largest in found) > 1e-2


def test_without_beta_there_is_no_reference(run):
    done = run("loss.beta=0")
    assert done.training.reference is None
    assert done.metric("kl") == [None] * 3
    assert not {note.link for note in done.steps[0].links} & {"kl_delta", "ref_logprobs"}
    assert finite(done.policy.parameters()) and not same(done.policy.parameters(), done.initial)


def test_the_reference_stays_as_it_was(run):
    done = run("optimizer.learning_rate=1e-3")
    assert same(done.training.reference.parameters(), done.initial)
    assert not any(parameter.requires_grad for parameter in done.training.reference.parameters())
    kl = done.metric("kl")
    assert kl[0] == pytest.approx(0, abs=1e-9) and kl[2] > 1e-4


def test_beta_may_fall_to_zero_but_not_rise_from_it(run, failing):
    fallen = run(controls=door(at_1=("loss.beta=0",)))
    assert fallen.metric("beta") == [0.02, 0.0, 0.0] and fallen.metric("kl")[2] is not None
    risen = failing("loss.beta=0", controls=door(at_1=("loss.beta=0.1",)))
    assert isinstance(risen.error, ConfigError) and "started with loss.beta = 0" in str(risen.error)


# --- what is passed in ---------------------------------------------------------------------------------------------


def test_own_model_tasks_and_rewards_are_used(run):
    problems = [task_sets.Problem(f"{number}+0=", {"wanted": str(number)}) for number in range(8)]
    asked: list[tuple[list[str], list[str]]] = []

    def judge(prompts, completions, wanted):
        asked.append((prompts, wanted))
        return [float(completion == answer) for completion, answer in zip(completions, wanted, strict=True)]

    tasks = task_sets.Tasks("mine", problems[:6], problems[6:])
    done = run("run.num_eval=5", tasks=tasks, rewards=[judge])
    before, *steps, after = asked
    assert before == after == (["6+0=", "7+0="], ["6", "7"])
    assert all(len(prompts) == 16 and set(prompts) <= {p.prompt for p in tasks.train} for prompts, _ in steps)
    assert all(prompts[::4] == prompts[3::4] for prompts, _ in steps), "a group has one prompt"
    assert done.training.policy is done.policy
    assert not same(done.policy.parameters(), done.initial), "trained in place"


def test_without_a_model_the_configured_one_is_loaded():
    events = list(gl.train(SMOKE.with_("run.num_steps=1")))
    started, stepped, ended = events
    assert started == Started(SMOKE.with_("run.num_steps=1").to_dict(), 834_560, "cpu", 1)
    assert isinstance(stepped, Stepped) and ended == Ended("done")


# --- evaluation and events -----------------------------------------------------------------------------------------


def test_evaluation_frames_the_run_and_does_not_disturb_it(run):
    plain, measured = run(), run("run.num_eval=40")
    kinds = [type(event).__name__ for event in measured.events]
    assert kinds == ["Started", "Evaluated", *["Stepped"] * 3, "Evaluated", "Ended"]
    before, after = (event for event in measured.events if isinstance(event, Evaluated))
    assert (before.step, after.step) == (0, 3) and before.num_problems == after.num_problems == 40
    assert 0.1 < before.reward < 0.6
    assert same(plain.policy.parameters(), measured.policy.parameters())
    without = [event for event in measured.events if not isinstance(event, Evaluated)]
    assert comparable(plain.events) == comparable(without)


def test_evaluation_draws_the_same_problems_and_numbers_each_time(run):
    measured = run("run.num_eval=40", "optimizer.learning_rate=0")
    before, after = (event for event in measured.events if isinstance(event, Evaluated))
    assert before.reward == after.reward
    many = run("run.num_eval=300", "run.num_steps=1")
    assert [event.num_problems for event in many.events if isinstance(event, Evaluated)] == [300, 300]


def test_evaluation_leaves_out_what_nobody_could_judge(run):
    done = run("run.num_eval=40", "run.num_steps=1", rewards=constant(1.0, None))
    assert [event for event in done.events if isinstance(event, Evaluated)] == [
        Evaluated(0, 1.0, 20),
        Evaluated(1, 1.0, 20),
    ]


def test_the_events_of_real_runs_survive_json(run, failing):
    """Of a healthy run, and of one with NaN in it, where equality needs the text."""
    started, *healthy = run("run.num_eval=20", controls=door(at_1=("loss.beta=0.1",))).events
    assert [from_json(to_json(event)) for event in healthy] == healthy
    assert gl.Config.from_dict(from_json(to_json(started)).config) == SMOKE.with_("run.num_eval=20")  # type: ignore[union-attr]
    broken = failing("faults.nan_gradient=on", "guards.clip_gradients=on").events
    lines = [to_json(event) for event in broken]
    assert '"nan"' in "".join(lines)
    assert [to_json(from_json(line)) for line in lines] == lines


def test_a_run_may_be_left_in_the_middle(base):
    policy, tokenizer = copy.deepcopy(base["fp32"])
    events: Any = gl.train(SMOKE, (policy, tokenizer))
    assert [type(next(events)).__name__ for _ in range(2)] == ["Started", "Stepped"]
    events.close()
    del events
    gc.collect()
    assert finite(policy.parameters()) and not policy.training
    with torch.no_grad():
        rollouts.sample(policy, tokenizer, ["1+1="], 1, SMOKE.sampling, torch.Generator().manual_seed(0))


def test_the_loss_that_is_told_is_the_one_that_was_differentiated(run, fault):
    overrides = ("loss.num_iterations=2", "data.micro_batch_prompts=1", "run.num_steps=1")
    plain = run(*overrides)
    shift = fault(Stage.LOSS, lambda loss, step: Outcome(loss.reshape(1) + 3.0, Verdict.CHANGED, "three more"))
    shifted = run(*overrides, shift)
    assert shifted.metric("loss")[0] == pytest.approx(plain.metric("loss")[0] + 3.0 * 4, abs=1e-5)


def test_the_constant_is_the_length_that_a_guard_left_and_not_the_longest_completion(run, seen, fault):
    """Each step divides by the same number, however long the completions of its batch are."""
    switches, kept = seen

    def shorten(sampling, step):
        return Outcome(dataclasses.replace(sampling, max_completion_length=5), Verdict.CHANGED)

    for guard, length in (((), 8), ((fault(Stage.SAMPLING, shorten),), 5)):
        kept["batches"].clear()
        still = ("loss.beta=0", "run.num_steps=3", "sampling.max_completion_length=8", *guard)
        constant = run(*switches, *still, "loss.aggregation=constant", "optimizer.learning_rate=0").metric("grad_norm")
        batches = list(kept["batches"])
        token = run(*switches, *still, "loss.aggregation=token", "optimizer.learning_rate=0").metric("grad_norm")
        factors = [float(batch.completion_mask.sum()) / (len(batch.group) * length) for batch in batches]
        assert [a / b for a, b in zip(constant, token, strict=True)] == pytest.approx(factors, rel=1e-4)
        assert any(batch.completions.shape[1] < length for batch in batches), "a batch shorter than the limit"


def test_frozen_parameters_stay_as_they_are(base):
    policy, tokenizer = copy.deepcopy(base["fp32"])
    policy.transformer.wpe.weight.requires_grad_(False)
    before = policy.transformer.wpe.weight.clone()
    events = list(gl.train(SMOKE.with_("run.num_steps=2"), (policy, tokenizer)))
    assert events[-1] == Ended("done") and torch.equal(policy.transformer.wpe.weight, before)


def test_a_temperature_that_a_guard_sets_is_the_one_of_the_whole_step(run, fault):
    """Exact KL and faults among them: nothing tells the run from one that is configured so."""

    def heat(sampling, step):
        return Outcome(dataclasses.replace(sampling, temperature=0.5), Verdict.CHANGED)

    guard = fault(Stage.SAMPLING, heat, "heat")
    guarded = run(guard, "sampling.temperature=0.1", "run.exact_kl=true", "faults.ignore_temperature=on")
    configured = run("sampling.temperature=0.5", "run.exact_kl=true", "faults.ignore_temperature=on")
    assert guarded.metric("kl/exact")[-1] > 0
    assert guarded.metric("kl/exact") == configured.metric("kl/exact")
    assert same(guarded.policy.parameters(), configured.policy.parameters())
