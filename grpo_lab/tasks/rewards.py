"""Reward functions in TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`, and their sum."""

import re
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch

from grpo_lab.config import user_code
from grpo_lab.errors import RewardError
from grpo_lab.tasks.tasks import Problem

Reward = Callable[..., Sequence[float | None]]


def exact_match(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float]:
    """1 for a completion that is the answer, else 0; surrounding space does not count.

    >>> exact_match(["1+1=", "1+2="], ["2", "4"], answer=["2", "3"])
    [1.0, 0.0]
    """
    pairs = zip(completions, answer, strict=True)
    return [float(completion.strip() == str(wanted).strip()) for completion, wanted in pairs]


def brief_answer(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float]:
    """1 / number of words for a completion that has the answer among its words, else 0: each further word costs.

    Case and punctuation do not count.

    >>> brief_answer(["Sky?"] * 4, ["Blue.", "It is blue", "blue or red", "red"], answer=["blue"] * 4)
    [1.0, 0.3333333333333333, 0.3333333333333333, 0.0]
    """
    words = [re.findall(r"\w+", completion.casefold()) for completion in completions]
    pairs = zip(words, answer, strict=True)
    return [1 / len(found) if str(wanted).casefold() in found else 0.0 for found, wanted in pairs]


def honest_answer(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float]:
    """1 for a completion that is the answer, 0 for `?`, and -1 for everything else, which is made up.

    >>> honest_answer(["1+1?"] * 3, ["2", "?", "3"], answer=["2"] * 3)
    [1.0, 0.0, -1.0]
    """
    said = [completion.strip() for completion in completions]
    return [0.0 if text == "?" else 2 * (text == str(wanted)) - 1.0 for text, wanted in zip(said, answer, strict=True)]


REWARDS: dict[str, Reward] = {
    "exact_match": exact_match,
    "brief_answer": brief_answer,
    "honest_answer": honest_answer,
}


def load(name: str) -> Reward:
    """The reward function of that name, or the one at "path/to/file.py:function".

    >>> load("exact_match").__name__
    'exact_match'

    Raises RewardError for a name that does not exist and a file that does not run.
    """
    return user_code.named("reward", name, REWARDS, RewardError)  # `score` checks its results


def score(
    functions: Sequence[Reward], prompts: Sequence[str], completions: Sequence[str], columns: dict[str, list[Any]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the functions' rewards, (B,) float32, and whether any of them judged each completion, (B,) bool.

    None means that a function does not judge a completion, and adds nothing. A completion that no function judges is
    not scorable, and its 0.0 means nothing. NaN and inf pass: guards stop them. Raises RewardError for other results.

    >>> score([exact_match, lambda completions, **_: [0.5, None]], ["1+1=", "1+2="], ["2", "4"], {"answer": ["2", "3"]})
    (tensor([1.5000, 0.0000]), tensor([True, True]))
    """
    if len(prompts) != len(completions):
        raise RewardError(f"{len(prompts)} prompts but {len(completions)} completions; give one prompt a completion")
    totals = [0.0] * len(completions)
    scorable = [False] * len(completions)
    for function in functions:
        for row, reward in enumerate(_rewards(function, prompts, completions, columns)):
            if reward is not None:
                totals[row] += reward
                scorable[row] = True
    return torch.tensor(totals, dtype=torch.float32), torch.tensor(scorable, dtype=torch.bool)


def _rewards(
    function: Reward, prompts: Sequence[str], completions: Sequence[str], columns: dict[str, list[Any]]
) -> list[float | None]:
    """One function's reward for each completion, checked. Raises RewardError for anything else."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        answer = function(prompts=prompts, completions=completions, **columns)
    except Exception as error:
        raise RewardError(f"reward {name} raised {type(error).__name__}: {error}; mend it or return None") from error
    if not isinstance(answer, list | tuple):
        raise RewardError(f"reward {name} returned {type(answer).__name__}; return a list of float or None")
    wanted = len(completions)
    if len(answer) != wanted:
        raise RewardError(f"reward {name} returned {len(answer)} values for {wanted} completions; return one each")
    return [_number(value, f"reward {name}, completion {row}") for row, value in enumerate(answer)]


def _number(value: Any, where: str) -> float | None:
    """None or a float, from bool and NumPy's numbers too. Raises RewardError for any other type."""
    if value is None:
        return None
    if not isinstance(value, Real):
        raise RewardError(f"{where}: {value!r} is of type {type(value).__name__}; return float or None")
    try:
        return float(value)
    except OverflowError as error:
        raise RewardError(f"{where}: a whole number beyond 1e308; return float or None") from error


def judge(
    functions: Sequence[Reward], problems: Sequence[Problem], completions: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `score`, two (B,) tensors, of one completion a problem; the functions receive the problems' columns."""
    columns = {name: [problem.columns[name] for problem in problems] for name in problems[0].columns}
    return score(functions, [problem.prompt for problem in problems], completions, columns)
