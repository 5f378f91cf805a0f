"""The stage SFT: its loss, its rows, the guards in it, and GRPO after it."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import grpo_lab as gl
from grpo_lab.analysis.run_state import fold
from grpo_lab.cli import app
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.errors import ConfigError, DataError
from grpo_lab.events import Evaluated, Stepped
from grpo_lab.runs.session import Session
from grpo_lab.training import large_vocabulary, sft
from grpo_lab.training.state import Training

SHOWN = [("9-4=", "5"), ("19-14=", "5"), ("91-4=", "87"), ("2-2=", "0"), ("100-1=", "99"), ("7-0=", "7")]
SMOKE = gl.preset("smoke").with_("run.threads=1", "run.device=cpu", "run.num_steps=2", "run.num_eval=4")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "shown.jsonl"
    path.write_text("".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in SHOWN))
    return SMOKE.with_("run.stages=sft,grpo", f"sft.data={path}", "sft.num_steps=2", "sft.batch_size=6")


@pytest.fixture
def sft_trainer(tiny, config):
    """A trainer in the stage SFT, its first step, and the step's rows with all that their loss needs."""

    def made(*overrides):
        training = Training(config.with_(*overrides), copy.deepcopy(tiny))
        training.begin_stage("sft")
        ctx = training.begin(0)
        assert training.demonstrations is not None
        batch = training.demonstrations.batch(0, 0, training.config.sft.batch_size, training.policy.device)
        weights = batch.completion_mask / batch.completion_mask.sum()
        ctx.num_tokens, ctx.sampling = batch.completion_mask.sum(), SamplingConfig()
        return training.trainer, ctx, replace(batch, weights=weights)

    return made


def steps(events):
    return [event for event in events if isinstance(event, Stepped)]


# --- the loss ------------------------------------------------------------------------------------------------------


def test_the_loss_of_a_model_without_preference_is_the_log_of_the_vocabulary(sft_trainer):
    made, ctx, batch = sft_trainer()
    with torch.no_grad():
        made.policy.get_output_embeddings().weight.zero_()
    output = made.loss(ctx, batch)
    assert output.loss.item() == pytest.approx(5.5530, abs=1e-4)  # log 258
    assert output.metrics["sft/accuracy"] == 0  # the argmax of equal logits is token 0, "!"


@pytest.mark.parametrize("at_once", [large_vocabulary.CHUNK, 3 * 258], ids=["whole logits", "three tokens at once"])
def test_the_loss_and_the_accuracy_are_those_of_each_row_alone(sft_trainer, tiny, monkeypatch, at_once):
    monkeypatch.setattr(large_vocabulary, "CHUNK", at_once)
    made, ctx, batch = sft_trainer()
    output = made.loss(ctx, batch)
    policy, tokenizer = tiny
    losses, right = [], []
    for prompt, completion in SHOWN:
        ids = tokenizer(prompt).input_ids
        taught = [*tokenizer(completion).input_ids, tokenizer.eos_token_id]
        with torch.no_grad():
            logits = policy(input_ids=torch.tensor([ids + taught])).logits[0, len(ids) - 1 : -1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(taught), reduction="none"))
        right.append(logits.argmax(-1) == torch.tensor(taught))
    assert output.loss.item() == pytest.approx(torch.cat(losses).mean().item(), abs=1e-5)
    assert output.metrics["sft/accuracy"].item() == pytest.approx(torch.cat(right).float().mean().item())


def test_the_tokens_of_prompts_are_read_and_not_taught(sft_trainer):
    """Only logits before a completion's token have a gradient."""
    made, ctx, batch = sft_trainer("model.prompt_pass=plain")
    seen = []

    def look(module, inputs, logits):
        logits.register_hook(seen.append)

    made.policy.get_output_embeddings().register_forward_hook(look)
    made.loss(ctx, batch).loss.backward()
    taught = seen[0][:, :-1].abs().sum(dim=-1) > 0
    assert torch.equal(taught[:, -batch.completions.shape[1] :], batch.completion_mask)
    assert int(taught.sum()) == int(batch.completion_mask.sum())


# --- stages --------------------------------------------------------------------------------------------------------


def test_grpo_goes_on_from_the_policy_of_sft_and_takes_it_as_its_reference(config, tiny, monkeypatch):
    kept = {}
    begin = Training.begin_stage

    def begin_stage(self, stage):
        if stage == "grpo":
            kept["sft"] = copy.deepcopy(self.policy.state_dict())
            assert self.reference is None
        kept["run"] = self
        return begin(self, stage)

    monkeypatch.setattr(Training, "begin_stage", begin_stage)
    events = list(gl.train(config, copy.deepcopy(tiny)))
    found, raw, training = steps(events), tiny[0].state_dict(), kept["run"]
    with training.reference:
        reference = copy.deepcopy(training.policy.state_dict())
    assert [event.step for event in found] == [0, 1, 2, 3]
    assert [event.step for event in events if isinstance(event, Evaluated)] == [0, 2, 4]
    assert [sorted({"sft/accuracy", "reward"} & event.metrics.keys()) for event in found] == [
        *[["sft/accuracy"]] * 2,
        *[["reward"]] * 2,
    ]
    assert all(torch.equal(reference[name], kept["sft"][name]) for name in reference)
    assert not all(torch.equal(reference[name], raw[name]) for name in reference)
    assert found[2].metrics["kl"] == pytest.approx(0, abs=1e-9) and found[3].metrics["kl"] > 0


def test_each_stage_has_its_own_rate_schedule_warm_up_and_moments(config, tiny):
    config = config.with_(
        "sft.learning_rate=1e-3", "optimizer.learning_rate=2e-4", "optimizer.schedule=cosine", "guards.warm_up.steps=2"
    )
    rates = [event.metrics["learning_rate"] for event in steps(gl.train(config, copy.deepcopy(tiny)))]
    assert rates == pytest.approx([5e-4, 5e-4, 1e-4, 1e-4])  # half by the warm-up, then half by the cosine


def test_a_guard_refuses_a_broken_update_of_sft(config, tiny):
    policy, tokenizer = copy.deepcopy(tiny)
    config = config.with_("run.stages=sft", "faults.nan_gradient.at_step=0", "sft.num_steps=1", "run.num_eval=0")
    before = [p.clone() for p in policy.parameters()]
    (refused,) = steps(gl.train(config.with_("guards.skip_nonfinite=on"), (policy, tokenizer)))
    assert refused.verdict.name == "SKIP_STEP" and refused.updates == 0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    (broken,) = steps(gl.train(config.with_guards({}), (policy, tokenizer)))
    assert broken.metrics["weights/nonfinite"] > 0


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, said",
    [
        ({"prompt": "1-1="}, r'shown\.jsonl:7: "completion" is None; it must be a string'),
        ({"prompt": "1-1=", "completion": 0}, r'shown\.jsonl:7: "completion" is 0'),
        ({"prompt": "1-1=", "completion": "0" * 20}, r"shown\.jsonl:7: .* 25 tokens > sft\.max_length = 20"),
    ],
)
def test_bad_rows_are_errors_before_training_begins(config, tiny, line, said):
    with open(config.sft.data, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(DataError, match=said):
        next(gl.train(config.with_("sft.max_length=20"), copy.deepcopy(tiny)))


@pytest.mark.parametrize(
    "overrides, said",
    [
        (("run.stages=sft", "sft.data="), "sft.data names no file"),
        (("run.stages=sft,dpo",), "stages = sft,dpo: give sft or grpo"),
        (("run.stages=,",), "stages = : give"),
    ],
)
def test_stages_that_cannot_run_are_refused(config, overrides, said):
    with pytest.raises(ConfigError, match=said):
        config.with_(*overrides)


def test_an_end_token_that_is_given_is_not_added_again(config, tiny):
    policy, tokenizer = tiny
    found = []
    for completion in ("5", "5<|endoftext|>"):
        Path(config.sft.data).write_text(json.dumps({"prompt": "9-4=", "completion": completion}), encoding="utf-8")
        found += sft.load(config, policy, tokenizer).rows
    assert found[0] == found[1] and found[0].completion == [*tokenizer("5").input_ids, tokenizer.eos_token_id]


# --- the command line ----------------------------------------------------------------------------------------------


def test_the_command_trains_saves_the_model_and_its_folder_can_be_read(config, tmp_path):
    folder = tmp_path / "run"
    given = ["--data", config.sft.data, "--set", "sft.num_steps=2", "--out", str(folder), "--json"]
    result = CliRunner().invoke(app, ["sft", *given])
    assert result.exit_code == 0, result.output
    session = Session.open(folder)
    assert session.saved_model and session.config.run.stages == ("sft",)
    assert session.records["sft/accuracy"].between(0, 1).all() and "reward" not in session.records
    screen = fold(session.events)
    assert screen.num_steps == 2 and "sft/accuracy" in screen.series
