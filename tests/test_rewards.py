"""Rewards add up, None means unjudged, and whatever a user's function does wrong is said by name."""

import math
import sys

import pytest
import torch

from grpo_lab.errors import RewardError
from grpo_lab.tasks import rewards
from grpo_lab.tasks.rewards import exact_match
from grpo_lab.tasks.tasks import Problem


def constant(*values):
    """A reward function that always answers with `values`."""

    def fixed(prompts, completions, **columns):
        return list(values)

    return fixed


def scored(*functions, completions=("2", "4"), answer=("2", "3")):
    found = rewards.begin(functions, [Problem("?", {"answer": text}) for text in answer], completions)()
    return found.values, found.scorable


def test_exact_match():
    answers = exact_match(["?"] * 5, ["12", " 12\n", "012", "12 3", ""], answer=["12", 12, "12", "12", "12"], other=[0])
    assert answers == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("positive", 1.0),
        (" Positive.\n", 1.0),
        ("It is POSITIVE", 1 / 3),
        ("positive positive", 1 / 2),
        ("positively", 0.0),
        ("", 0.0),
    ],
)
def test_brief_answer(completion, reward):
    assert rewards.brief_answer(["?"], [completion], answer=["Positive"], other=[0]) == [reward]


@pytest.mark.parametrize(
    ("functions", "values", "scorable"),
    [
        ([exact_match, constant(0.5, -0.25)], [1.5, -0.25], [True, True]),
        ([constant(None, None), constant(0.5, None)], [0.5, 0.0], [True, False]),
        ([constant(math.nan, -math.inf)], [math.nan, -math.inf], [True, True]),
    ],
    ids=["they add up", "none is not a zero", "NaN and infinity are data"],
)
def test_the_sum_of_rewards(functions, values, scorable):
    found, counted = scored(*functions)
    assert found.dtype == torch.float32 and counted.dtype == torch.bool
    assert found.tolist() == pytest.approx(values, nan_ok=True) and counted.tolist() == scorable


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0], "judge returned 1 values for 2 completions"),
        ([1.0, "2"], "judge, completion 1: '2' is of type str"),
        ([torch.ones(2), 0.0], "judge, completion 0: .* is not one number"),
        ([1j, 0.0], "judge, completion 0: .* of type complex"),
        ([10**400, 0.0], "judge, completion 0: a whole number beyond 1e308"),
        (torch.ones(2, 1), "of type list|is of type"),
        ({0: 1.0, 1: 0.0}, "returned dict"),
    ],
)
def test_a_wrong_answer_is_named(answer, message):
    def judge(**_):
        return answer

    with pytest.raises(RewardError, match=message):
        scored(judge)


def test_a_function_that_raises_is_named_and_chained():
    def fails(prompts, completions, **columns):
        raise KeyError("oops")

    with pytest.raises(RewardError, match="reward fails raised KeyError: 'oops'") as caught:
        scored(fails)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_missing_column_is_named():
    with pytest.raises(RewardError, match=r"exact_match raised TypeError: .*'answer'"):
        rewards.begin([exact_match], [Problem("?", {})], ["2"])()


def test_a_function_from_a_file_is_read_anew(tmp_path):
    path = tmp_path / "mine.py"
    source = "import dataclasses\n@dataclasses.dataclass\nclass Rule:\n    worth: float = {}\n"
    source += "def reward(prompts, completions, **columns):\n    return [Rule().worth] * len(completions)\n"
    for worth in (1.0, 2.0):  # the same size, within the same second: cached bytecode would be stale
        path.write_text("from __future__ import annotations\n" + source.format(worth))
        assert scored(rewards.load(f"{path}:reward"))[0].tolist() == [worth, worth]


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("def rewards(**_): ...", "reward", "unknown name in .* 'reward'; did you mean 'rewards'"),
        ("reward = 3", "reward", "'reward' is of type int; name a function or a class"),
        ("1 / 0", "reward", "importing it raised ZeroDivisionError"),
        ("def broken(:", "broken", "importing it raised SyntaxError"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, source, name, message):
    path = tmp_path / "bad_reward.py"
    path.write_text(source)
    before = set(sys.modules)
    with pytest.raises(RewardError, match=message):
        rewards.load(f"{path}:{name}")
    if "raised" in message:
        assert set(sys.modules) == before


def test_what_does_not_exist(tmp_path):
    with pytest.raises(RewardError, match="no file"):
        rewards.load(f"{tmp_path}/absent.py:reward")
    with pytest.raises(RewardError, match="did you mean 'exact_match'"):
        rewards.load("exact_mach")
    (tmp_path / "reward.txt").write_text("def reward(**_): return []")
    assert callable(rewards.load(f"{tmp_path}/reward.txt:reward"))
