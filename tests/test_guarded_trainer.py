"""Guards inside TRL's GRPOTrainer: they see rewards, advantages, the batch and the loss, as in the trainer."""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import transformers

import grpo_lab as gl
from benchmarks.diagnosis.recipes import in_half
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.events import Stepped
from grpo_lab.hosted.trainers import NEEDS, Host
from grpo_lab.runs.session import Session
from tests.hosted import OF_TRL, NanGradient, Seen, equal, trained

trl = pytest.importorskip("trl")
pytestmark = [OF_TRL, pytest.mark.trl]


SILENT = ("skip_nonfinite", "check_weights", "rollback", "sanitize_rewards", "clamp_advantages")
SILENT += ("drop_nonfinite_samples", "clamp_log_ratio.limit=1e6", "clamp_kl.limit=1e6", "dual_clip.delta=1e9")


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
    told = [{name: row.pop(name) for name in list(row) if name.startswith("guards/")} for row in rows[1]]
    assert repr(rows[0]) == repr(rows[1])
    rates = [row["learning_rate"] for row in rows[1]]
    assert told == [{"guards/verdict": 0, "guards/refused": 0, "guards/learning_rate": rate} for rate in rates]


def test_a_refused_step_leaves_no_trace_and_the_chain_can_be_traced(tmp_path):
    seen = Seen()
    trained(tmp_path, NanGradient(), seen, guards="stable", steps=4, events=tmp_path / "run")
    assert equal(seen.states[1], seen.states[2]) and not equal(seen.states[2], seen.states[3])
    session = Session.open(tmp_path / "run")
    found = session.first_break()
    assert found is not None and (found.link, found.step) == ("gradients", 2)
    links = {note.link for event in session.events if isinstance(event, Stepped) for note in event.links}
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
    given: Any = {"steps": 1}
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


def test_adaptive_beta_moves_beta_for_the_step_and_gives_it_back(tmp_path):
    betas = []

    class Sees(trl.GRPOTrainer):
        def _compute_loss(self, model, inputs):
            betas.append(self.beta)
            return super()._compute_loss(model, inputs)

    made = trained(tmp_path, base=Sees, guards=("adaptive_beta.target=1e-9", "skip_nonfinite"), steps=4)
    assert betas[0] == made.beta == 0.04, "and the trainer has its own again"
    assert betas[-1] > 0.04, "the KL is above its target"
    with pytest.raises(ConfigError, match="beta is 0"):
        trained(tmp_path / "off", guards="adaptive_beta", beta=0.0, train=False)


# --- what is the user's stays as it was ------------------------------------------------------------------------------

HOSTS = pytest.mark.parametrize("guarded", [False, True], ids=["callback", "guarded"])


def hosted(folder, *callbacks, names, guarded=True, **given):
    """A trainer of TRL with these guards, in a callback or as a guarded trainer."""
    if guarded:
        return trained(folder, *callbacks, guards=names, **given)
    events = given.pop("events", None)
    return trained(folder, *callbacks, gl.GuardCallback(*names, events=events), **given)


def host_of(made) -> Any:
    return next(each for each in made.callback_handler.callbacks if isinstance(each, gl.GuardCallback))


class Fails(transformers.TrainerCallback):
    """Raises in the middle of the second step."""

    def on_pre_optimizer_step(self, args, state, control, **given):
        if state.global_step == 1:
            raise MemoryError("no room")


@HOSTS
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_nothing_of_the_users_is_changed(tmp_path, guarded, fails):
    names = ("warm_up.steps=10", "adaptive_beta.target=1e-9", "dual_clip", "skip_nonfinite")
    names = names if guarded else (names[0], *names[2:])
    given = {"max_grad_norm": 0.05, "steps": 3, "save_strategy": "steps", "save_steps": 1, "train": False}
    made = hosted(tmp_path, *([Fails()] if fails else []), names=names, guarded=guarded, **given)
    before, beta = repr(made.args.to_dict()), made.beta
    methods = [made.log, made.compute_loss, made.accelerator.clip_grad_norm_]
    with pytest.raises(MemoryError) if fails else nullcontext():
        made.train()
    assert repr(made.args.to_dict()) == before and made.beta == beta
    stored = torch.load(tmp_path / "checkpoint-1" / "training_args.bin", weights_only=False)
    assert (stored.max_grad_norm, stored.delta, stored.logging_nan_inf_filter) == (0.05, None, True)
    if guarded or not fails:  # no hook tells a callback of an error; then it leaves when the trainer trains again
        assert [made.log, made.compute_loss, made.accelerator.clip_grad_norm_] == methods
        assert made.optimizer.param_groups[0]["lr"] == made.lr_scheduler.get_last_lr()[0]


@HOSTS
def test_a_trainer_clips_as_if_it_were_alone(tmp_path, guarded):
    args = {"max_grad_norm": 0.01, "steps": 3}
    bare = trained(tmp_path / "bare", **args)
    made = hosted(tmp_path / "a", names=["skip_nonfinite"], guarded=guarded, **args)
    assert equal(list(made.model.state_dict().values()), list(bare.model.state_dict().values()))


@HOSTS
def test_the_first_broken_gradient_is_named_before_anything_clips(tmp_path, guarded):
    """transformers clips with inf where max_grad_norm is 0, and one NaN would spread to every gradient."""
    for limit in (0.0, 1.0):
        folder = tmp_path / str(limit)
        given = {"max_grad_norm": limit, "events": folder / "run", "train": False, "steps": 2}
        made = hosted(folder, names=["skip_nonfinite"], guarded=guarded, **given)
        broken = dict(made.model.named_parameters())["transformer.h.1.mlp.c_fc.weight"]

        def one_nan(gradient):
            return gradient.index_put((torch.tensor([3]), torch.tensor([5])), torch.tensor(torch.nan))

        broken.register_hook(one_nan)
        made.train()
        found = Session.open(folder / "run").first_break()
        assert found is not None and (found.link, found.step) == ("gradients", 0)
        [note] = [
            note
            for event in Session.open(folder / "run").events
            if isinstance(event, Stepped) and event.step == 0
            for note in event.links
            if note.link == "gradients"
        ]
        assert (note.where, note.nonfinite) == ("transformer.h.1.mlp.c_fc.weight", 1)
        assert host_of(made).report.reason == "grad norm nan is not finite"
        assert math.isnan(made.state.log_history[0]["grad_norm"])


@HOSTS
def test_logs_say_what_the_guards_did(tmp_path, guarded):
    given = {"steps": 6, "logging_steps": 2, "lr_scheduler_type": "constant"}
    made = hosted(
        tmp_path, NanGradient(), names=["warm_up.steps=6", "skip_nonfinite"], guarded=guarded, **given
    )  # the gradient of step 2 is NaN
    rows = [{k: v for k, v in row.items() if k.startswith("guards/")} for row in made.state.log_history[:-1]]
    assert [row["guards/verdict"] for row in rows] == [Verdict.CHANGED, Verdict.SKIP_STEP, Verdict.CHANGED]
    assert [row["guards/refused"] for row in rows] == [0, 1, 1]
    assert [row["guards/learning_rate"] for row in rows] == pytest.approx([1e-4 * share / 6 for share in (2, 4, 6)])
    assert all(row["learning_rate"] == 1e-4 for row in made.state.log_history[:-1])


# --- a run that is preempted goes on ---------------------------------------------------------------------------------

MEMORIES = {
    "adaptive_learning_rate.warm_up=2": (False, 3, (3,)),
    "skip_nonfinite.patience=1": (False, 1, (3, 4)),
    "check_weights": (True, 3, (4,)),
    "rollback.patience=2": (True, 1, (3, 4)),
    "adaptive_beta.target=1e-9": (True, 1, ()),
}
"""Guards that remember: in a guarded trainer or a callback, every how many steps a snapshot, steps that are harmed."""


class Harms(transformers.TrainerCallback):
    def __init__(self, steps, by):
        self.steps, self.by = steps, by

    def on_pre_optimizer_step(self, args, state, control, **given):
        if state.global_step in self.steps:
            for parameter in given["model"].parameters():
                parameter.grad *= self.by


class Preempted(transformers.TrainerCallback):
    """Is told to end after step 4, and to save."""

    def on_step_end(self, args, state, control, **given):
        if state.global_step == 4:
            control.should_training_stop = control.should_save = True


@pytest.mark.parametrize("name", MEMORIES)
def test_a_preempted_run_is_the_whole_run(tmp_path, name):
    """Also where the snapshot to go back to is older than the checkpoint."""
    guarded, every, harmed = MEMORIES[name]
    by = 1e6 if "adaptive_learning" in name else math.inf
    names = (*name.split(), "skip_nonfinite") if name.startswith("rollback") else name.split()
    given = {"guarded": guarded, "names": names, "steps": 8, "save_strategy": "no"}

    def made(folder, *callbacks, events):
        more = {"events": events, "train": False, "reward": by_call([0.0, 1.0] * 4)}
        trainer = hosted(folder, Harms(harmed, by), *callbacks, **more, **given)
        host = host_of(trainer)
        host.guards.config = host.guards.config.with_(f"run.snapshot_every={every}")
        reports.append(told := [])

        class Tells(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **given):
                told.append((host.report.step, host.report.verdict, host.report.reason))

        trainer.add_callback(Tells())
        return trainer

    reports: list[Any] = []
    whole = made(tmp_path / "whole", events=tmp_path / "whole-events")
    whole.train()
    first = made(tmp_path / "cut", Preempted(), events=tmp_path / "events")
    first.train()
    second = made(tmp_path / "cut", events=tmp_path / "events")
    second.train(resume_from_checkpoint=True)
    assert reports[1] + reports[2] == reports[0] and len(reports[1]) == 4
    assert any(reason for _, _, reason in reports[2]), "and the guard acts after it"
    assert equal(list(second.model.state_dict().values()), list(whole.model.state_dict().values()))
    together, alone = (Session.open(tmp_path / folder) for folder in ("events", "whole-events"))
    assert together.status == alone.status and list(together.records.index) == list(alone.records.index)
    assert host_of(second).refused == host_of(whole).refused


def test_a_run_that_failed_goes_on_in_its_folder(tmp_path):
    events, given = tmp_path / "events", {"guards": "skip_nonfinite", "save_strategy": "steps", "save_steps": 1}
    failed = trained(tmp_path / "o", Fails(), events=events, train=False, **given)
    with pytest.raises(MemoryError):
        failed.train()
    session = Session.open(events)
    assert session.status == "crashed" and session.ended is not None and "no room" in session.ended.message
    again = trained(tmp_path / "o", events=events, train=False, **given)
    again.train(resume_from_checkpoint=str(tmp_path / "o" / "checkpoint-1"))
    session = Session.open(events)
    assert session.status == "done" and list(session.records.index) == [0, 1, 2]
    fresh = trained(tmp_path / "p", events=events, train=False, guards="skip_nonfinite")
    with pytest.raises(RunError, match="already holds a run"):
        fresh.train()


def test_a_checkpoint_without_guards_is_said(tmp_path):
    given = {"save_strategy": "steps", "save_steps": 1}
    trained(tmp_path, steps=2, **given)
    made = trained(tmp_path, guards="warm_up.steps=3", steps=4, train=False, **given)
    with pytest.warns(match="checkpoint-2 holds no state of guards: warm_up remember"):
        made.train(resume_from_checkpoint=True)
    assert made.guard_host.report.step == 3 and made.guard_host.report.verdict == Verdict.KEEP


# --- the same guard, the same inputs: a loop, TRL -------------------------------------------------------

RATE = 1e-3
NAN_AT_2 = (1.0, 1.0, math.nan, 1.0, 1.0)
SPIKE_AT_2 = (1.0, 1.0, 1e4, 1.0, 1.0)
UPDATES = {
    "warm_up.steps=3": (1.0,) * 5,
    "adaptive_learning_rate.warm_up=1": SPIKE_AT_2,
    "representable_epsilon": (1.0,) * 2,
    "rollback.patience=1": NAN_AT_2,
    "skip_nonfinite": NAN_AT_2,
    "skip_spikes.threshold=500": SPIKE_AT_2,
    "skip_outliers.warm_up=2": SPIKE_AT_2,
    "clip_gradients.max_norm=0.3": SPIKE_AT_2,
    "check_weights": NAN_AT_2,
}
"""Guards of an update, each with the factors by which one gradient is multiplied, step by step."""
MORE = {"rollback.patience=1": ("skip_nonfinite",)}
"""Guards without which another has nothing to answer to."""


def gradient(parameter, factor):
    """A gradient of this parameter, other for each element."""
    return (torch.linspace(-1e-3, 1e-3, parameter.numel()) * factor).view_as(parameter).to(parameter.dtype)


def loaded(half):
    from grpo_lab.models import loading

    model, tokenizer = loading.load("tiny", "fp32", "cpu")
    return (model.half() if half else model), tokenizer


def by_loop(names, factors, half):
    """Weights after a plain loop, and (verdict, reasons) of each step."""
    model, _ = loaded(half)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=None if half else True)
    guards, told = gl.Guards(*names, snapshot_every=1), []
    for factor in factors:
        for parameter in model.parameters():
            parameter.grad = gradient(parameter, factor)
        report = guards.step(model, optimizer)
        told.append((report.verdict, [(a.name, a.reason) for a in report.actions]))
    return list(model.state_dict().values()), told


def by_trl(names, factors, half, folder):
    """The same in TRL: a callback before the guards sets the gradients."""
    told: list[Any] = []

    class Sets(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **given):
            for parameter in given["model"].parameters():
                parameter.grad = gradient(parameter, factors[state.global_step])

    class Tells(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **given):
            told.append((host.report.verdict, [(a.name, a.reason) for a in host.report.actions]))

    given = {"learning_rate": RATE, "max_grad_norm": 0.0, "beta": 0.0, "lr_scheduler_type": "constant"}
    given |= {"optim": "adamw_torch" if half else "adamw_torch_fused", "change": in_half if half else None}
    made = trained(folder, Sets(), guards=names, steps=len(factors), train=False, **given)
    host: Any = made.guard_host
    host.guards.config = host.guards.config.with_("run.snapshot_every=1")
    made.add_callback(Tells())
    made.train()
    return list(made.model.state_dict().values()), told


@pytest.mark.parametrize("name", UPDATES)
def test_a_guard_of_the_update_has_one_outcome_in_every_host(name, tmp_path):
    names, factors, half = (name, *MORE.get(name, ())), UPDATES[name], name == "representable_epsilon"
    weights, told = by_loop(names, factors, half)
    assert any(actions for _, actions in told), "the guard acts"
    others, told_by_trl = by_trl(names, factors, half, tmp_path)
    assert told_by_trl == told and equal(others, weights)


LOSS = {
    "clamp_log_ratio": (120.0, 0.0, 5.0, 0.0, {}),
    "clamp_kl": (0.0, 120.0, 0.0, 10.0, {}),
    "dual_clip.delta=3": (3.0, 0.0, 3.0, 0.0, {"delta": 3.0}),
    "skip_nonfinite": (0.5, 0.1, 0.5, 0.1, {}),
}
"""Guards of the loss, with shifts of a token's log-ratio and of its distance from the reference, and what TRL's own
loss makes of other shifts or settings without a guard, which is the same."""


def loss_of_trl(guard, shift, distance, folder, **settings):
    """Loss and gradient of a batch with one shifted token, and what the guards did."""
    logprobs = torch.tensor([[-1.0, -2.0, -0.5], [-0.7, -1.5, -3.0]], requires_grad=True)
    old, reference = logprobs.detach().clone(), logprobs.detach().clone()
    old[1, 0] -= shift
    reference[0, 1] += distance
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])

    class Fixed(trl.GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, *given, **more):
            return logprobs, torch.zeros_like(old), None

        def begin(self):
            self.guard_host.on_train_begin(self.args, self.state, self.control)

    made = trained(folder, base=Fixed, guards=guard, train=False, epsilon=0.2, use_bias_correction_kl=False, **settings)
    made.current_gradient_accumulation_steps = 1
    made.begin()
    made.model.train()
    inputs = {"prompt_ids": mask, "prompt_mask": mask, "completion_ids": mask, "completion_mask": mask}
    inputs |= {"advantages": torch.tensor([1.0, -1.0]), "num_items_in_batch": mask.sum()}
    loss = made.compute_loss(made.model, inputs | {"old_per_token_logps": old, "ref_per_token_logps": reference})
    loss.backward()
    return loss.detach(), logprobs.grad, [action.name for action in made.guard_host.guards._begun().actions]


@pytest.mark.parametrize("guard", LOSS)
def test_a_guard_of_the_loss_changes_it_as_it_says(guard, tmp_path):
    shift, distance, other_shift, other_distance, settings = LOSS[guard]
    loss, slope, acted = loss_of_trl(guard, shift, distance, tmp_path / "a")
    expected, right, _ = loss_of_trl("skip_nonfinite", other_shift, other_distance, tmp_path / "b", **settings)
    torch.testing.assert_close(loss, expected)
    assert slope is not None and right is not None
    assert slope.isfinite().all() and acted == ([guard] if guard.startswith("clamp") else [])
    assert acted or torch.equal(slope, right)


def test_advantages_are_clamped(tmp_path):
    kept: list[torch.Tensor] = []

    class Sees(trl.GRPOTrainer):
        def _compute_loss(self, model, inputs):
            kept.append(inputs["advantages"])
            return super()._compute_loss(model, inputs)

    given = {"reward": by_call([1, 0, 0, 0] * 2), "steps": 1}
    made = trained(tmp_path, base=Sees, guards="clamp_advantages.limit=1", **given)
    assert float(kept[0].max()) == 1.0 and made.guard_host.report.actions[0].name == "clamp_advantages"


def test_every_guard_that_trl_can_hold_is_tried_here():
    batch = {"sanitize_rewards", "clamp_advantages", "drop_nonfinite_samples", "adaptive_beta"}
    compared = {name.split(".")[0] for name in (*UPDATES, *LOSS)} | batch
    assert compared == set(Host.holds) and set(gl.GUARDS) - compared == {
        "clamp_logits",
        "check_probabilities",
        "safe_sampling",
    }


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clamp_logits", "check_probabilities", "safe_sampling"])
def test_what_trl_does_not_show_is_an_error_with_a_way_out(name, tmp_path):
    with pytest.raises(ConfigError, match=f"^{name}: TRL computes .* check_weights catches"):
        trained(tmp_path / "trl", guards=(name, "skip_nonfinite"), train=False, events=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Later(trl.GRPOTrainer):
    """As a version of TRL whose loss is computed in another way."""


def test_other_classes_and_other_versions_are_refused(monkeypatch):
    for given, message in (
        (transformers.Trainer, r"Trainer\): it has no _calculate_rewards, .* in TRL 1\.16, .*GuardCallback"),
        (trl.GRPOConfig, "it has no _calculate_rewards"),
        (SimpleNamespace(**dict.fromkeys(NEEDS)), "is of type SimpleNamespace: must be a class"),
    ):
        with pytest.raises(ConfigError, match=message):
            gl.guarded(cast(Any, given))
    monkeypatch.setattr(trl.GRPOTrainer, "_compute_loss", lambda self, model, inputs: inputs["advantages"])
    with pytest.raises(ConfigError, match=r"_compute_loss does not use .*old_per_token_logps"):
        gl.guarded(Later)


def test_a_loss_without_a_log_ratio_is_said_and_not_passed_over(tmp_path):
    class Blind(trl.GRPOTrainer):
        def _compute_loss(self, model, inputs):
            return sum(parameter.sum() for parameter in model.parameters())

    with pytest.raises(RunError, match="without a log-ratio"):
        trained(tmp_path, base=Blind, guards="clamp_log_ratio", steps=1)


def test_evaluation_is_not_guarded(tmp_path):
    made = trained(
        tmp_path, guards=("skip_nonfinite", "clamp_advantages.limit=0.1"), steps=1, reward=by_call([0.0] * 8)
    )
    count = made.guard_host.report.step
    made.evaluate(made.train_dataset.select(range(2)))
    assert not made.guard_host.guards._begun().actions and made.guard_host.report.step == count
