"""Guards in a plain training loop: what they refuse leaves no trace, and where they are silent nothing changes."""

import copy
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import grpo_lab as gl
from grpo_lab.core.advantages import group_advantages
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.hosted.trainers import POSSIBLE, TRIED, GuardCallback, Host
from grpo_lab.runs.session import Session
from tests.hosted import OF_TRL, NanGradient, Seen, equal, tensors, trained


def loop(steps, *names, breaks=(), seed=0, given=None, schedule=False, **options):
    """A model trained for some steps, its optimizer, its guards and their reports; NaN gradients at `breaks`."""
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if schedule else None
    guards: Any = given or (gl.Guards(*names, **options) if names else None)
    reports, seen = [], []
    for index in range(steps):
        inputs = torch.randn(16, 4, generator=generator)
        loss = (model(inputs)[:, 0] - inputs.sum(dim=1)).square().mean()
        loss.backward()
        if index in breaks:
            gradient = next(model.parameters()).grad
            assert gradient is not None
            gradient[0, 0] = torch.nan
        seen.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
        if guards:
            reports.append(guards.step(model, optimizer))
        else:
            optimizer.step()
            optimizer.zero_grad()
        if scheduler:
            scheduler.step()
    return model, optimizer, guards, reports, seen


def test_silent_guards_change_no_bit():
    names = ("skip_nonfinite", "check_weights", "rollback", "representable_epsilon", "clip_gradients.max_norm=1e9")
    bare, guarded = loop(20, schedule=True), loop(20, *names, schedule=True)
    assert equal(tensors(*bare[:2]), tensors(*guarded[:2]))
    assert {report.verdict for report in guarded[3]} == {Verdict.KEEP} and guarded[3][-1].step == 19


def test_a_refused_step_leaves_weights_moments_and_count():
    model, optimizer, _, reports, seen = loop(3, "skip_nonfinite", breaks=(2,))
    before = [*seen[2][0].values(), *(v for state in seen[2][1]["state"].values() for v in state.values())]
    assert equal(tensors(model, optimizer), before)
    assert reports[2].refused and reports[2].verdict == Verdict.SKIP_STEP
    assert reports[2].reason == "grad norm nan is not finite" and not reports[1].refused
    assert all(parameter.grad is None for parameter in model.parameters())
    bare, *_ = loop(3, breaks=(2,))
    assert any(value.isnan().any() for value in bare.state_dict().values()), "without the guard the weights are gone"


def test_the_rate_of_a_scheduler_stays_its_own():
    _, optimizer, _, reports, _ = loop(6, "warm_up.steps=4", schedule=True)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * 0.9**6)
    rates = [report.metrics["learning_rate"] for report in reports]
    assert rates == pytest.approx([1e-2 * 0.9**step * min(1, (step + 1) / 4) for step in range(6)])


def test_broken_weights_go_back_and_training_that_fails_again_stops():
    def infinite(grad):
        return grad * float("inf")

    model, optimizer, guards, reports, _ = loop(3, "check_weights.patience=1")
    good = [value.clone() for value in tensors(model, optimizer)]
    for verdict in (Verdict.ROLL_BACK, Verdict.STOP):
        torch.stack([parameter.sum() for parameter in model.parameters()]).sum().backward()
        for parameter in model.parameters():
            parameter.grad = infinite(parameter.grad)
        report = guards.step(model, optimizer)
        assert report.verdict == verdict and report.stop == (verdict == Verdict.STOP)
        assert equal(tensors(model, optimizer), good)
    assert not reports[-1].refused


def test_values_of_other_stages_pass_their_guards():
    guards = gl.Guards("clamp_log_ratio", "skip_nonfinite")
    clamped = guards.at("log_ratio", torch.tensor([[100.0, 0.1]]))
    assert clamped.max() < 100 and clamped[0, 1] == torch.tensor(0.1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    report = guards.step(model, optimizer)
    assert [action.name for action in report.actions] == ["clamp_log_ratio"] and report.verdict == Verdict.CHANGED
    model(torch.ones(1, 2)).sum().backward()
    assert guards.step(model, optimizer).verdict == Verdict.KEEP


def test_guards_go_on_from_their_state():
    names = ("skip_spikes.threshold=1e-6", "skip_spikes.patience=2", "rollback")
    *_, guards, reports, _ = loop(6, *names)
    *_, first, some, _ = loop(3, *names)
    state = json.loads(json.dumps(first.state_dict()))
    again = gl.Guards(*names)
    again.load_state_dict(state)
    *_, more, _ = loop(3, given=again)
    assert [each.verdict for each in (*some, *more)] == [each.verdict for each in reports]
    assert [each.step for each in more] == [3, 4, 5] and guards.names == ("skip_spikes", "rollback")


def test_a_scaled_loss_is_unscaled_for_the_guards():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guards = gl.Guards("skip_nonfinite", scaler=scaler)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    report = guards.step(model, optimizer)
    assert report.metrics["grad_norm"] == pytest.approx(3**0.5) and report.metrics["loss_scale"] == 1024


def test_what_happened_can_be_traced(tmp_path):
    *_, guards, _, _ = loop(4, "check_weights", breaks=(2,), events=tmp_path / "run")
    guards.close("enough")
    session = Session.open(tmp_path / "run")
    assert session.status == "stopped" and session.ended is not None and session.ended.message == "enough"
    found = session.first_break()
    assert found is not None and (found.link, found.step) == ("gradients", 2)
    assert list(session.records.index) == [0, 1, 2, 3]
    with pytest.raises(RunError, match="already holds a run"):
        gl.Guards("check_weights", events=tmp_path / "run")


def test_a_loop_that_was_killed_goes_on_in_its_folder(tmp_path):
    """It begins again from the state of an earlier step; what it did after that is replaced."""
    names, folder = ("skip_spikes.threshold=1e-6", "skip_spikes.patience=2"), tmp_path / "run"
    *_, first, _, _ = loop(3, *names, events=folder)
    state = first.state_dict()
    loop(2, given=first)
    del first
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "Step')  # it was killed here
    again = gl.Guards(*names, events=folder)
    again.load_state_dict(state)
    loop(4, given=again)
    again.close()
    session = Session.open(folder)
    assert session.status == "done" and list(session.records.index) == [0, 1, 2, 3, 4, 5, 6]
    other = tmp_path / "other"
    gl.Session(gl.preset("smoke").with_("run.num_steps=1", "run.device=cpu"), other, child=False).run()
    for taken in (folder, other):
        with pytest.raises(RunError, match="already holds a run"):
            gl.Guards(*names, events=taken)


def test_a_guard_that_never_sees_a_value_is_said_once(recwarn):
    *_, guards, _, _ = loop(3, "stable", "clamp_log_ratio", "dual_clip")
    [warning] = recwarn
    told = str(warning.message)
    assert 'clamp_kl has no effect in this loop: call guards.at("kl_delta"' in told
    assert 'clamp_log_ratio has no effect in this loop: call guards.at("log_ratio"' in told and "dual_clip" in told
    assert "skip_nonfinite" not in told and warning.filename == __file__
    recwarn.clear()
    guards = gl.Guards("clamp_log_ratio")
    guards.at("log_ratio", torch.zeros(1, 1))
    loop(1, given=guards)
    assert not recwarn


def test_a_failed_call_is_no_reward():
    """It would be the best one of a group of negative rewards."""
    guards, rewards = gl.Guards("sanitize_rewards"), torch.tensor([[-1.0, -1.0, torch.nan, -2.0], [0.0, 1.0, 0.0, 1.0]])
    seen = guards.at("rewards", rewards)
    assert seen[0].isnan().tolist() == [False, False, True, False] and torch.equal(seen[1], rewards[1])
    advantages = group_advantages(seen, scorable=guards.scorable)
    assert float(advantages[0, 2]) == 0.0 and advantages[0].argmin() == 3 and advantages.isfinite().all()
    assert gl.Guards("sanitize_rewards").at("rewards", rewards[1:]).isfinite().all()


def test_the_version_of_trl_that_was_tried_is_the_one_that_the_tests_install():
    pinned = (Path(__file__).parents[1] / "constraints.txt").read_text(encoding="utf-8")
    assert f"trl=={TRIED}." in pinned and TRIED in (gl.guarded.__doc__ or "")


def test_names_that_do_not_exist():
    for call, message in (
        (lambda: gl.Guards("warm_upp"), "warm_up"),
        (lambda: gl.Guards(), "has no name"),
        (lambda: gl.Guards("stable").at("log_ratios", torch.zeros(1)), "log_ratio"),
        (lambda: gl.Guards("stable").at("gradients", torch.zeros(1)), "`step`"),
        (lambda: gl.GuardCallback("clamp_logits", "warm_up"), "clamp_logits.*warm_up"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="holds no weight of this model"):
        gl.Guards("stable").step(model, torch.optim.AdamW(other.parameters()))


# --- transformers' and TRL's trainers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_deepspeed_enabled": True}, "DeepSpeed makes the update itself"),
        ({"is_fsdp_enabled": True}, "FSDP gives each process a part"),
        ({"args": SimpleNamespace(fp16=True)}, "fp16=True"),
    ],
)
def test_trainers_whose_gradients_are_not_those_of_the_model_are_refused(change, message):
    callback = gl.GuardCallback("warm_up")

    class Trains(SimpleNamespace):
        def train(self):
            callback.on_train_begin(self.args, None, None)

    usual = {"args": SimpleNamespace(fp16=False), "is_deepspeed_enabled": False, "is_fsdp_enabled": False}
    with pytest.raises(ConfigError, match=message):
        Trains(callback_handler=SimpleNamespace(callbacks=[callback]), **{**usual, **change}).train()


@pytest.mark.trl
@OF_TRL
def test_a_refused_step_of_trl_leaves_no_trace(tmp_path):
    seen, guards = Seen(), gl.GuardCallback("skip_nonfinite", "check_weights", events=tmp_path / "guards")
    trained(tmp_path / "guarded", NanGradient(), guards, seen, steps=4)
    assert equal(seen.states[1], seen.states[2]), "weights, moments and AdamW's count are those of before"
    assert not equal(seen.states[2], seen.states[3]), "and training goes on"
    assert guards.report is not None and guards.report.step == 3 and not guards.report.refused
    session = Session.open(tmp_path / "guards")
    found = session.first_break()
    assert session.status == "done" and found is not None and (found.link, found.step) == ("gradients", 2)
    bare = trained(tmp_path / "bare", NanGradient(), steps=3)
    assert any(value.isnan().any() for value in bare.model.state_dict().values())


@pytest.mark.trl
@OF_TRL
def test_a_guard_that_stops_ends_the_training_of_trl(tmp_path):
    class AlwaysNan(NanGradient):
        def on_pre_optimizer_step(self, args, state, control, **given):
            next(given["model"].parameters()).grad.view(-1)[0] = torch.nan

    names = ("skip_nonfinite.patience=1", "rollback.max_rollbacks=1", "rollback.patience=1")
    guards = gl.GuardCallback(*names)
    made = trained(tmp_path, AlwaysNan(), guards, steps=40)
    assert guards.report is not None and guards.report.stop and made.state.global_step < 40
    assert all(value.isfinite().all() for value in made.model.state_dict().values())


def test_the_snippets_of_the_page_run(monkeypatch, capsys):
    page = (Path(__file__).parents[1] / "docs" / "your-own-trainer.md").read_text(encoding="utf-8")
    plain, stages, rewards, subclass, callback = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(plain, names)
    exec(stages, names)
    assert names["report"].step == 9 and float(names["log_ratio"].max()) < 120
    exec(rewards, names)
    assert names["advantages"][0].argmax() != 2
    made, asked = {}, []
    fake = SimpleNamespace(GRPOTrainer=lambda *given, **more: made.update(more))
    monkeypatch.setitem(sys.modules, "trl", fake)
    monkeypatch.setattr(gl, "GuardCallback", lambda *names, events: GuardCallback(*names))
    monkeypatch.setattr(gl, "guarded", lambda trainer: asked.append(trainer) or trainer)
    names |= {name: None for name in ("model", "rewards", "arguments", "data")}
    exec(subclass, names)
    assert asked == [fake.GRPOTrainer] and (made["guards"], made["events"]) == ("stable", "runs/mine")
    exec(callback, names)
    assert made["callbacks"][0].guards.names == ("warm_up", "skip_nonfinite", "check_weights")
    rows = re.findall(r"^\| (`.*)", page, re.MULTILINE)
    table = {name: row for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[0])}
    assert set(table) == set(gl.GUARDS), "each guard has its row"
    for name, row in table.items():
        cells = [cell.strip().startswith("yes") for cell in row.split("|")[2:4]]
        assert cells == [name in POSSIBLE, name in Host.holds], name
