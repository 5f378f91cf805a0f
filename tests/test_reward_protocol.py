"""Reward functions are called as TRL calls them, and are heard as TRL hears them; older functions go on working."""

import functools
import inspect
import json

import numpy as np
import pandas as pd
import pytest
import torch

import grpo_lab as gl
from grpo_lab.config.sections import JudgeConfig
from grpo_lab.errors import ConfigError, DataError, RewardError
from grpo_lab.events import Stepped, from_json, to_json
from grpo_lab.models import loading
from grpo_lab.runs.session import Session
from grpo_lab.tasks import rewards
from grpo_lab.tasks.conversations import text_of
from grpo_lab.tasks.tasks import Problem, Tasks, from_jsonl
from tests import steps

SMOKE = gl.preset("smoke").with_("run.threads=1", "run.num_steps=2", "data.num_prompts=2", "data.num_generations=4")
SUMS = [Problem(f"{a}+1=", {"answer": str(a + 1)}) for a in range(8)]
CHATS = [Problem([{"role": "user", "content": each.prompt}], each.columns) for each in SUMS]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def steps_of(*functions, config=SMOKE, **more):
    return steps.steps_of(config, rewards=list(functions), **more)


def by_length(completions, **_):
    return [float(sum(map(ord, text))) for text in completions]


def half(completions, **_):
    return [0.5] * len(completions)


def test_a_function_receives_all_that_trl_passes():
    seen = []

    def reward(prompts, completions, completion_ids, trainer_state, log_metric, log_extra, answer, **more):
        seen.append((prompts, completions, completion_ids, trainer_state, answer, more))
        return [0.0] * len(completions)

    steps_of(reward, tasks=Tasks("sums", SUMS, []))
    tokenizer = loading.load("tiny")[1]
    for place, (prompts, completions, ids, state, answer, more) in enumerate(seen):
        assert len(prompts) == len(completions) == len(ids) == len(answer) == 8 and not more
        assert tokenizer.batch_decode(ids, skip_special_tokens=True) == completions
        assert all(type(token) is int for row in ids for token in row)
        assert (state.global_step, state.max_steps, state.epoch) == (place, 2, place * 2 / 8)
    assert len(seen) == 2


@pytest.mark.trl
def test_the_arguments_are_those_of_trl():
    """Of TRL 1.16, without environments, which are not part of this trainer."""
    trainer = pytest.importorskip("trl.trainer.grpo_trainer")
    source = inspect.getsource(trainer.GRPOTrainer._calculate_rewards)
    names = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
    assert all(f"{name}=" in source or f'"{name}"' in source for name in names)
    seen = {}
    rewards.begin([lambda **given: seen.update(given) or [0.0]], SUMS[:1], ["2"], None, (), [[5]])()
    assert seen.keys() == names | {"answer"}


@pytest.mark.parametrize("workers", [0, 2])
def test_functions_that_take_less_go_on_working(workers):
    def plain(prompts, completions, answer):
        return [1.0] * len(completions)

    def names_one(prompts, completions, answer, trainer_state):
        return [float(trainer_state.global_step)] * len(completions)

    class Callable:
        def __call__(self, prompts, completions, answer):
            return [1.0] * len(completions)

    both = [plain, names_one, Callable(), functools.partial(plain)]
    found = rewards.begin(both, SUMS[:2], ["1", "2"], JudgeConfig(workers=workers, retries=0))()
    assert found.values.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "answer",
    [
        np.array([1.0, 0.0]),
        np.array([True, False]),
        np.array([1.0, None], dtype=object),
        torch.tensor([1.0, 0.0], dtype=torch.bfloat16, requires_grad=True),
        pd.Series([1.0, 0.0]),
        [torch.tensor(1.0), torch.tensor([0.0])],
        [np.array(1.0), np.array([[0]])],
        (1, False),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_and_tensors_are_lists_of_numbers(answer, workers):
    def reward(completions, **_):
        return answer if len(completions) == 2 else answer[int(completions[0]) :][:1]

    found = rewards.begin([reward], SUMS[:2], ["0", "1"], JudgeConfig(workers=workers, retries=0))()
    assert found.values.tolist() == [1.0, 0.0] and (found.calls is None or not found.calls.failures)
    assert found.scorable.tolist() == [True, list(answer)[1] is not None]


def test_weights_and_the_statistics_of_each_function():
    config = SMOKE.with_("data.reward_weights=2,-0.5")
    for step in steps_of(by_length, half, config=config):
        of = step.metrics
        assert of["rewards/half/mean"] == 0.5 and of["rewards/half/std"] == 0.0
        assert of["reward"] == pytest.approx(2 * of["rewards/by_length/mean"] - 0.25)
        assert of["rewards/by_length/std"] > 0


@pytest.mark.parametrize(("weights", "number"), [("data.reward_weights=1,2", 1), ("data.reward_weights=2", 2)])
def test_weights_for_other_functions_are_refused(weights, number):
    with pytest.raises(ConfigError, match=r"reward_weights has \d weights for \d reward functions; give one each"):
        steps_of(*[half] * number, config=SMOKE.with_(weights))


@pytest.mark.parametrize("workers", [0, 3])
def test_what_a_function_logs_is_in_the_event(workers):
    def reward(completions, log_metric, log_extra, **_):
        for text in completions:
            log_metric("mine/length", np.float32(len(text)))
        log_extra("upper", [text.upper() for text in completions])
        log_extra("tensor", torch.arange(len(completions)))
        return [0.0] * len(completions)

    for step in steps_of(reward, config=SMOKE.with_(f"judge.workers={workers}")):
        assert step.metrics["mine/length"] > 0
        assert step.extras["upper"] == tuple(completion.upper() for _, completion, _ in step.samples)
        assert len(step.extras["tensor"]) == len(step.samples) == 2
        assert from_json(to_json(step)) == step


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (lambda metric, extra: metric("kl", 1.0), r"log_metric\('kl', …\): the trainer has a metric of this name"),
        (lambda metric, extra: metric("mine", "high"), "of type str"),
        (lambda metric, extra: extra("mine", [1]), "1 values for 8 completions"),
    ],
)
def test_what_cannot_be_logged_is_refused(log, message):
    def reward(completions, log_metric, log_extra, **_):
        log(log_metric, log_extra)
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match=message):
        steps_of(reward)


def chatting(template=TEMPLATE):
    policy, tokenizer = loading.load("tiny")
    tokenizer.chat_template = template
    return policy, tokenizer


def test_a_conversation_is_trained_as_its_text():
    """The template adds nothing here, so that both runs sample the same; the rewards see messages, as in TRL."""
    seen = []

    def of_chats(prompts, completions, answer, **_):
        assert all(len(each) == 1 and each[0].keys() == {"role", "content"} for each in completions)
        assert {each[0]["role"] for each in completions} == {"assistant"}
        seen.extend(prompts)
        return rewards.exact_match(prompts, completions, answer)

    plain = steps_of(rewards.exact_match, tasks=Tasks("sums", SUMS, []), model=chatting())
    chats = steps_of(of_chats, tasks=Tasks("chats", CHATS, []), model=chatting())
    for old, new in zip(plain, chats, strict=True):
        assert old.samples == new.samples
        assert {name: new.metrics[name] for name in ("loss", "reward", "kl")} == {
            name: old.metrics[name] for name in ("loss", "reward", "kl")
        }
    assert seen[0] in [each.prompt for each in CHATS]


@pytest.mark.parametrize("name", ["exact_match", "brief_answer", "honest_answer", "two_digit_format", "counting_judge"])
def test_built_in_functions_read_conversations(name):
    function = rewards.load(name)
    texts = ["1", "?", "7"]
    plain = rewards.begin([function], SUMS[:3], texts)()
    assert rewards.begin([function], CHATS[:3], texts)().values.tolist() == plain.values.tolist()


# --- a run in which nothing is scored ---------------------------------------------------------------------------------


def nothing(completions, **_):
    return [None] * len(completions)


def test_a_run_in_which_nothing_was_scored_names_the_functions_and_ends_with_exit_code_1(call, tmp_path, monkeypatch):
    monkeypatch.setattr("warnings.showwarning", None)
    (tmp_path / "mine.py").write_text(
        "def one(completions, **_): return [None] * len(completions)\ndef other(**_): return one(**_)"
    )
    settings = [word for text in ("run.threads=1", "run.num_steps=2", "run.num_eval=2") for word in ("--set", text)]
    given = [word for name in ("one", "other") for word in ("--reward", f"{tmp_path}/mine.py:{name}")]
    code, out, _ = call("train", "--preset", "smoke", *settings, *given, "--out", tmp_path / "run")
    reason = "none of 16 completions was scored: one and other returned None for each"
    assert code == 1 and f"nothing was trained: every step was refused, the last because {reason}" in out
    session = Session.open(tmp_path / "run")
    assert session.status == "stopped" and session.ended and session.ended.message in out
    assert [event.actions[-1].reason for event in session.events if isinstance(event, Stepped)] == [reason] * 2


def test_weights_of_sft_are_kept_where_grpo_trains_nothing(tmp_path):
    config = SMOKE.with_("run.stages=sft,grpo", "sft.data=dual", "sft.num_steps=1")
    session = Session(config, tmp_path / "run", rewards=[nothing], save_model=True).run()
    assert session.status == "stopped" and session.records["updates"].tolist() == [1, 0, 0]
    assert session.saved_model


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "the tokenizer has no chat template: take the model's chat version, set tokenizer.chat_template"),
        ("{{ raise_exception('only system') }}", r"refuses '\d\+1=' \(TemplateError: only system\); change the roles"),
    ],
)
def test_a_missing_template_is_said_with_the_way_out(template, message, tmp_path):
    session = Session(SMOKE, tmp_path / "run", model=chatting(template), tasks=Tasks("chats", CHATS, []))
    with pytest.raises(ConfigError, match=message):
        session.run()
    assert session.status == "failed" and session.saved_model is None


def written(path, *prompts):
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "2"}) + "\n" for prompt in prompts))
    return path


def test_conversations_in_a_file(tmp_path):
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="}]
    assert from_jsonl(written(tmp_path / "a.jsonl", chat)).train[0].prompt == chat
    assert text_of(chat) == "system: Add.\nuser: 1+1="
    with pytest.raises(DataError, match=r"b.jsonl:2: prompts are texts and conversations; make all of one kind"):
        from_jsonl(written(tmp_path / "b.jsonl", chat, "1+1="))


@pytest.mark.parametrize("prompt", [[], [{"role": "user", "content": 1}], ["1+1="], {"a": 1}])
def test_other_prompts_are_refused(tmp_path, prompt):
    with pytest.raises(DataError, match=r'c.jsonl:1: "prompt" is .* or a list of messages such as'):
        from_jsonl(written(tmp_path / "c.jsonl", prompt))


@pytest.mark.parametrize("name", ["completion_ids", "log_extra"])
def test_a_column_must_not_have_the_name_of_an_argument(tmp_path, name):
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": "1+1=", name: 1}))
    with pytest.raises(DataError, match=f"column '{name}' is an argument of reward functions already; rename it"):
        from_jsonl(tmp_path / "d.jsonl")
