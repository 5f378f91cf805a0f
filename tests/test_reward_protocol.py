"""Reward functions are called as TRL calls them, and are heard as TRL hears them; older functions go on working."""

import functools
import inspect
import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

import grpo_lab as gl
from grpo_lab.config.sections import JudgeConfig
from grpo_lab.errors import ConfigError, DataError, RewardError
from grpo_lab.events import Ended, Evaluated, Stepped, from_json, to_json
from grpo_lab.models import loading
from grpo_lab.runs.session import Session
from grpo_lab.tasks import rewards
from grpo_lab.tasks.conversations import text_of, tokenized
from grpo_lab.tasks.tasks import Problem, Tasks, from_jsonl

SMOKE = gl.preset("smoke").with_("run.threads=1", "run.num_steps=2", "data.num_prompts=2", "data.num_generations=4")
SUMS = [Problem(f"{a}+1=", {"answer": str(a + 1)}) for a in range(8)]
CHATS = [Problem([{"role": "user", "content": each.prompt}], each.columns) for each in SUMS]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def steps_of(*functions, config=SMOKE, **more):
    return [event for event in gl.train(config, rewards=list(functions), **more) if isinstance(event, Stepped)]


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


def test_ids_end_with_the_end_token_and_hold_no_padding():
    seen = []
    steps_of(lambda completion_ids, **_: seen.extend(completion_ids) or [0.0] * len(completion_ids))
    end = loading.load("tiny")[1].eos_token_id
    assert any(ids[-1] == end for ids in seen) and all(end not in ids[:-1] for ids in seen)


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
        np.array([1, 0], dtype=np.float32),
        np.array([True, False]),
        np.array([1.0, None], dtype=object),
        torch.tensor([1.0, 0.0]),
        torch.tensor([1.0, 0.0], dtype=torch.bfloat16, requires_grad=True),
        torch.tensor([True, False]),
        pd.Series([1.0, 0.0]),
        [torch.tensor(1.0), torch.tensor([0.0])],
        [np.float32(1), np.bool_(False)],
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


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (torch.ones(2, 1), "of type list|is of type"),
        (np.ones((2, 2)), "is of type list"),
        (np.array(1.0), "returned ndarray; return a list"),
        ([np.ones(2), 0.0], "is not one number"),
        ([1j, 0.0], "of type complex"),
        (np.array(["a", "b"]), "of type str"),
        ({0: 1.0, 1: 0.0}, "returned dict"),
    ],
)
def test_other_answers_are_refused(answer, message):
    with pytest.raises(RewardError, match=message):
        rewards.begin([lambda **_: answer], SUMS[:2], ["0", "1"])()


def test_weights_and_the_statistics_of_each_function():
    config = SMOKE.with_("data.reward_weights=2,-0.5")
    for step in steps_of(by_length, half, config=config):
        of = step.metrics
        assert of["rewards/half/mean"] == 0.5 and of["rewards/half/std"] == 0.0
        assert of["reward"] == pytest.approx(2 * of["rewards/by_length/mean"] - 0.25)
        assert of["rewards/by_length/std"] > 0


def test_a_weight_of_1_changes_nothing():
    plain, weighted = (steps_of(by_length, half, config=c) for c in (SMOKE, SMOKE.with_("data.reward_weights=1,1")))
    assert [s.metrics["loss"] for s in plain] == [s.metrics["loss"] for s in weighted]


def test_a_function_that_judges_nothing_has_no_mean():
    found = rewards.begin([lambda **_: [None, None], half, half], SUMS[:2], ["0", "1"])().metrics
    assert found == {
        "rewards/half/mean": 0.5,
        "rewards/half/std": 0.0,
        "rewards/half-2/mean": 0.5,
        "rewards/half-2/std": 0.0,
    }


@pytest.mark.trl
def test_statistics_are_those_of_trl():
    values = torch.tensor([1.0, math.nan, 4.0, 9.0])
    utils = pytest.importorskip("trl.trainer.utils")
    found = rewards.begin([lambda **_: [1.0, None, 4.0, 9.0]], SUMS[:4], list("0123"))().metrics
    assert found["rewards/<lambda>/mean"] == pytest.approx(values.nanmean().item())
    assert found["rewards/<lambda>/std"] == pytest.approx(utils.nanstd(values).item())


def test_a_default_run_has_no_further_metrics():
    steps = [event for event in gl.train(SMOKE) if isinstance(event, Stepped)]
    assert not [name for name in steps[0].metrics if name.startswith("rewards/")] and steps[0].extras == {}


@pytest.mark.parametrize(("weights", "number"), [("data.reward_weights=1,2", 1), ("data.reward_weights=2", 2)])
def test_weights_for_other_functions_are_refused(weights, number):
    with pytest.raises(ConfigError, match=r"reward_weights has \d weights for \d reward functions; give one each"):
        steps_of(*[half] * number, config=SMOKE.with_(weights))


@pytest.mark.parametrize("text", ["data.reward_weights=1,x", "data.reward_weights=nan", "data.reward_weights=on"])
def test_weights_are_numbers(text):
    with pytest.raises(ConfigError, match="reward_weights"):
        SMOKE.with_(text)


def test_weights_of_objectives_are_their_own():
    tree = {"data": {"reward_weights": [2.0]}, "objectives": [{"name": "A"}, {"name": "B", "reward_weights": [0.5]}]}
    *_, last = (event for event in gl.train(SMOKE.merged(tree)) if isinstance(event, Stepped))
    assert {"reward/A", "reward/B"} <= last.metrics.keys()
    from grpo_lab.training.objectives import resolve

    assert [o.reward_weights for o in resolve(SMOKE.merged(tree))] == [(2.0,), (0.5,)]
    own = {"data": {"reward_weights": [2.0, 1.0]}, "objectives": [{"name": "A", "rewards": ["exact_match"]}]}
    assert resolve(SMOKE.merged(own))[0].reward_weights == ()
    assert gl.Config.from_dict(SMOKE.merged(tree).to_dict()) == SMOKE.merged(tree)


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
        (lambda metric, extra: metric("kl/F", 1.0), "the trainer has a metric"),
        (lambda metric, extra: metric("mine", "high"), "of type str"),
        (lambda metric, extra: metric("mine", None), "None is no number"),
        (lambda metric, extra: extra("mine", [1]), "1 values for 8 completions"),
    ],
)
def test_what_cannot_be_logged_is_refused(log, message):
    def reward(completions, log_metric, log_extra, **_):
        log(log_metric, log_extra)
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match=message):
        steps_of(reward)


def test_logged_infinity_is_a_number_and_several_have_their_mean():
    def reward(completions, log_metric, **_):
        for value in (math.inf, 1.0):
            log_metric("mine", value)
        for value in (1.0, 2.0, 6.0):
            log_metric("other", value)
        return half(completions)

    found = rewards.begin([reward], SUMS[:1], ["0"])().metrics
    assert (found["mine"], found["other"]) == (math.inf, 3.0)


def test_held_out_problems_are_judged_with_the_state_too():
    seen = []

    def reward(completions, trainer_state, **_):
        seen.append(trainer_state.global_step)
        return [1.0] * len(completions)

    events = gl.train(SMOKE.with_("run.num_eval=4"), tasks=Tasks("sums", SUMS[:4], SUMS[4:]), rewards=[reward])
    assert [event.step for event in events if isinstance(event, Evaluated)] == [0, 2]
    assert seen == [0, 0, 1, 2]


def test_async_functions_run_at_once_and_log():
    import asyncio

    begun, all_begun = [], asyncio.Event()

    async def one(completions, log_metric, **_):
        begun.append(1)
        if len(begun) == 2:
            all_begun.set()
        await asyncio.wait_for(all_begun.wait(), 20)
        log_metric("begun", len(begun))
        return np.ones(len(completions))

    async def other(completions, completion_ids, log_metric, **more):
        return await one(completions, log_metric)

    found = rewards.begin([one, other], SUMS[:2], ["0", "1"], None, (0.5, 2.0), [[1], [2]])()
    assert found.values.tolist() == [2.5, 2.5] and found.metrics["begun"] == 2.0


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


@pytest.mark.parametrize("name", ["exact_match", "brief_answer", "honest_answer", "counting_judge"])
def test_built_in_functions_read_conversations(name):
    function = rewards.load(name)
    texts = ["1", "?", "7"]
    plain = rewards.begin([function], SUMS[:3], texts)()
    assert rewards.begin([function], CHATS[:3], texts)().values.tolist() == plain.values.tolist()


def test_the_template_opens_the_answer_and_writes_the_special_tokens():
    tokenizer = chatting("<{{ messages[0]['content'] }}>{% if add_generation_prompt %}={% endif %}")[1]
    assert (
        tokenized(tokenizer, [CHATS[0].prompt]).input_ids == tokenizer(["<0+1=>="], add_special_tokens=False).input_ids
    )


# --- a run in which nothing is scored ---------------------------------------------------------------------------------


def nothing(completions, **_):
    return [None] * len(completions)


def end_of(config=SMOKE, **more):
    (last,) = [event for event in gl.train(config, **more) if isinstance(event, Ended)]
    return last


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


def test_answers_of_none_leave_the_built_in_reward_without_a_score():
    unknown = Tasks("unknown", [Problem(each.prompt, {"answer": None}) for each in SUMS], [])
    last = end_of(tasks=unknown)
    assert last.status == "stopped" and "exact_match returned None for each" in last.message


def test_a_step_without_a_score_has_no_mean_reward_rather_than_nan():
    assert not [step for step in steps_of(nothing) if "reward" in step.metrics or "reward_std" in step.metrics]


@pytest.mark.parametrize("first", [None, 1.0])
def test_one_scored_completion_in_the_first_step_ends_the_run_as_ever(first):
    counted = itertools.count()
    last = end_of(rewards=[lambda completions, **_: [None if next(counted) else first] * 8])
    assert last.status == ("stopped" if first is None else "done")


def test_a_guard_that_leaves_no_reward_is_not_taken_for_none():
    nan = [lambda completions, **_: [math.nan] * len(completions)]
    last = end_of(SMOKE.with_("guards.sanitize_rewards=on"), rewards=nan)
    assert last.status == "stopped" and last.message.endswith(
        "none of 8 completions was scored; mend that and train again"
    )


def test_a_judge_that_always_fails_ends_the_run_with_its_reason():
    def gone(completions, **_):
        raise ConnectionError("gone")

    last = end_of(SMOKE.with_("judge.workers=2"), rewards=[gone])
    assert last.status == "stopped" and "8 of 8 calls failed: 8 raised ConnectionError: gone" in last.message


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


@pytest.mark.parametrize("prompt", [[], [{}], [{"role": "user"}], [{"role": "user", "content": 1}], ["1+1="], {"a": 1}])
def test_other_prompts_are_refused(tmp_path, prompt):
    with pytest.raises(DataError, match=r'c.jsonl:1: "prompt" is .* or a list of messages such as'):
        from_jsonl(written(tmp_path / "c.jsonl", prompt))


@pytest.mark.parametrize("name", ["completion_ids", "trainer_state", "log_metric", "log_extra"])
def test_a_column_must_not_have_the_name_of_an_argument(tmp_path, name):
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": "1+1=", name: 1}))
    with pytest.raises(DataError, match=f"column '{name}' is an argument of reward functions already; rename it"):
        from_jsonl(tmp_path / "d.jsonl")
